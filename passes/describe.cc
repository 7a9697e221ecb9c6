// The settings of a compilation as one line of JSON, for the artifact's metadata: all that makes
// two artifacts of one model differ. Keys are those of the policy file (docs/policy.md).
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text/printable.h"
#include "passes/compile.h"
#include "passes/nesting.h"
#include "passes/train/optimizer_form.h"

namespace halfnote {
namespace {

using Json = nlohmann::ordered_json;

/// The number of settings that are floats as it was written: 0.001, not 0.0010000000474974513.
double as_written(float value) {
  if (!std::isfinite(value)) return value;
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  double number = 0;
  std::from_chars(text, end, number);
  return number;
}

/// as_written() for all numbers in `json`.
void shorten(Json& json) {
  if (json.is_structured()) {
    for (Json& part : json) shorten(part);
  } else if (json.is_number_float()) {
    const auto number = json.get<double>();
    const auto narrow = static_cast<float>(number);
    if (static_cast<double>(narrow) == number) json = as_written(narrow);
  }
}

Json scaler_json(const LossScaler& s) {
  return {{"preset", s.preset},
          {"dynamic", s.dynamic},
          {"init", s.init},
          {"up", s.up},
          {"down", s.down},
          {"interval", s.interval},
          {"warmup_interval", s.warmup_interval},
          {"hysteresis", s.hysteresis},
          {"refill", s.refill},
          {"first_window_extra", s.first_window_extra},
          {"publish_delay", s.publish_delay},
          {"min", s.min},
          {"max", s.max},
          {"on_floor", s.on_floor}};
}

Json groups_json(const std::vector<ParameterGroup>& groups) {
  Json list = Json::array();
  for (const ParameterGroup& group : groups) {
    Json one = {{"pattern", group.pattern}};
    if (group.weight_decay) one["weight_decay"] = *group.weight_decay;
    if (group.lr_factor) one["lr_factor"] = *group.lr_factor;
    list.push_back(std::move(one));
  }
  return list;
}

Json schedule_json(const Schedule& s) {
  Json json = {{"kind", s.kind},
               {"warmup", s.warmup},
               {"warmup_kind", s.warmup_kind},
               {"warmup_factor", s.warmup_factor},
               {"delay", s.delay},
               {"decay_start", s.decay_start},
               {"total", s.total},
               {"final_factor", s.final_factor},
               {"step_size", s.step_size},
               {"gamma", s.gamma}};
  if (s.slope != 0) json["slope"] = s.slope;
  if (s.staircase) json["staircase"] = true;
  if (s.zero_first) json["zero_first"] = true;
  return json;
}

Json optimizer_json(const Optimizer& o) {
  Json json = {{"kind", o.kind},
               {"lr", o.lr},
               {"dampening", o.dampening},
               {"beta1", o.beta1},
               {"weight_decay", o.weight_decay},
               {"correct_bias", o.correct_bias},
               {"alpha", o.alpha},
               {"centered", o.centered},
               {"lr_decay", o.lr_decay},
               {"initial_accumulator", o.initial_accumulator},
               {"min_ratio", o.min_ratio},
               {"max_ratio", o.max_ratio},
               {"decay_rate", o.decay_rate},
               {"clip_threshold", o.clip_threshold},
               {"epsilon_param", o.epsilon_param},
               {"relative_step", o.relative_step},
               {"scale_parameter", o.scale_parameter},
               {"clip_norm", o.clip_norm},
               {"no_decay_on_1d", o.no_decay_on_1d},
               {"schedule", schedule_json(o.schedule)}};
  // Without a number each kind has its own.
  const Attributes own = o.kind == "none" ? Attributes() : optimizer_form(o).attributes;
  const auto add = [&](const char* key, const std::optional<float>& given) {
    if (given || own.has(key)) json[key] = given.value_or(own.get_float(key, 0));
  };
  add("momentum", o.momentum);
  add("beta2", o.beta2);
  add("epsilon", o.epsilon);
  if (!o.groups.empty()) json["group"] = groups_json(o.groups);
  return json;
}

void add_train(Json& json, const TrainOptions& train) {
  if (!train.loss.empty()) json["loss"] = train.loss;
  if (!train.loss_outputs.empty()) json["loss_output"] = train.loss_outputs;
  if (!train.loss_input.empty()) json["loss_input"] = train.loss_input;
  if (!train.trainable.empty()) json["trainable"] = train.trainable;
  if (!train.frozen.empty()) json["freeze"] = train.frozen;
  if (!train.tied.empty()) json["tie"] = train.tied;
  json["force_training"] = train.force_training;
  json["optimizer"] = optimizer_json(train.optimizer);
  json["huber_delta"] = train.huber_delta;
  json["label_smoothing"] = train.label_smoothing;
  json["ignore_index"] = train.ignore_index;
  if (train.class_axis != 1) json["class_axis"] = train.class_axis;
  json["accumulation"] = train.accumulation;
  if (train.micro_batch > 0) json["micro_batch"] = train.micro_batch;
  json["seed"] = train.seed;
}

}  // namespace

std::string describe(const CompileOptions& options) {
  const Policy& policy = options.policy;
  Json json = {{"precision", short_name(policy.dtype)}};
  if (policy.dtype != DType::kF32) {
    if (!policy.like.empty()) json["like"] = policy.like;
    json["allow_ops"] = policy.allow_ops;
    json["fp32_ops"] = policy.fp32_ops;
    json["allow_nodes"] = policy.allow_nodes;
    json["fp32_nodes"] = policy.fp32_nodes;
    json["cost_refinement"] = policy.cost_refinement;
    json["pad"] = policy.pad;
  }
  if (policy.dtype == DType::kF16) json["loss_scale"] = scaler_json(policy.scaler);
  if (options.inference_only) {
    json["inference"] = true;
  } else {
    add_train(json, options.train);
  }
  if (!options.dims.empty()) json["dims"] = options.dims;
  if (!options.skip_passes.empty()) json["skipped_passes"] = options.skip_passes;
  shorten(json);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

namespace {

/// Reads a description that may come from anybody's file: what is of another type is not there.
class Description {
 public:
  explicit Description(Json json) : json_(std::move(json)) {}

  Description in(const char* key) const {
    const bool there = json_.is_object() && json_.contains(key) && json_[key].is_object();
    return Description(there ? json_[key] : Json::object());
  }
  std::string word(const char* key) const {
    if (!json_.is_object() || !json_.contains(key)) return "";
    const Json& value = json_[key];
    if (value.is_string()) return value.get<std::string>();
    std::string list;
    for (const Json& each : value.is_array() ? value : Json::array()) {
      if (each.is_string()) list += (list.empty() ? "" : " + ") + each.get<std::string>();
    }
    return list;
  }
  double number(const char* key, double otherwise = 0) const {
    const bool there = json_.is_object() && json_.contains(key) && json_[key].is_number();
    return there ? json_[key].get<double>() : otherwise;
  }
  /// `, lr 0.001`; nothing where the number is `usual`.
  std::string part(const char* key, const char* what, double usual) const {
    const double value = number(key, usual);
    return value == usual ? std::string() : fmt::format(", {} {:g}", what, value);
  }

 private:
  Json json_;
};

std::string loss_line(const Description& all) {
  const std::string inside = all.word("loss_output");
  if (!inside.empty()) return inside + ", in the graph";
  const std::string name = all.word("loss");
  if (name.empty()) return "";
  const bool labels = name == "cross_entropy" || name == "nll";
  return name + (labels ? all.part("label_smoothing", "label smoothing", 0) : "") +
         (labels ? all.part("ignore_index", "ignore index", -100) : "") +
         (labels ? all.part("class_axis", "class axis", 1) : "") +
         (name == "huber" ? all.part("huber_delta", "delta", 1) : "");
}

std::string schedule_line(const Description& schedule) {
  const std::string kind = schedule.word("kind");
  const double warmup = schedule.number("warmup");
  if (kind.empty() || (kind == "constant" && warmup == 0)) return "";
  const std::string how = kind == "step" ? schedule.part("step_size", "every so many steps", 0) +
                                               schedule.part("gamma", "gamma", 1)
                                         : schedule.part("total", "until step", 0);
  return kind + how + schedule.part("warmup", "warm-up", 0);
}

}  // namespace

std::string settings_text(std::string_view description) {
  if (json_nests_deeper(description)) return "";
  const Description all(Json::parse(description, nullptr, false));
  std::string text;
  const auto line = [&](const char* key, const std::string& value) {
    if (!value.empty()) text += fmt::format("{:<14} {}\n", key, printable(value));
  };
  const Description scaler = all.in("loss_scale"), optimizer = all.in("optimizer");
  const std::string preset = scaler.word("preset");
  line("precision", all.word("precision") + (preset.empty() ? "" : ", loss scale " + preset));
  line("loss", loss_line(all));
  const std::string kind = optimizer.word("kind");
  if (!kind.empty()) {
    line("optimizer", kind == "none"
                          ? kind
                          : fmt::format("{}, lr {:g}{}{}", kind, optimizer.number("lr"),
                                        optimizer.part("weight_decay", "weight decay", 0),
                                        optimizer.part("clip_norm", "clip", 0)) +
                                all.part("accumulation", "micro-batches", 1));
    line("schedule", schedule_line(optimizer.in("schedule")));
  }
  return text;
}

}  // namespace halfnote
