#include "passes/canonical/infer_shapes.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"
#include "compiler/ir/verify.h"
#include "compiler/onnx/schema.h"
#include "compiler/ops/contract/contract.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/control/conditions.h"
#include "passes/canonical/control/flatten_control.h"
#include "passes/canonical/fold_constants.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

Place place_of(const Graph& graph, NodeId id) {
  return {.node = graph.label(id), .op = op_name(graph.node(id))};
}

void set_types(Graph& graph, NodeId node, const std::vector<ValueType>& types) {
  const auto outputs = graph.outputs(node);
  for (size_t i = 0; i < outputs.size() && i < types.size(); ++i) {
    if (outputs[i].valid()) graph.value(outputs[i]).type = types[i];
  }
}

/// Throws what the contract says of a loss that its schema refuses: it names the operand that does
/// not fit, and what helps.
void tell_by_contract(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (!node.domain.empty() || node.op != "NegativeLogLikelihoodLoss") return;
  try {
    check_contract(graph, id);
  } catch (Error& error) {
    throw error.within(place_of(graph, id));
  }
}

void add_results(const Graph& graph, NodeId node, std::vector<ValueId>& values) {
  for (ValueId output : graph.outputs(node)) {
    if (output.valid()) values.push_back(output);
  }
  for (RegionId region : graph.subgraphs(node)) {
    values.insert(values.end(), graph.inputs(region).begin(), graph.inputs(region).end());
    for (NodeId inner : graph.nodes(region)) add_results(graph, inner, values);
  }
}

void infer_or_choose(Graph& graph, NodeId node, PassContext& context);

void infer_region(Graph& graph, RegionId region, PassContext& context) {
  for (NodeId node : graph.nodes(region)) infer_or_choose(graph, node, context);
}

/// Computes what is constant before `node`, of which a condition may be made.
void fold_before(Graph& graph, NodeId node, PassContext& context) {
  Folder folder(graph, context);
  for (NodeId earlier : graph.nodes(graph.node(node).region)) {
    if (earlier == node) return;
    if (graph.node(earlier).alive) folder.visit(earlier);
  }
}

/// What can be done where the bodies of `node` do not type: an If whose condition is known becomes
/// the branch that runs; else the same is tried within. Says whether it became that branch.
bool choose_branch(Graph& graph, NodeId node, PassContext& context) {
  fold_before(graph, node, context);
  const std::optional<RegionId> dead = Conditions(graph, context).dead_branch(node);
  for (RegionId region : graph.subgraphs(node)) {
    if (region != dead) infer_region(graph, region, context);
  }
  if (!dead) return false;
  const NodeId before = graph.prev(node);
  const NodeId after = graph.next(node);
  const RegionId region = graph.node(node).region;
  if (!take_branch(graph, node, context)) return false;
  NodeId copy = before.valid() ? graph.next(before) : graph.first(region);
  for (; copy != after; copy = graph.next(copy)) infer_node(graph, copy);
  return true;
}

/// infer_node(), but of an If whose operands fit only the branch that runs: sizes decide which one
/// it is, and the other need not fit them.
void infer_or_choose(Graph& graph, NodeId node, PassContext& context) {
  try {
    infer_node(graph, node);
  } catch (const Error&) {
    if (graph.subgraphs(node).empty()) throw;
    if (!choose_branch(graph, node, context)) infer_node(graph, node);
  }
}

/// Takes away the shapes that inner results of the node are declared to have, of which there must
/// be one; what the graph returns is what its user was told.
bool forget_shapes(Graph& graph, NodeId node) {
  bool any = false;
  for (ValueId output : graph.outputs(node)) {
    if (!output.valid() || !graph.value(output).type.shape) continue;
    const bool inner =
        std::ranges::all_of(graph.uses(output), [](const Use& use) { return use.by_node(); });
    if (!inner) continue;
    graph.value(output).type.shape.reset();
    any = true;
  }
  return any;
}

/// Do both have a shape, of other ranks or known sizes?
bool contradict(const ValueType& a, const ValueType& b) {
  if (!a.shape || !b.shape) return false;
  return !std::ranges::equal(*a.shape, *b.shape, [](const Dim& x, const Dim& y) {
    return !x.known() || !y.known() || x.value == y.value;
  });
}

/// infer_or_choose(), but where all that does not fit is the shape that the file declares for an
/// inner result, it is what the operands say: some exporters declare what PyTorch has there, not
/// what the ONNX op gives (the final states of an LSTM). Says whether that was so: what the file
/// declares of values that follow is as doubtful.
bool infer_or_redeclare(Graph& graph, NodeId node, PassContext& context) {
  std::vector<ValueType> declared;
  for (ValueId output : graph.outputs(node)) {
    declared.push_back(output.valid() ? graph.value(output).type : ValueType());
  }
  try {
    infer_or_choose(graph, node, context);
    return false;
  } catch (const Error&) {
    const bool retry = graph.subgraphs(node).empty() && forget_shapes(graph, node);
    if (!retry) throw;
    try {
      infer_node(graph, node);
    } catch (const Error&) {
      set_types(graph, node, declared);
      infer_node(graph, node);  // to say what it says of what is declared
    }
  }
  const auto outputs = graph.outputs(node);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].valid()) continue;
    const Value& value = graph.value(outputs[i]);
    if (!contradict(declared[i], value.type)) continue;
    context.warn(graph.label(node), "result \"" + value.name + "\" is declared " +
                                        to_string(declared[i]) + ", but is " +
                                        to_string(value.type) + ": the declaration is ignored");
  }
  return true;
}

/// The op-set whose schema says what the op gives: an op younger than ours stands in models that
/// are not lifted yet, and where a device has a kernel for it.
int64_t opset_of(const OperatorRow* row) {
  static const std::vector<const OperatorRow*> younger = [] {
    std::vector<const OperatorRow*> rows;
    for (const OperatorRow& known : operator_rows()) {
      if (known.domain.empty() && !has_schema("", known.name)) rows.push_back(&known);
    }
    return rows;
  }();
  return std::ranges::find(younger, row) == younger.end() ? kOpsetVersion : newest_opset("");
}

}  // namespace

void infer_node(Graph& graph, NodeId node) {
  const Node& data = graph.node(node);
  const OperatorRow* row = find_operator(data);
  try {
    const bool ruled = row != nullptr && row->infer != nullptr;
    // A rule of an ONNX op knows more than its schema does.
    if (!ruled || row->domain.empty()) {
      infer_with_schema(graph, node, opset_of(row), infer_node);
    }
    if (ruled) set_types(graph, node, row->infer(graph, node));
  } catch (Error& error) {
    tell_by_contract(graph, node);
    throw error.within(place_of(graph, node));
  }
}

std::vector<ValueType> types_within(const Graph& graph, NodeId node) {
  std::vector<ValueId> values;
  add_results(graph, node, values);
  std::vector<ValueType> types;
  for (ValueId value : values) types.push_back(graph.value(value).type);
  return types;
}

bool infer_graph(Graph& graph) {
  bool changed = false;
  for (NodeId node : graph.all_nodes()) {
    const std::vector<ValueType> before = types_within(graph, node);
    infer_node(graph, node);
    changed |= types_within(graph, node) != before;
  }
  return changed;
}

/// The pass: types for every value. Exact. A shape that is declared for an inner value of the main
/// graph, and is not what its node gives, is replaced, with a warning. Leaves alone: what is
/// declared and as precise already; of control flow all but Ifs that have a branch which cannot run
/// and does not type.
bool infer_shapes(Graph& graph, PassContext& context) {
  bool changed = false;
  std::vector<bool> doubtful(graph.value_count(), false);  // what follows of a wrong declaration
  for (NodeId node : graph.all_nodes()) {
    if (!graph.node(node).alive) continue;  // stood in an If that is gone
    const std::vector<ValueType> before = types_within(graph, node);
    const bool follows = std::ranges::any_of(graph.inputs(node), [&](ValueId v) {
      return v.valid() && v.index < doubtful.size() && doubtful[v.index];
    });
    if (follows && graph.subgraphs(node).empty()) forget_shapes(graph, node);
    if (infer_or_redeclare(graph, node, context) || follows) {
      for (ValueId output : graph.outputs(node)) {
        if (output.valid() && output.index < doubtful.size()) doubtful[output.index] = true;
      }
    }
    changed |= !graph.node(node).alive || types_within(graph, node) != before;
  }
  check_state_types(graph);
  return changed;
}

}  // namespace halfnote
