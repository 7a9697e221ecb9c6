#include "tests/random/wide.h"

#include <algorithm>
#include <cmath>

#include "compiler/ir/walk.h"
#include "passes/train/step.h"
#include "tests/random/dice.h"
#include "tests/random/walk.h"

namespace halfnote::random {
namespace {

double unit_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1p-9;
    case DType::kF16:
      return 0x1p-12;
    case DType::kF32:
      return 0x1p-25;
    default:
      return 0;
  }
}

/// What rounding may add to a number near 0: half the spacing of the smallest ones.
double floor_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 0x1p-134;
    case DType::kF16:
      return 0x1p-25;
    case DType::kF32:
      return 0x1p-150;
    default:
      return 0;
  }
}

bool narrow(DType dtype) { return unit_of(dtype) > 0; }

Attribute widened(const std::string& name, const Attribute& attribute) {
  const auto* number = std::get_if<int64_t>(&attribute);
  const bool names_type = name == "to" || name == "dtype" || name == "out_dtype";
  if (number != nullptr && names_type && narrow(static_cast<DType>(*number))) {
    return static_cast<int64_t>(DType::kF64);
  }
  const auto* tensor = std::get_if<Tensor>(&attribute);
  if (tensor != nullptr && narrow(tensor->dtype())) return tensor->cast_to(DType::kF64);
  return attribute;
}

void widen(Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  Attributes attributes;
  for (const auto& [name, attribute] : node.attributes) {
    attributes.set(name, widened(name, attribute));
  }
  node.attributes = std::move(attributes);
}

/// Only the loss and the gradients are outputs, only what they need stays.
void cut(Graph& graph) {
  while (!graph.states().empty()) graph.remove_state(0);
  std::vector<ValueId> outputs;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const ValueId id = graph.outputs()[i];
    if (i == 0 || graph.value(id).name.starts_with(kGradientPrefix)) outputs.push_back(id);
  }
  graph.set_outputs(graph.main(), outputs);
  std::vector<NodeId> nodes = graph.nodes();
  for (size_t i = nodes.size(); i > 0; --i) {
    bool used = false;
    for (ValueId output : graph.outputs(nodes[i - 1])) {
      used |= output.valid() && graph.has_uses(output);
    }
    if (!used) graph.remove(nodes[i - 1]);
  }
}

/// Operands that are numbers for the operator, not data: f32 whatever the data are.
bool is_setting(const Graph& graph, ValueId id) {
  for (const Use& use : graph.uses(id)) {
    if (!use.by_node() || graph.node(use.node()).op != "Resize" || use.slot == 0) return false;
  }
  return graph.has_uses(id);
}

double largest(const Tensor& tensor) {
  double most = 0;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    most = std::max(most, std::abs(tensor.at_as_double(i)));
  }
  return most;
}

/// What an operator rounds inside, where that is more than the rounding of its operands and result:
/// a gradient of softmax is a difference of what is as large as dY, (1 − p)·dY at a label, where p
/// may be near 1; that of a normalization one of scale·dY/σ, where 1/σ is at most 4 (epsilon is
/// 1/16) and scales are below 2.
double inner_size(const Node& node, std::span<const Tensor> operands) {
  static constexpr std::string_view kDifferences[] = {"SoftmaxCrossEntropyLossGrad",
                                                      "LogSoftmaxGrad", "SoftmaxGrad"};
  static constexpr std::string_view kNormalizations[] = {
      "BatchNormalizationGrad", "LayerNormalizationGrad", "RMSNormalizationGrad",
      "GroupNormalizationGrad"};
  if (std::ranges::find(kDifferences, node.op.str()) != std::end(kDifferences)) {
    return largest(operands[0]);
  }
  const bool is_one =
      std::ranges::find(kNormalizations, node.op.str()) != std::end(kNormalizations);
  return is_one ? 8 * largest(operands[0]) : 0;
}

/// The values that follow from constants alone, which a compiler may compute and round; what bodies
/// of control flow give is left out.
std::vector<bool> constants_of(const Graph& graph) {
  std::vector<bool> constants(graph.value_count());
  for (uint32_t i = 0; i < graph.value_count(); ++i) {
    constants[i] = graph.constant(ValueId{i}) != nullptr;
  }
  for (NodeId id : graph.all_nodes()) {
    if (!graph.subgraphs(id).empty()) continue;
    const bool follows = std::ranges::all_of(
        graph.inputs(id), [&](ValueId input) { return !input.valid() || constants[input.index]; });
    for (ValueId output : graph.outputs(id)) {
      if (output.valid()) constants[output.index] = follows;
    }
  }
  return constants;
}

/// Is the result one of the operands as it is? A gradient asks which one.
bool selects(const Node& node) {
  static constexpr std::string_view kSelect[] = {"GlobalMaxPool", "Max",       "MaxPool", "Min",
                                                 "ReduceMax",     "ReduceMin", "TopK"};
  return std::ranges::find(kSelect, node.op.str()) != std::end(kSelect);
}

/// Floats that count: casts of bools and integers, what moves them or adds them up. They are exact
/// in every type, and something asks whether they are 0.
std::vector<bool> counts_of(const Graph& graph) {
  static constexpr std::string_view kKeep[] = {
      "Add",       "Expand",  "Gather",          "GatherElements", "GatherND",
      "ReduceSum", "Reshape", "ScatterElements", "ScatterND",      "Slice",
      "Squeeze",   "Sub",     "Transpose",       "Unsqueeze"};
  std::vector<bool> counts(graph.value_count());
  for (NodeId id : graph.all_nodes()) {
    const Node& node = graph.node(id);
    const bool keeps = std::ranges::find(kKeep, node.op.str()) != std::end(kKeep) &&
                       node.attributes.get_string("reduction", "add") == "add";
    if (!keeps && node.op != "Cast") continue;
    const bool exact = std::ranges::all_of(graph.inputs(id), [&](ValueId input) {
      return !input.valid() || !is_float(graph.value(input).type.dtype) || counts[input.index];
    });
    for (ValueId output : graph.outputs(id)) {
      if (output.valid()) counts[output.index] = exact;
    }
  }
  return counts;
}

Tensor noisy(const Tensor& tensor, DType type, const Noise& noise, uint64_t salt, double inner) {
  if (noise.amount == 0 || !narrow(type)) return tensor;
  Tensor moved = tensor.deep_copy();
  uint64_t state = mix(noise.seed * 0x9e3779b97f4a7c15u + salt);
  for (double& x : moved.mutable_data<double>()) {
    state = mix(state);
    const double dice = static_cast<double>(state >> 11) * 0x1p-52 - 1.0;
    x += dice * noise.amount * (unit_of(type) * (std::abs(x) + inner) + floor_of(type));
  }
  return moved;
}

}  // namespace

WideStep::WideStep(const Graph& step)
    : graph_(step), constants_(constants_of(step)), exact_(counts_of(step)) {
  cut(graph_);
  for (uint32_t i = 0; i < graph_.value_count(); ++i) {
    Value& value = graph_.value(ValueId{i});
    types_.push_back(value.type.dtype);
    if (value.kind == ValueKind::kInitializer && is_setting(graph_, ValueId{i})) continue;
    if (!narrow(value.type.dtype)) continue;
    value.type.dtype = DType::kF64;
    if (value.tensor.defined()) value.tensor = value.tensor.cast_to(DType::kF64);
  }
  for (NodeId id : graph_.all_nodes()) {
    widen(graph_, id);
    if (!selects(graph_.node(id))) continue;
    for (ValueId output : graph_.outputs(id)) {
      if (output.valid()) exact_[output.index] = true;
    }
  }
}

Numbers WideStep::run_all(const std::vector<Tensor>& inputs, const Noise& noise,
                          double* most_f16) const {
  std::vector<uint32_t> times(graph_.value_count());  // a body gives a value once a trip
  const auto moved = [&](ValueId id, const Tensor& tensor, bool constant, double inner) {
    if (most_f16 != nullptr && types_[id.index] == DType::kF16) {
      *most_f16 = std::max(*most_f16, largest(tensor));
    }
    const bool moves =
        (constant || !noise.constants_only) && tensor.dtype() == DType::kF64 && !exact_[id.index];
    if (!moves) return tensor;
    const uint64_t salt = id.index + (uint64_t{times[id.index]++} << 32);
    return noisy(tensor, types_[id.index], noise, salt, inner);
  };
  Walk walk(
      graph_,
      [&](ValueId id, std::span<const Tensor> operands, Tensor tensor) {
        const Node& node = graph_.node(graph_.value(id).producer);
        return moved(id, tensor, constants_[id.index], inner_size(node, operands));
      },
      [&](ValueId id, const Tensor& tensor) { return moved(id, tensor, true, 0); });
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& input = inputs[i];
    const Tensor wide = narrow(input.dtype()) ? input.cast_to(DType::kF64) : input;
    walk.set(graph_.inputs()[i], moved(graph_.inputs()[i], wide, false, 0));
  }
  for (ValueId id : graph_.initializers()) {
    walk.set(id, moved(id, graph_.value(id).tensor, true, 0));
  }
  walk.run(graph_.main());
  Numbers numbers;
  for (ValueId id : graph_.outputs()) {
    numbers[id == graph_.outputs()[0] ? "loss" : graph_.value(id).name] = walk.at(id);
  }
  return numbers;
}

Numbers WideStep::run(const std::vector<Tensor>& inputs, const Noise& noise) const {
  return run_all(inputs, noise, nullptr);
}

double WideStep::largest_f16(const std::vector<Tensor>& inputs) const {
  if (std::ranges::find(types_, DType::kF16) == types_.end()) return 0;
  double most = 0;
  run_all(inputs, {}, &most);
  return most;
}

std::map<std::string, std::vector<double>> spreads(const WideStep& step,
                                                   const std::vector<Tensor>& inputs,
                                                   const Noise& noise, int runs) {
  const Numbers exact = step.run(inputs);
  std::map<std::string, std::vector<double>> moved;
  for (const auto& [name, tensor] : exact) {
    moved[name].assign(static_cast<size_t>(tensor.size()), 0);
  }
  for (int k = 0; k < runs; ++k) {
    Noise now = noise;
    now.seed = noise.seed * 1000003 + static_cast<uint64_t>(k) + 1;
    for (const auto& [name, tensor] : step.run(inputs, now)) {
      const Tensor& centre = exact.at(name);
      for (int64_t i = 0; i < tensor.size(); ++i) {
        const double off = std::abs(tensor.at_as_double(i) - centre.at_as_double(i));
        double& most = moved[name][static_cast<size_t>(i)];
        most = std::isnan(off) ? INFINITY : std::max(most, off);
      }
    }
  }
  for (auto& [name, most] : moved) {
    const double top = most.empty() ? 0 : *std::max_element(most.begin(), most.end());
    for (double& x : most) x = std::max(x, 0.1 * top);
  }
  return moved;
}

}  // namespace halfnote::random
