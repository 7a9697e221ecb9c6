#include "passes/settings.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "passes/train/losses.h"
#include "passes/train/optimizer_form.h"

namespace halfnote {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A half-open range; every one here begins at 0.
struct Below {
  float end;
  const char* text;
};

constexpr Below kShare = {1, "a number in [0, 1)"};
constexpr Below kSize = {kInfinity, "a number of 0 or more"};

[[noreturn]] void out_of_range(const std::string& key, const std::string& what, const char* wanted,
                               const std::string& got) {
  throw SettingError(
      key,
      Error(ErrorCode::kUsage, "optimizer: " + what + " is out of range").expected(wanted, got));
}

void require(const std::string& name, float value, const Below& range) {
  if (value >= 0 && value < range.end) return;
  const std::string what = name.substr(name.rfind('.') + 1);
  out_of_range("optimizer." + name, what, range.text, fmt::format("{}", value));
}

void require(bool good, const char* name, float value, const char* wanted) {
  if (!good) out_of_range(std::string("optimizer.") + name, name, wanted, fmt::format("{}", value));
}

void check_numbers(const Optimizer& o) {
  require("lr", o.lr, kSize);
  require("momentum", o.momentum.value_or(0), kShare);
  require("beta1", o.beta1, kShare);
  require("beta2", o.beta2.value_or(0), kShare);
  require("epsilon", o.epsilon.value_or(0), kSize);
  require("weight_decay", o.weight_decay, kSize);
  require("clip_norm", o.clip_norm, kSize);
  require("lr_decay", o.lr_decay, kSize);
  require("initial_accumulator", o.initial_accumulator, kSize);
  require("min_ratio", o.min_ratio, kSize);
  require(o.alpha >= 0 && o.alpha <= 1, "alpha", o.alpha, "a number in [0, 1]");
  require(o.max_ratio == 0 || o.max_ratio >= o.min_ratio, "max_ratio", o.max_ratio,
          "0 (no bound), or at least min_ratio");
  require(o.clip_threshold > 0, "clip_threshold", o.clip_threshold, "a number above 0");
  require(o.decay_rate <= 0, "decay_rate", o.decay_rate, "0 or less, as -0.8");
  for (size_t i = 0; i < o.groups.size(); ++i) {
    const std::string group = fmt::format("group[{}].", i);
    require(group + "weight_decay", o.groups[i].weight_decay.value_or(0), kSize);
    require(group + "lr_factor", o.groups[i].lr_factor.value_or(0), kSize);
  }
}

void check_schedule_numbers(const Schedule& s) {
  struct Row {
    const char *key, *what;
    double value;
  };
  const Row rows[] = {
      {"final_factor", "final factor of the schedule", s.final_factor},
      {"warmup_factor", "factor of the warm-up", s.warmup_factor},
      {"gamma", "gamma of the schedule", s.gamma},
      {"slope", "slope of the schedule", s.slope},
      {"warmup", "steps of the warm-up", static_cast<double>(s.warmup)},
      {"delay", "delay of the warm-up", static_cast<double>(s.delay)},
      {"decay_start", "start of the decay", static_cast<double>(s.decay_start)},
      {"total", "steps of the schedule", static_cast<double>(s.total)},
  };
  for (const Row& row : rows) {
    if (row.value >= 0 && std::isfinite(row.value)) continue;
    out_of_range(std::string("optimizer.schedule.") + row.key, row.what, "a number of 0 or more",
                 fmt::format("{:g}", row.value));
  }
}

SettingError bad_schedule(const char* key, std::string what) {
  return SettingError(std::string("optimizer.schedule.") + key,
                      Error(ErrorCode::kUsage, std::move(what)));
}

SettingError bad_schedule(const char* key, std::string what, std::string wanted, std::string got) {
  return SettingError(std::string("optimizer.schedule.") + key,
                      Error(ErrorCode::kUsage, std::move(what)).expected(wanted, got));
}

void check_schedule(const Schedule& s) {
  const bool needs_total = s.kind == "cosine" || s.kind == "linear";
  const bool is_cycle = s.kind == "one_cycle";
  const bool needs_size = s.kind == "step" || s.kind == "range_test" || is_cycle;
  if (!needs_total && !needs_size && s.kind != "constant") {
    throw bad_schedule("kind", "unknown learning-rate schedule",
                       "constant, linear, cosine, step, range_test or one_cycle",
                       "\"" + s.kind + "\"");
  }
  const int64_t start = s.decay_start > 0 ? s.decay_start : s.warmup;
  if (needs_total && s.total <= start) {
    throw bad_schedule(
        s.total > 0 ? "total" : "kind", "schedule " + s.kind + " needs its number of steps",
        fmt::format("--schedule-steps above the warm-up ({})", start), std::to_string(s.total));
  }
  if (needs_size && s.step_size <= 0) {
    throw bad_schedule(s.step_size < 0 ? "step_size" : "kind",
                       "schedule " + s.kind + " needs --schedule-step-size above 0");
  }
  if (is_cycle && s.total <= s.step_size) {
    throw bad_schedule(s.total > 0 ? "total" : "kind",
                       "schedule one_cycle needs its number of steps",
                       fmt::format("--schedule-steps above --schedule-step-size ({})", s.step_size),
                       std::to_string(s.total));
  }
  if (s.warmup_kind != "linear" && s.warmup_kind != "from_zero" && s.warmup_kind != "log") {
    throw bad_schedule("warmup_kind", "unknown kind of warm-up", "linear, from_zero or log",
                       "\"" + s.warmup_kind + "\"");
  }
  if (s.warmup_kind == "log" && s.warmup == 1) {
    throw bad_schedule("warmup", "a logarithmic warm-up of one step has no meaning",
                       "--warmup 2 or more", "1");
  }
}

void check_all(const CompileOptions& options) {
  const TrainOptions& train = options.train;
  if (options.policy.dtype == DType::kF16) check_scaler(options.policy.scaler);
  if (options.inference_only) return;
  if (train.micro_batch < 0) {
    throw SettingError("train.micro_batch",
                       Error(ErrorCode::kUsage, "micro_batch is out of range")
                           .expected("0 or more samples", std::to_string(train.micro_batch)));
  }
  if (!train.loss.empty()) check_loss(train);
  if (train.optimizer.kind != "none") check_optimizer(train.optimizer);
}

}  // namespace

void check_optimizer(const Optimizer& optimizer) {
  optimizer_form(optimizer);
  check_numbers(optimizer);
  check_schedule_numbers(optimizer.schedule);
  check_schedule(optimizer.schedule);
}

void check_scaler(const LossScaler& s) {
  const auto refuse = [](const char* key, const char* want, const std::string& got) {
    throw SettingError(
        std::string("loss_scale.") + key,
        Error(ErrorCode::kUsage, std::string("loss scaler: ") + key).expected(want, got));
  };
  const auto text = [](float x) { return fmt::format("{}", x); };
  if (!(s.init > 0 && std::isfinite(s.init)))
    refuse("init", "a finite number above 0", text(s.init));
  if (!(s.up >= 1 && std::isfinite(s.up))) refuse("up", "a factor of 1 or more", text(s.up));
  if (!(s.down > 0 && s.down <= 1)) refuse("down", "a factor in (0, 1]", text(s.down));
  if (s.interval < 1) refuse("interval", "1 or more", std::to_string(s.interval));
  if (s.hysteresis < 1) refuse("hysteresis", "1 or more", std::to_string(s.hysteresis));
  if (s.on_floor != "hold" && s.on_floor != "raise" && s.on_floor != "diagnose")
    refuse("on_floor", "hold, raise or diagnose", "\"" + s.on_floor + "\"");
  if (!(s.min >= 0 && std::isfinite(s.min))) refuse("min", "0 or more", text(s.min));
  if (s.max > 0 && s.max < s.min) refuse("max", "0 (no bound), or at least min", text(s.max));
}

void check_settings(const CompileOptions& options) {
  try {
    check_all(options);
  } catch (SettingError& error) {
    const auto source = options.sources.find(error.key());
    if (source != options.sources.end()) error.at({source->second, {}, {}});
    throw;
  }
}

}  // namespace halfnote
