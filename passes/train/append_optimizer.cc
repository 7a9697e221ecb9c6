// append_optimizer: turns the gradients of the step into updates of the weights.
//
//   outputs: loss, …, grad/w   ──▶   t  = applied_step + 1
//                                    lr = schedule(applied_step)
//                                    g  = clip(grad/w)
//                                    w1, m1, v1 = ai.halfnote.AdamW (w, g, m, v, lr, t)
//                                    state w -> w1, m -> m1, v -> v1
//
// Exact: nothing before the gradients changes. Adds the counters `attempted_step` and
// `applied_step`, the learning rate as a function of `applied_step`, global-norm clipping, one
// optimizer node a weight, and its moments. Leaves alone: weights without a gradient, and a step
// that has its optimizer already.
#include <re2/re2.h>

#include <cmath>

#include "base/error.h"
#include "passes/exporters/module_names.h"
#include "passes/passes.h"
#include "passes/settings.h"
#include "passes/train/optimizer_form.h"
#include "passes/train/step.h"

namespace halfnote {
namespace {

class OptimizerBuilder {
 public:
  OptimizerBuilder(Graph& graph, ParameterNames names, PassContext& context)
      : graph_(graph),
        all_(context.options),
        options_(all_.train.optimizer),
        b_(graph, graph.end(), context.infer),
        names_(std::move(names)),
        frozen_(!context.options.train.frozen.empty()),
        named_(!context.options.train.trainable.empty()) {
    b_.set_role(Role::kOptimizer);
  }

  void run() {
    const OptimizerForm form = optimizer_form(options_);
    counter(kAttemptedStep, StateKind::kRandom);
    const Expr applied = counter(kAppliedStep, StateKind::kCounter);
    const Expr step = b_.value(graph_.states()[*graph_.state_of(applied.id)].next);
    const Expr rate = learning_rate(applied);
    std::vector<Weight> weights = take_gradients();
    if (weights.empty()) {
      // Where flags chose the parameters, they are to blame.
      const ErrorCode code = frozen_ || named_ ? ErrorCode::kUsage : ErrorCode::kModel;
      // The settings are told by the names that their source has for them.
      const auto called = [&](const char* key) {
        return SettingError(key, {"{" + std::string(key) + "}", {}, {}, {}}).named(all_).problem();
      };
      throw Error(code, "the model has no parameter that the loss depends on")
          .expected("at least one trainable float initializer", "none")
          .hint(frozen_  ? called("train.freeze") + " takes all of them away"
                : named_ ? "the loss depends on none that " + called("train.trainable") + " names"
                         : "name them with --trainable REGEX");
    }
    clip(weights);
    for (const Weight& weight : weights) update(form, weight, rate, step);
    check_groups();
  }

 private:
  struct Weight {
    ValueId value;
    Expr gradient;
  };

  /// An int64 state that grows by one each step.
  Expr counter(std::string_view name, StateKind kind) {
    ValueId value = graph_.find(name);
    if (!value.valid())
      value = graph_.add_initializer(std::string(name), Tensor::scalar<int64_t>(0));
    Expr current = b_.value(value);
    if (!graph_.state_of(value)) {
      graph_.add_state(value, (current + 1.0).id, kind);
    } else if (graph_.states()[*graph_.state_of(value)].next == value) {
      graph_.set_state_next(*graph_.state_of(value), (current + 1.0).id);
    }
    return current;
  }

  /// lr as an f32 scalar of the number s of steps applied so far:
  /// lr · the warm-up's factor · the kind's factor, which counts from decay_start (else the end of
  /// the warm-up).
  Expr learning_rate(Expr applied) {
    const Schedule& schedule = options_.schedule;
    Expr base = b_.constant(Tensor::scalar<float>(options_.lr), "base_lr");
    const bool varies = schedule.warmup > 0 || schedule.kind != "constant" || schedule.zero_first;
    Expr rate = base;
    if (varies) {
      const Expr s = b_.cast(applied, DType::kF32);
      if (schedule.kind != "constant") rate = rate * decay(schedule, s);
      if (schedule.warmup > 0) rate = rate * warm_up(schedule, s);
      if (schedule.zero_first) rate = rate * b_.op("Min", {s, one()});
    } else {
      rate = b_.op("Identity", {base});
    }
    graph_.rename(rate.id, graph_.unique_name(kLearningRate));
    graph_.add_output(graph_.main(), rate.id);
    return rate;
  }

  /// min(1, (s + 1) / warmup), s / warmup (from_zero) or log(s + 1) / log(warmup), taken from
  /// warmup_factor instead of 0 to 1. The first `delay` steps count as s = 0.
  Expr warm_up(const Schedule& schedule, Expr s) {
    const auto steps = static_cast<double>(schedule.warmup);
    if (schedule.delay > 0) {
      s = b_.op("Max", {s - static_cast<double>(schedule.delay), b_.scalar(DType::kF32, 0)});
    }
    Expr progress = (s + 1.0) / steps;
    if (schedule.warmup_kind == "from_zero") progress = s / steps;
    if (schedule.warmup_kind == "log") progress = b_.op("Log", {s + 1.0}) / std::log(steps);
    const Expr share = b_.op("Min", {progress, one()});
    if (schedule.warmup_factor == 0) return share;
    const double from = schedule.warmup_factor;
    return share * (1.0 - from) + from;
  }

  static int64_t decay_start(const Schedule& schedule) {
    return schedule.decay_start > 0 ? schedule.decay_start : schedule.warmup;
  }

  Expr zero() { return b_.scalar(DType::kF32, 0); }

  /// final_factor, up to 1 and down again, then slowly less.
  Expr one_cycle(const Schedule& schedule, Expr s) {
    const auto first = static_cast<double>(schedule.step_size);
    const auto total = static_cast<double>(schedule.total);
    const Expr up = s / first, down = (total - s) / (total - first);
    const Expr share = b_.op("Max", {b_.op("Min", {up, down}), zero()});
    const double low = schedule.final_factor;
    const Expr factor = low + (1.0 - low) * share;
    if (schedule.slope == 0) return factor;
    const double slope = schedule.slope;
    return factor / (1.0 + slope * b_.op("Max", {s - total, zero()}));
  }

  Expr range_test(const Schedule& schedule, Expr s) {
    Expr interval = s / static_cast<double>(schedule.step_size);
    if (schedule.staircase) interval = b_.op("Floor", {interval});
    return 1.0 + static_cast<double>(schedule.slope) * interval;
  }

  Expr decay(const Schedule& schedule, Expr s) {
    if (schedule.kind == "one_cycle") return one_cycle(schedule, s);
    if (schedule.kind == "range_test") return range_test(schedule, s);
    const Expr since =
        b_.op("Max", {s - static_cast<double>(decay_start(schedule)), b_.scalar(DType::kF32, 0)});
    if (schedule.kind == "step") {
      const Expr drops = b_.op("Floor", {since / static_cast<double>(schedule.step_size)});
      return b_.op("Pow", {b_.scalar(DType::kF32, schedule.gamma), drops});
    }
    const auto length = static_cast<double>(schedule.total - decay_start(schedule));
    const Expr progress = b_.op("Min", {since / length, one()});
    const double low = schedule.final_factor;
    if (schedule.kind == "linear") return 1.0 - (1.0 - low) * progress;
    return low + (1.0 - low) * 0.5 * (b_.op("Cos", {progress * M_PI}) + 1.0);
  }

  Expr one() { return b_.scalar(DType::kF32, 1.0); }

  /// The gradients, taken from the outputs of the step, in the order of the weights.
  std::vector<Weight> take_gradients() {
    std::vector<ValueId> kept;
    std::vector<Weight> weights;
    for (ValueId output : graph_.outputs()) {
      const std::string& name = graph_.value(output).name;
      if (!name.starts_with(kGradientPrefix)) {
        kept.push_back(output);
        continue;
      }
      weights.push_back({graph_.find(name.substr(kGradientPrefix.size())), b_.value(output)});
    }
    graph_.set_outputs(graph_.main(), std::move(kept));
    return weights;
  }

  /// Scales all gradients by min(1, clip_norm / (norm + 1e-6)), PyTorch's rule, and reports the
  /// norm.
  void clip(std::vector<Weight>& weights) {
    if (options_.clip_norm <= 0) return;
    std::vector<Expr> gradients;
    for (const Weight& weight : weights) gradients.push_back(weight.gradient);
    const Expr norm = b_.ops("GlobalNorm", gradients, 1, {}, kHalfnoteDomain)[0];
    graph_.rename(norm.id, graph_.unique_name(kGradientNorm));
    graph_.add_output(graph_.main(), norm.id);
    const Expr ratio = static_cast<double>(options_.clip_norm) / (norm + 1e-6);
    const Expr factor = b_.op("Min", {ratio, one()});
    for (Weight& weight : weights) {
      weight.gradient = weight.gradient * b_.cast(factor, weight.gradient.dtype());
    }
  }

  void update(const OptimizerForm& form, const Weight& weight, Expr rate, Expr step) {
    const std::string name = graph_.value(weight.value).name;
    const ValueType type = graph_.value(weight.value).type;
    b_.set_origin(name);
    Attributes attributes = form.attributes;
    const auto [decay, factor] = group_of(name, type.rank());
    attributes.set("weight_decay", decay);
    std::vector<Expr> inputs = {b_.value(weight.value), weight.gradient};
    std::vector<ValueId> states = {weight.value};
    for (const auto& slot : optimizer_states(options_, concrete(*type.shape))) {
      if (!slot) {
        inputs.push_back(b_.none());
        continue;
      }
      const ValueId state = graph_.add_initializer(
          name + "." + std::string(slot->name), Tensor::full(type.dtype, slot->shape, slot->first));
      states.push_back(state);
      inputs.push_back(b_.value(state));
    }
    Expr lr = factor == 1.0f ? rate : rate * static_cast<double>(factor);
    inputs.push_back(b_.cast(lr, type.dtype));
    if (form.reads_step) inputs.push_back(step);
    const auto results = b_.ops(form.op, inputs, static_cast<int>(states.size()),
                                std::move(attributes), kHalfnoteDomain);
    for (size_t i = 0; i < states.size(); ++i) {
      graph_.rename(results[i].id, graph_.unique_name(graph_.value(states[i]).name + ".next"));
      graph_.add_state(states[i], results[i].id, i == 0 ? StateKind::kWeight : StateKind::kMoment);
    }
  }

  /// Weight decay and lr factor of a parameter: the first group that matches, else the defaults.
  std::pair<float, float> group_of(const std::string& name, int rank) {
    matched_.resize(options_.groups.size());
    for (size_t i = 0; i < options_.groups.size(); ++i) {
      const ParameterGroup& group = options_.groups[i];
      if (!names_.matches(name, RE2(group.pattern))) continue;
      matched_[i] = true;
      return {group.weight_decay.value_or(options_.weight_decay), group.lr_factor.value_or(1.0f)};
    }
    if (options_.no_decay_on_1d && rank <= 1) return {0.0f, 1.0f};
    return {options_.weight_decay, 1.0f};
  }

  void check_groups() {
    for (size_t i = 0; i < options_.groups.size(); ++i) {
      if (matched_[i]) continue;
      const std::string key = "optimizer.group[" + std::to_string(i) + "].pattern";
      throw SettingError(key, {"{" + key + "} matches no parameter of its own",
                               "a pattern that matches a trainable initializer",
                               "\"" + options_.groups[i].pattern + "\"",
                               "patterns match the whole name; an earlier group may take all that "
                               "this one matches"})
          .named(all_);
    }
  }

  Graph& graph_;
  const CompileOptions& all_;
  const Optimizer& options_;
  Builder b_;
  const ParameterNames names_;
  std::vector<bool> matched_;
  const bool frozen_, named_;  // the user froze weights, or named those to train
};

}  // namespace

bool append_optimizer(Model& model, PassContext& context) {
  TrainingStep* step = find_step(model, kStepName);
  if (step == nullptr || context.options.train.optimizer.kind == "none") return false;
  if (find_state(step->graph, kAppliedStep)) return false;  // done before
  with_names(context.options, [&] { check_optimizer(context.options.train.optimizer); });
  OptimizerBuilder(step->graph, ParameterNames(model), context).run();
  return true;
}

}  // namespace halfnote
