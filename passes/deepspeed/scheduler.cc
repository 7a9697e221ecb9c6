// The formulas are those of deepspeed/runtime/lr_schedules.py. DeepSpeed sets the rate of a step
// after the one before it: step s (from 0) has the rate of iteration s - 1, and the first one that
// of a scheduler that has not started.
#include "passes/deepspeed/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace halfnote::deepspeed {
namespace {

class SchedulerReader {
 public:
  SchedulerReader(std::string_view file, Optimizer& optimizer, std::vector<std::string>& notes)
      : file_(file), optimizer_(optimizer), schedule_(optimizer.schedule), notes_(notes) {}

  std::map<std::string, std::string> read(const Json& object, const std::string& prefix) {
    std::string type;
    Json params = Json::object();
    read_keys(file_, object, prefix,
              {{"type", text(type)},
               {"params", section([&](const Json& j, const std::string&) { params = j; })}});
    using Reader = void (SchedulerReader::*)(const Json&, const std::string&);
    const std::map<std::string, Reader> kinds = {
        {"WarmupLR", &SchedulerReader::warm_up},
        {"WarmupDecayLR", &SchedulerReader::warm_up_and_decay},
        {"WarmupCosineLR", &SchedulerReader::cosine},
        {"LRRangeTest", &SchedulerReader::range_test},
        {"OneCycle", &SchedulerReader::one_cycle}};
    const auto found = kinds.find(type);
    if (found == kinds.end()) {
      std::vector<std::string> names;
      for (const auto& [name, reader] : kinds) names.push_back(name);
      unknown_type(file_, prefix, type, names);
    }
    (this->*found->second)(params, prefix + ".params");
    names_["schedule.kind"] = prefix + ".type";
    return std::move(names_);
  }

 private:
  static Setter resumed() { return only(-1, "a run resumes by its checkpoint"); }

  void set_warmup_kind(const std::string& kind, const std::string& prefix) {
    if (kind != "log" && kind != "linear") wrong(prefix + ".warmup_type", "log or linear", kind);
    schedule_.warmup_kind = kind == "log" ? "log" : "from_zero";
  }

  /// The rate in place of the optimizer's.
  void set_rate(double rate, const std::string& key) {
    if (!(rate > 0)) wrong(key, "a number above 0", rate);
    optimizer_.lr = static_cast<float>(rate);
    names_["lr"] = key;
  }

  /// The end lies behind the warm-up, which takes two steps at least.
  void check_total(const Json& params, const std::string& prefix) const {
    const std::string key = prefix + ".total_num_steps";
    const int64_t warmup = schedule_.warmup;
    const std::string wanted = fmt::format("more than \"{}.warmup_num_steps\" ({}{})", prefix,
                                           warmup, warmup == 2 ? ", its least" : "");
    if (!params.contains("total_num_steps")) wrong(key, wanted, nullptr);
    if (schedule_.total <= warmup) wrong(key, wanted, schedule_.total);
  }

  /// Both kinds that warm up from a rate to a rate. `more`: the keys of one of them.
  void warm_up_between(const Json& params, const std::string& prefix, double high, Keys more) {
    double low = 0;
    std::string kind = "log";
    schedule_.delay = 1;
    schedule_.warmup = 1000;
    more.merge(Keys{{"warmup_min_lr", number(low, 0)},
                    {"warmup_max_lr", number(high, 0)},
                    {"warmup_num_steps", count(schedule_.warmup, 0)},
                    {"warmup_type", text(kind)},
                    {"last_batch_iteration", resumed()}});
    read_keys(file_, params, prefix, more);
    set_rate(high, prefix + ".warmup_max_lr");
    set_warmup_kind(kind, prefix);
    schedule_.warmup = std::max<int64_t>(schedule_.warmup, 2);
    schedule_.warmup_factor = schedule_.final_factor = static_cast<float>(low / high);
    names_["schedule.warmup"] = prefix + ".warmup_num_steps";
    names_["schedule.warmup_factor"] = names_["schedule.final_factor"] = prefix + ".warmup_min_lr";
  }

  /// Left out, the highest rate is the optimizer's.
  void warm_up(const Json& params, const std::string& prefix) {
    schedule_.kind = "constant";
    warm_up_between(params, prefix, optimizer_.lr, {});
  }

  /// The decay goes by the iteration before the step.
  void warm_up_and_decay(const Json& params, const std::string& prefix) {
    schedule_.kind = "linear";
    warm_up_between(params, prefix, 1e-3, {{"total_num_steps", count(schedule_.total, 1)}});
    check_total(params, prefix);
    names_["schedule.total"] = prefix + ".total_num_steps";
    names_["schedule.decay_start"] = prefix + ".warmup_num_steps";
    schedule_.decay_start = schedule_.warmup + 1;
    schedule_.total += 1;
  }

  /// The cosine goes by the step itself; before its scheduler starts the rate is 0.
  void cosine(const Json& params, const std::string& prefix) {
    double low = 0, last = 1e-4;
    std::string kind = "log";
    schedule_.kind = "cosine";
    schedule_.delay = 1;
    schedule_.warmup = 1000;
    read_keys(file_, params, prefix,
              {{"total_num_steps", count(schedule_.total, 1)},
               {"warmup_min_ratio", number(low, 0)},
               {"warmup_num_steps", count(schedule_.warmup, 0)},
               {"cos_min_ratio", number(last, 0)},
               {"warmup_type", text(kind)},
               {"last_batch_iteration", resumed()}});
    set_warmup_kind(kind, prefix);
    schedule_.warmup = std::max<int64_t>(schedule_.warmup, 2);
    check_total(params, prefix);
    schedule_.decay_start = schedule_.warmup;
    names_["schedule.total"] = prefix + ".total_num_steps";
    names_["schedule.warmup"] = names_["schedule.decay_start"] = prefix + ".warmup_num_steps";
    names_["schedule.warmup_factor"] = prefix + ".warmup_min_ratio";
    names_["schedule.final_factor"] = prefix + ".cos_min_ratio";
    schedule_.warmup_factor = static_cast<float>(low);
    schedule_.final_factor = static_cast<float>(last);
    schedule_.zero_first = true;
  }

  void range_test(const Json& params, const std::string& prefix) {
    double low = 1e-3, rate = 1;
    schedule_.kind = "range_test";
    schedule_.step_size = 2000;
    read_keys(file_, params, prefix,
              {{"lr_range_test_min_lr", number(low, 0)},
               {"lr_range_test_step_size", count(schedule_.step_size, 1)},
               {"lr_range_test_step_rate", number(rate, 0)},
               {"lr_range_test_staircase", flag(schedule_.staircase)},
               {"last_batch_iteration", resumed()}});
    set_rate(low, prefix + ".lr_range_test_min_lr");
    schedule_.slope = static_cast<float>(rate);
    names_["schedule.step_size"] = prefix + ".lr_range_test_step_size";
    names_["schedule.slope"] = prefix + ".lr_range_test_step_rate";
  }

  void one_cycle(const Json& params, const std::string& prefix) {
    double low = -1, high = -1, decay = 0, unused = 0;
    int64_t first = 2000, second = 0, decay_steps = 0;
    bool momentum = true;
    const std::string why = "versions of DeepSpeed differ in what it does";
    const Setter second_steps = count(second, 1);
    const Setter no_stairs = only(0, why);
    const auto unless_null = [](const Setter& setter) {
      return [setter](const Json& value, const std::string& key) {
        if (!value.is_null()) setter(value, key);
      };
    };
    schedule_.kind = "one_cycle";
    read_keys(file_, params, prefix,
              {{"cycle_min_lr", number(low, 0)},
               {"cycle_max_lr", number(high, 0)},
               {"decay_lr_rate", number(decay, 0)},
               {"cycle_first_step_size", count(first, 1)},
               {"cycle_second_step_size", unless_null(second_steps)},
               {"cycle_first_stair_count", no_stairs},
               {"cycle_second_stair_count", unless_null(no_stairs)},
               {"decay_step_size", count(decay_steps, 0)},
               {"cycle_momentum", flag(momentum)},
               {"cycle_min_mom", number(unused)},
               {"cycle_max_mom", number(unused)},
               {"decay_mom_rate", number(unused)},
               {"last_batch_iteration", resumed()}});
    for (const char* key : {"cycle_min_lr", "cycle_max_lr"}) {
      if (!params.contains(key)) wrong(prefix + "." + key, "a number", nullptr);
    }
    check_momentum(momentum, prefix + ".cycle_momentum");
    set_rate(high, prefix + ".cycle_max_lr");
    schedule_.step_size = first;
    schedule_.total = first + (second == 0 ? first : second);
    schedule_.final_factor = static_cast<float>(low / high);
    names_["schedule.step_size"] = prefix + ".cycle_first_step_size";
    names_["schedule.total"] = prefix + ".cycle_second_step_size";
    names_["schedule.final_factor"] = prefix + ".cycle_min_lr";
    names_["schedule.slope"] = prefix + ".decay_lr_rate";
    if (decay_steps > 0)
      schedule_.slope = static_cast<float>(decay / static_cast<double>(decay_steps));
  }

  /// DeepSpeed cycles the betas of optimizers that have some, and leaves others alone.
  void check_momentum(bool cycles, const std::string& key) {
    if (!cycles) return;
    constexpr std::array<std::string_view, 4> kWithBetas = {"adam", "adamw", "deepspeed_lamb",
                                                            "lion"};
    if (std::ranges::find(kWithBetas, optimizer_.kind) == kWithBetas.end()) {
      notes_.push_back("\"" + key + "\" does nothing: the optimizer has no betas");
      return;
    }
    throw Error(ErrorCode::kUsage, "\"" + key + "\" is not supported: the betas stay as they are")
        .at({std::string(file_), {}, {}})
        .expected("false", "true, DeepSpeed's default")
        .hint("write \"cycle_momentum\": false, in DeepSpeed too for the same training");
  }

  std::string_view file_;
  Optimizer& optimizer_;
  Schedule& schedule_;
  std::vector<std::string>& notes_;
  std::map<std::string, std::string> names_;
};

}  // namespace

std::map<std::string, std::string> read_scheduler(std::string_view file, const Json& object,
                                                  const std::string& prefix, Optimizer& optimizer,
                                                  std::vector<std::string>& notes) {
  return SchedulerReader(file, optimizer, notes).read(object, prefix);
}

}  // namespace halfnote::deepspeed
