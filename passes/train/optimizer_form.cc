#include "passes/train/optimizer_form.h"

#include "passes/settings.h"

namespace halfnote {
namespace {

using States = std::vector<std::optional<OptimizerState>>;

Attributes no_attributes(const Optimizer&) { return {}; }

Attributes momentum(const Optimizer& o) {
  return {{"momentum", o.momentum.value_or(0.9f)},
          {"dampening", o.dampening},
          {"nesterov", int64_t{o.kind == "nesterov"}}};
}

/// The betas and epsilon of Adam and its kin; beta2 and epsilon default to the kind's own.
Attributes betas(const Optimizer& o, float beta2, float epsilon) {
  return {{"beta1", o.beta1},
          {"beta2", o.beta2.value_or(beta2)},
          {"epsilon", o.epsilon.value_or(epsilon)}};
}

Attributes adam(const Optimizer& o) { return betas(o, 0.999f, 1e-8f); }

/// PyTorch's (adam_mode 0), or that of Hugging Face and ONNX Runtime (1).
Attributes adam_w(const Optimizer& o) {
  const bool other = o.kind == "hf_adamw";
  Attributes attributes = betas(o, 0.999f, other ? 1e-6f : 1e-8f);
  if (other) attributes.set("adam_mode", int64_t{1});
  if (!o.correct_bias) attributes.set("correct_bias", int64_t{0});
  return attributes;
}

/// That of the paper (lamb_mode 0), or DeepSpeed's (1).
Attributes lamb(const Optimizer& o) {
  Attributes attributes = betas(o, 0.999f, 1e-6f);
  if (o.kind == "deepspeed_lamb") attributes.set("lamb_mode", int64_t{1});
  attributes.set("min_ratio", o.min_ratio);
  attributes.set("max_ratio", o.max_ratio);
  return attributes;
}

Attributes lion(const Optimizer& o) {
  return {{"beta1", o.beta1}, {"beta2", o.beta2.value_or(0.99f)}};
}

Attributes adagrad(const Optimizer& o) {
  return {{"epsilon", o.epsilon.value_or(1e-10f)}, {"lr_decay", o.lr_decay}};
}

Attributes rmsprop(const Optimizer& o) {
  return {{"alpha", o.alpha},
          {"epsilon", o.epsilon.value_or(1e-8f)},
          {"momentum", o.momentum.value_or(0)},
          {"centered", int64_t{o.centered}}};
}

Attributes adafactor(const Optimizer& o) {
  return {{"decay_rate", o.decay_rate},
          {"epsilon", o.epsilon.value_or(1e-30f)},
          {"epsilon_param", o.epsilon_param},
          {"clip_threshold", o.clip_threshold},
          {"relative_step", int64_t{o.relative_step}},
          {"scale_parameter", int64_t{o.scale_parameter}}};
}

OptimizerState state(std::string_view name, const Shape& shape, float first = 0) {
  return {name, shape, first};
}

States no_states(const Optimizer&, const Shape&) { return {}; }
States velocity(const Optimizer&, const Shape& s) { return {state("velocity", s)}; }
States m_only(const Optimizer&, const Shape& s) { return {state("m", s)}; }
States m_and_v(const Optimizer&, const Shape& s) { return {state("m", s), state("v", s)}; }
States sum(const Optimizer& o, const Shape& s) { return {state("sum", s, o.initial_accumulator)}; }

States rmsprop_states(const Optimizer& o, const Shape& s) {
  States states = {state("square_avg", s), std::nullopt, std::nullopt};
  if (o.centered) states[1] = state("grad_avg", s);
  if (o.momentum.value_or(0) != 0) states[2] = state("velocity", s);
  return states;
}

States adafactor_states(const Optimizer&, const Shape& s) {
  if (s.size() < 2) return {state("v", s), std::nullopt};
  Shape row(s.begin(), s.end() - 1), column = row;
  column.back() = s.back();
  return {state("v_row", row), state("v_col", column)};
}

struct FormRow {
  std::string_view kind, op;
  Attributes (*attributes)(const Optimizer&);
  States (*states)(const Optimizer&, const Shape&);
  bool reads_step = true;
};

constexpr FormRow kForms[] = {
    {"sgd", "SGD", no_attributes, no_states, false},
    {"momentum", "Momentum", momentum, velocity},
    {"nesterov", "Momentum", momentum, velocity},
    {"adam", "Adam", adam, m_and_v},
    {"adamw", "AdamW", adam_w, m_and_v},
    {"hf_adamw", "AdamW", adam_w, m_and_v},
    {"adagrad", "Adagrad", adagrad, sum},
    {"rmsprop", "RMSprop", rmsprop, rmsprop_states, false},
    {"lamb", "Lamb", lamb, m_and_v},
    {"deepspeed_lamb", "Lamb", lamb, m_and_v},
    {"lion", "Lion", lion, m_only, false},
    {"adafactor", "Adafactor", adafactor, adafactor_states},
};

const FormRow& form_row(const std::string& kind) {
  std::vector<std::string> kinds;
  std::string list;
  for (const FormRow& row : kForms) {
    if (row.kind == kind) return row;
    kinds.emplace_back(row.kind);
    list += kinds.back() + ", ";
  }
  kinds.emplace_back("none");
  std::string lowered = kind;
  for (char& c : lowered) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const std::string_view near = closest(lowered, kinds);
  throw SettingError(
      "optimizer.kind",
      {"{optimizer.kind} names no optimizer", list + "none", "\"" + kind + "\"",
       near.empty() ? "see halfnote compile --help" : "did you mean " + std::string(near) + "?"});
}

}  // namespace

OptimizerForm optimizer_form(const Optimizer& options) {
  const FormRow& row = form_row(options.kind);
  return {row.op, row.attributes(options), row.reads_step};
}

std::vector<std::optional<OptimizerState>> optimizer_states(const Optimizer& options,
                                                            const Shape& shape) {
  return form_row(options.kind).states(options, shape);
}

}  // namespace halfnote
