#include "passes/settings.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <array>
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

[[noreturn]] void refuse(const std::string& key, std::string what, std::string wanted,
                         std::string got, std::string hint = {}) {
  throw SettingError(key, {"{" + key + "} " + std::move(what), std::move(wanted), std::move(got),
                           std::move(hint)});
}

[[noreturn]] void out_of_range(const std::string& key, std::string wanted, std::string got) {
  refuse(key, "is out of range", std::move(wanted), std::move(got));
}

void require(const std::string& name, float value, const Below& range) {
  if (value >= 0 && value < range.end) return;
  out_of_range("optimizer." + name, range.text, fmt::format("{}", value));
}

void require(bool good, const char* name, float value, const char* wanted) {
  if (!good) out_of_range(std::string("optimizer.") + name, wanted, fmt::format("{}", value));
}

void check_group(const ParameterGroup& group, const std::string& name) {
  require(name + ".weight_decay", group.weight_decay.value_or(0), kSize);
  require(name + ".lr_factor", group.lr_factor.value_or(0), kSize);
  const std::string key = "optimizer." + name + ".pattern";
  if (group.pattern.empty()) {
    refuse(key, "is missing: the group takes no parameter", "a pattern for whole names", "none",
           "pattern = \".*\" takes all");
  }
  const RE2 pattern(group.pattern, RE2::Quiet);
  if (pattern.ok()) return;
  refuse(key, "is no regular expression", "RE2 syntax",
         "\"" + group.pattern + "\" (" + pattern.error() + ")");
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
  require(std::isfinite(o.dampening), "dampening", o.dampening, "a finite number");
  require(o.alpha >= 0 && o.alpha <= 1, "alpha", o.alpha, "a number in [0, 1]");
  if (!(o.max_ratio == 0 || o.max_ratio >= o.min_ratio)) {
    out_of_range("optimizer.max_ratio",
                 fmt::format("0 (no bound), or at least {{optimizer.min_ratio}} ({})", o.min_ratio),
                 fmt::format("{}", o.max_ratio));
  }
  require("epsilon_param", o.epsilon_param, kSize);
  require(o.clip_threshold > 0, "clip_threshold", o.clip_threshold, "a number above 0");
  require(o.decay_rate <= 0, "decay_rate", o.decay_rate, "0 or less, as -0.8");
  for (size_t i = 0; i < o.groups.size(); ++i)
    check_group(o.groups[i], fmt::format("group[{}]", i));
}

void check_schedule_numbers(const Schedule& s) {
  const std::pair<const char*, double> rows[] = {
      {"final_factor", s.final_factor},
      {"warmup_factor", s.warmup_factor},
      {"gamma", s.gamma},
      {"slope", s.slope},
      {"warmup", static_cast<double>(s.warmup)},
      {"delay", static_cast<double>(s.delay)},
      {"decay_start", static_cast<double>(s.decay_start)},
      {"total", static_cast<double>(s.total)},
      {"step_size", static_cast<double>(s.step_size)},
  };
  for (const auto& [key, value] : rows) {
    if (value >= 0 && std::isfinite(value)) continue;
    out_of_range(std::string("optimizer.schedule.") + key, "a number of 0 or more",
                 fmt::format("{:g}", value));
  }
}

/// The kind cannot do without another setting. Who left that out chose the kind; who gave it is
/// named by its own key.
[[noreturn]] void lacks(const Schedule& s, const char* key, const char* what, int64_t got,
                        const std::string& more_than) {
  const std::string full = std::string("optimizer.schedule.") + key;
  const bool given = got > 0;
  throw SettingError(given ? full : "optimizer.schedule.kind",
                     {fmt::format("{{optimizer.schedule.kind}} {} needs {}", s.kind, what),
                      fmt::format("{{{}}} above {}", full, more_than),
                      std::to_string(got),
                      {}});
}

void check_schedule_sizes(const Schedule& s) {
  const bool needs_total = s.kind == "cosine" || s.kind == "linear";
  const bool is_cycle = s.kind == "one_cycle";
  const bool needs_size = s.kind == "step" || s.kind == "range_test" || is_cycle;
  const int64_t start = s.decay_start > 0 ? s.decay_start : s.warmup;
  if (needs_total && s.total <= start) {
    lacks(s, "total", "its number of steps", s.total,
          fmt::format("{{optimizer.schedule.{}}} ({})",
                      s.decay_start > 0 ? "decay_start" : "warmup", start));
  }
  if (needs_size && s.step_size <= 0) lacks(s, "step_size", "a size of steps", s.step_size, "0");
  if (is_cycle && s.total <= s.step_size) {
    lacks(s, "total", "its number of steps", s.total,
          fmt::format("{{optimizer.schedule.step_size}} ({})", s.step_size));
  }
}

void check_schedule(const Schedule& s) {
  constexpr std::array<std::string_view, 6> kKinds = {"constant", "linear",     "cosine",
                                                      "step",     "range_test", "one_cycle"};
  if (std::ranges::find(kKinds, s.kind) == kKinds.end()) {
    const std::string_view near = closest(s.kind, kKinds);
    refuse("optimizer.schedule.kind", "names no learning-rate schedule",
           "constant, linear, cosine, step, range_test or one_cycle", "\"" + s.kind + "\"",
           near.empty() ? std::string() : "did you mean " + std::string(near) + "?");
  }
  check_schedule_sizes(s);
  if (s.warmup_kind != "linear" && s.warmup_kind != "from_zero" && s.warmup_kind != "log") {
    refuse("optimizer.schedule.warmup_kind", "names no kind of warm-up", "linear, from_zero or log",
           "\"" + s.warmup_kind + "\"");
  }
  if (s.warmup_kind == "log" && s.warmup == 1) {
    refuse("optimizer.schedule.warmup", "leaves a logarithmic warm-up one step",
           "2 or more with {optimizer.schedule.warmup_kind} log", "1");
  }
}

/// What a counter of an update can hold in FP32, too.
constexpr int64_t kMostMicroBatches = int64_t{1} << 24;

void check_all(const CompileOptions& options) {
  const TrainOptions& train = options.train;
  if (options.policy.dtype == DType::kF16) check_scaler(options.policy.scaler);
  if (options.inference_only) return;
  if (train.micro_batch < 0) {
    out_of_range("train.micro_batch", "0 or more samples", std::to_string(train.micro_batch));
  }
  if (train.accumulation < 1 || train.accumulation > kMostMicroBatches) {
    out_of_range("train.accumulate", fmt::format("1 to {} micro-batches", kMostMicroBatches),
                 std::to_string(train.accumulation));
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
  const auto refuse = [](const char* key, std::string want, std::string got) {
    out_of_range(std::string("loss_scale.") + key, std::move(want), std::move(got));
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
  if (s.refill != "on_growth" && s.refill != "every_clean")
    refuse("refill", "on_growth or every_clean", "\"" + s.refill + "\"");
  if (s.warmup_interval < 0)
    refuse("warmup_interval", "0 or more", std::to_string(s.warmup_interval));
  if (s.first_window_extra < 0)
    refuse("first_window_extra", "0 or more", std::to_string(s.first_window_extra));
  if (s.publish_delay != 0 && s.publish_delay != 1)
    refuse("publish_delay", "0 or 1", std::to_string(s.publish_delay));
  if (!(s.min >= 0 && std::isfinite(s.min))) refuse("min", "0 or more", text(s.min));
  if (s.max != 0 && !(s.max >= s.min)) {
    refuse("max", fmt::format("0 (no bound), or at least {{loss_scale.min}} ({})", s.min),
           text(s.max));
  }
}

void check_settings(const CompileOptions& options) {
  with_names(options, [&] { check_all(options); });
}

}  // namespace halfnote
