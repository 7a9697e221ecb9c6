#include "passes/precision/values/masks.h"

#include <algorithm>
#include <set>

#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"

namespace halfnote {
namespace {

/// The ways from an input to those who read it.
class Ways {
 public:
  explicit Ways(const Graph& graph) : graph_(graph) {}

  /// Does each of them end in a softmax, and one at least?
  bool lead_to_softmax(ValueId value) {
    if (!seen_.insert(value.index).second) return true;
    const auto uses = graph_.uses(value);
    return std::ranges::all_of(uses, [&](const Use& use) { return is_harmless(use); });
  }
  bool found() const { return found_; }

 private:
  bool is_harmless(const Use& use) {
    if (!use.by_node() || graph_.node(use.node()).region != graph_.main()) return false;
    const Node& node = graph_.node(use.node());
    const bool standard = node.domain.empty();
    if (reads_shape_only(node)) return true;
    if (is_softmax(node)) return found_ = true;
    if (standard && node.op == "Attention" && use.slot == 3) return found_ = true;
    if (standard && node.op == "Sub" && use.slot != 0) return false;
    const OperatorRow* row = find_operator(node);
    const bool sum = standard && (node.op == "Add" || node.op == "Sub");
    const bool moves = row != nullptr && row->precision == PrecisionClass::kClear &&
                       (row->scale == ScaleRule::kSame || row->scale == ScaleRule::kFirst);
    if (!sum && !moves) return false;
    return std::ranges::all_of(graph_.outputs(use.node()), [&](ValueId output) {
      return output.valid() && lead_to_softmax(output);
    });
  }

  const Graph& graph_;
  std::set<uint32_t> seen_;
  bool found_ = false;
};

}  // namespace

FedValues::FedValues(const Graph& graph)
    : fed_(graph.value_count(), false),
      data_(graph.value_count(), false),
      constant_(graph.value_count(), false) {
  for (ValueId input : graph.inputs()) fed_[input.index] = is_float_value(graph, input);
  data_ = fed_;
  for (uint32_t i = 0; i < graph.region_count(); ++i) {
    for (ValueId value : graph.initializers(RegionId{i})) {
      constant_[value.index] = graph.constant(value) != nullptr;
    }
  }
  for (NodeId node : graph.all_nodes()) {
    const OperatorRow* row = find_operator(graph.node(node));
    if (row == nullptr || row->precision == PrecisionClass::kAllow) continue;
    if (row->purity != Purity::kPure || !graph.subgraphs(node).empty()) continue;
    bool fed = false, data = false, constant = true, other = false, floats = false;
    for (ValueId input : graph.inputs(node)) {
      if (!is_float_value(graph, input)) continue;
      floats = true;
      fed |= has(input);
      data |= data_[input.index];
      constant &= constant_[input.index];
      other |= !has(input) && !constant_[input.index];
    }
    // A Cast of an integer or a bool mask.
    const ValueId first = graph.input(node, 0);
    if (!floats && first.valid() && graph.constant(first) == nullptr) {
      fed = true;
      data = graph.value(first).type.dtype != DType::kBool;
      constant = false;
    }
    for (ValueId output : graph.outputs(node)) {
      if (!is_float_value(graph, output)) continue;
      fed_[output.index] = fed && !other;
      data_[output.index] = data && !other;
      constant_[output.index] = constant;
    }
  }
}

bool FedValues::adds(const Graph& graph, NodeId node, const std::vector<bool>& which) const {
  const OperatorRow* row = find_operator(graph.node(node));
  if (row == nullptr || row->scale != ScaleRule::kSame) return false;
  bool fed = false, other = false;
  for (ValueId input : graph.inputs(node)) {
    if (!is_float_value(graph, input)) continue;
    fed |= input.index < which.size() && which[input.index];
    other |= !has(input) && !constant_[input.index];
  }
  return fed && other;
}

bool FedValues::are_read_by(const Graph& graph, NodeId node, const std::vector<bool>& low) const {
  bool reads = false;
  for (const ValueId input : graph.inputs(node)) {
    if (!input.valid()) continue;
    const Value& value = graph.value(input);
    if (value.producer.valid() && low[value.producer.index]) return false;
    reads |= has(input) && value.type.dtype == DType::kF32;
  }
  return reads;
}

bool is_softmax(const Node& node) { return is_op(node, "Softmax") || is_op(node, "LogSoftmax"); }

bool is_mask_of_scores(const Graph& graph, ValueId input) {
  Ways ways(graph);
  return ways.lead_to_softmax(input) && ways.found();
}

}  // namespace halfnote
