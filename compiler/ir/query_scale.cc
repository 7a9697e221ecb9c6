// The question "does any path scale twice?". It is answered without the operator table, from
// products and quotients with the loss scale alone, so that it checks the passes from the outside.
#include <algorithm>
#include <cstdlib>

#include "compiler/ir/query.h"

namespace halfnote {
namespace {

/// What is known of a value: the power of S in it, and whether it is S itself (times a constant).
struct Scale {
  int power = 0;
  bool pure = false;
  NodeId from;  // the producer of the operand that brought the power in
};

class ScaleWalk {
 public:
  ScaleWalk(const Graph& graph, std::string_view loss_scale)
      : graph_(graph), scales_(graph.value_count()) {
    for (uint32_t i = 0; i < graph.value_count(); ++i) {
      const Value& value = graph.value(ValueId{i});
      if (!value.alive || value.kind == ValueKind::kResult) continue;
      const bool named = value.name == loss_scale;
      scales_[i].power = named ? 1 : value.scale_power;
      scales_[i].pure = named || (value.scale_power != 0 && !is_accumulator(ValueId{i}) &&
                                  value.kind == ValueKind::kInitializer);
    }
  }

  std::optional<ScaleFault> run() {
    for (NodeId node : graph_.all_nodes()) {
      const Scale result = combine(node);
      for (ValueId output : graph_.outputs(node)) {
        if (!output.valid()) continue;
        set(output, node, result);
        if (auto fault = check(output)) return fault;
      }
    }
    return std::nullopt;
  }

 private:
  bool is_accumulator(ValueId id) const {
    const auto state = graph_.state_of(id);
    return state && graph_.states()[*state].kind == StateKind::kAccumulator;
  }

  Scale scale_of(ValueId id) const { return id.valid() ? scales_[id.index] : Scale{}; }

  /// Moves its operand without changing what it says of S.
  bool is_transparent(NodeId id) const {
    for (std::string_view op : {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Expand"}) {
      if (is_op(graph_, id, op)) return true;
    }
    return false;
  }

  void set(ValueId output, NodeId node, Scale result) {
    const Value& value = graph_.value(output);
    if (!graph_.subgraphs(node).empty()) result = {value.scale_power, false, NodeId{}};
    // A bool or an integer (is it finite? how many?) carries no scale.
    if (value.type.is_tensor() && value.type.dtype != DType::kUndefined &&
        !is_float(value.type.dtype)) {
      result = {};
    }
    scales_[output.index] = result;
  }

  Scale combine(NodeId node) const {
    const ValueId a = graph_.input(node, 0), b = graph_.input(node, 1);
    const Scale x = scale_of(a), y = scale_of(b);
    const auto source = [&](ValueId id) { return producer(graph_, id); };
    if (is_transparent(node)) return {x.power, x.pure, source(a)};
    if (is_op(graph_, node, "Reciprocal") && x.pure) return {-x.power, true, source(a)};
    if (is_op(graph_, node, "Mul") && (x.pure || y.pure)) {
      const bool still_pure = (x.pure || graph_.constant(a)) && (y.pure || graph_.constant(b));
      return {x.power + y.power, still_pure, source(x.pure ? b : a)};
    }
    if (is_op(graph_, node, "Div") && (x.pure || y.pure)) {
      const bool still_pure = (x.pure || graph_.constant(a)) && (y.pure || graph_.constant(b));
      return {x.power - y.power, still_pure, source(y.pure ? a : b)};
    }
    return strongest(node);
  }

  /// The power that is farthest from 0 among the operands: no op but those above takes it away.
  Scale strongest(NodeId node) const {
    Scale result;
    for (ValueId input : graph_.inputs(node)) {
      const Scale scale = scale_of(input);
      if (std::abs(scale.power) > std::abs(result.power)) {
        result = {scale.power, false, producer(graph_, input)};
      }
    }
    return result;
  }

  std::optional<ScaleFault> check(ValueId id) const {
    const Scale scale = scales_[id.index];
    const int noted = graph_.value(id).scale_power;
    const bool noted_twice = std::abs(noted) > 1;
    const bool bad = std::abs(scale.power) > 1 || (scale.power < 0 && !scale.pure);
    if (!noted_twice && !bad) return std::nullopt;
    ScaleFault fault;
    fault.value = id;
    fault.power = bad ? scale.power : noted;
    fault.path = path_to(id);
    const std::string what = fault.power > 0 ? "scaled more than once" : "unscaled once too often";
    fault.text = "value \"" + graph_.value(id).name + "\" is " + what + " (S^" +
                 std::to_string(fault.power) + "), by way of";
    for (NodeId node : fault.path) {
      const Node& data = graph_.node(node);
      fault.text += " " + op_name(data) + (data.name.empty() ? "" : " \"" + data.name + "\"");
    }
    return fault;
  }

  /// Backwards along the operands that brought the power in.
  std::vector<NodeId> path_to(ValueId id) const {
    std::vector<NodeId> path;
    for (NodeId node = producer(graph_, id); node.valid();) {
      path.push_back(node);
      const ValueId output = graph_.output(node);
      node = output.valid() ? scales_[output.index].from : NodeId{};
      if (node.valid() && !touches_scale(node)) break;
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

  bool touches_scale(NodeId node) const {
    for (ValueId input : graph_.inputs(node)) {
      if (scale_of(input).power != 0) return true;
    }
    return false;
  }

  const Graph& graph_;
  std::vector<Scale> scales_;
};

}  // namespace

std::optional<ScaleFault> find_scale_fault(const Graph& graph, std::string_view loss_scale) {
  return ScaleWalk(graph, loss_scale).run();
}

}  // namespace halfnote
