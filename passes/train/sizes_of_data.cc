#include "passes/train/sizes_of_data.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "compiler/onnx/schema.h"
#include "compiler/ops/operator.h"
#include "passes/exporters/module_names.h"
#include "passes/train/gradient_path.h"

namespace halfnote {
namespace {

constexpr const char* kInsteadOfSizes = "a constant, or what follows from shapes (Shape, Size)";
constexpr const char* kInsteadOfBags =
    "for EmbeddingBag with offsets: indices of one length a bag, as a tensor of two dims without "
    "offsets, or Embedding and a sum or mean with a mask";
constexpr const char* kInsteadOfBranches = "Where between results of one shape";

bool has_reduced(const Graph& graph, ValueId value) {
  const auto users = graph.users(value);
  return std::any_of(users.begin(), users.end(),
                     [&](NodeId user) { return graph.node(user).op.starts_with("Reduce"); });
}

/// Does the node cut out the indices of a bag, whose rows of a table are then reduced to one? The
/// newer exporter of PyTorch says so, the older one writes it like that.
bool cuts_bags(const Graph& graph, NodeId node) {
  if (is_of_class(graph.node(node), "EmbeddingBag")) return true;
  for (ValueId output : graph.outputs(node)) {
    if (!output.valid()) continue;
    for (NodeId user : graph.users(output)) {
      const bool looks_up = graph.node(user).op == "Gather" && graph.input(user, 1) == output;
      if (looks_up && has_reduced(graph, graph.output(user))) return true;
    }
  }
  return false;
}

/// What the schema calls an operand.
std::string operand_name(const Node& node, size_t slot) {
  for (const SchemaOp& op : all_schema_ops()) {
    if (op.domain != node.domain || op.name != node.op) continue;
    const SchemaVersion* version = op.in(kOpsetVersion);
    if (version != nullptr && slot < version->inputs.size()) return version->inputs[slot].name;
  }
  return std::to_string(slot);
}

/// Can two shapes never be the same, whatever the open dims are?
bool conflict(const ValueType& a, const ValueType& b) {
  if (!a.shape || !b.shape) return false;
  if (a.shape->size() != b.shape->size()) return true;
  for (size_t i = 0; i < a.shape->size(); ++i) {
    const Dim &x = (*a.shape)[i], &y = (*b.shape)[i];
    if (x.known() && y.known() && x.value != y.value) return true;
  }
  return false;
}

class Sizes {
 public:
  Sizes(const Graph& graph, const std::function<bool(NodeId)>& judged, UnsupportedOps& problems)
      : graph_(graph), judged_(judged), problems_(problems), of_data_(graph.value_count(), false) {}

  void run(std::span<const ValueId> ends) {
    for (ValueId input : graph_.inputs()) {
      of_data_[input.index] = true;
      add_symbols(input, bound_);
    }
    for (ValueId weight : trainable_initializers(graph_)) of_data_[weight.index] = true;
    const std::vector<NodeId> nodes = graph_.nodes();
    mark(nodes);
    const std::vector<bool> all(graph_.value_count(), true);
    judge(nodes_between(graph_, nodes, all, ends));
  }

 private:
  void add_symbols(ValueId value, std::set<std::string>& symbols) const {
    const ValueType& type = graph_.value(value).type;
    if (!type.is_tensor() || !type.shape) return;
    for (const Dim& dim : *type.shape) {
      if (!dim.known() && !dim.symbol.empty()) symbols.insert(dim.symbol);
    }
  }

  bool of_data(ValueId value) const { return value.valid() && of_data_[value.index]; }

  /// Follows the data through the nodes.
  void mark(const std::vector<NodeId>& nodes) {
    for (NodeId node : nodes) {
      const OperatorRow* row = find_operator(graph_.node(node));
      bool any = row != nullptr && row->purity != Purity::kPure;
      if (!any && reads_shapes_only(graph_.node(node))) continue;
      for (ValueId input : operands_of(graph_, node)) any |= of_data(input);
      for (RegionId body : graph_.subgraphs(node)) {
        // Which trip it is, and what it is given, the plan of a body does not know.
        for (ValueId input : graph_.inputs(body)) of_data_[input.index] = true;
        mark(graph_.nodes(body));
        for (ValueId output : graph_.outputs(body)) any |= of_data(output);
      }
      for (ValueId output : graph_.outputs(node)) {
        if (output.valid()) of_data_[output.index] = any;
      }
    }
  }

  void judge(const std::vector<NodeId>& nodes) {
    for (NodeId node : nodes) {
      if (!judged_(node)) continue;
      for (RegionId body : graph_.subgraphs(node)) judge(graph_.nodes(body));
      const OperatorRow* row = find_operator(graph_.node(node));
      if (row != nullptr) judge(node, *row);
    }
  }

  void judge(NodeId node, const OperatorRow& row) {
    const auto inputs = graph_.inputs(node);
    if (is_open_structure(node, row)) {
      problems_.add(graph_, node, why_no_gradient(graph_, node));
      return;
    }
    if (judge_operands(node, row.plan_inputs, "has to be known when a step is planned")) return;
    if (!any_open(node)) return;
    if (row.sized_by_values) {
      const bool data =
          std::any_of(inputs.begin(), inputs.end(), [&](ValueId input) { return of_data(input); });
      if (data) problems_.add(graph_, node, kSizedByValues);
    } else if (branches_differ(node)) {
      problems_.add(graph_, node, "data choose between branches that give different shapes",
                    kInsteadOfBranches);
    } else {
      judge_operands(node, row.size_inputs, "decides the size of what it gives");
    }
  }

  /// Notes the first of these operands that data decide; says whether there is one.
  bool judge_operands(NodeId node, uint32_t slots, const char* why) {
    const auto inputs = graph_.inputs(node);
    for (size_t i = 0; i < inputs.size() && i < 32; ++i) {
      if ((slots >> i & 1u) == 0 || !of_data(inputs[i])) continue;
      problems_.add(graph_, node,
                    "its operand \"" + operand_name(graph_.node(node), i) +
                        "\" is computed from data, and " + why,
                    cuts_bags(graph_, node) ? kInsteadOfBags : kInsteadOfSizes);
      return true;
    }
    return false;
  }

  /// Is it a loop without a plan, or does it handle containers? Where structure is known, other
  /// nodes stand in their place by now.
  bool is_open_structure(NodeId node, const OperatorRow& row) const {
    return row.gradient == nullptr && may_be_flattened(graph_, node);
  }

  /// Has a result a dim that is no number, and none once the dims of the inputs and of the operands
  /// are?
  bool any_open(NodeId node) const {
    std::set<std::string> known = bound_;
    for (ValueId input : graph_.inputs(node)) {
      if (input.valid()) add_symbols(input, known);
    }
    for (ValueId output : graph_.outputs(node)) {
      if (!of_data(output)) continue;
      const ValueType& type = graph_.value(output).type;
      if (!type.is_tensor() || !type.shape) return true;
      for (const Dim& dim : *type.shape) {
        if (!dim.known() && !known.contains(dim.symbol)) return true;
      }
    }
    return false;
  }

  bool branches_differ(NodeId node) const {
    const auto bodies = graph_.subgraphs(node);
    if (bodies.size() != 2 || !of_data(graph_.input(node, 0))) return false;
    const auto a = graph_.outputs(bodies[0]), b = graph_.outputs(bodies[1]);
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (conflict(graph_.value(a[i]).type, graph_.value(b[i]).type)) return true;
    }
    return false;
  }

  const Graph& graph_;
  const std::function<bool(NodeId)>& judged_;
  UnsupportedOps& problems_;
  std::vector<bool> of_data_;    // by value: not of constants and shapes alone
  std::set<std::string> bound_;  // dims of the inputs, which are numbers when a step is planned
};

}  // namespace

void add_sizes_of_data(const Graph& graph, std::span<const ValueId> ends,
                       const std::function<bool(NodeId)>& judged, UnsupportedOps& problems) {
  Sizes(graph, judged, problems).run(ends);
}

bool may_be_flattened(const Graph& graph, NodeId node) {
  const auto is_container = [&](ValueId value) {
    return value.valid() && !graph.value(value).type.is_tensor() &&
           graph.value(value).type.kind != TypeKind::kUnknown;
  };
  return !graph.subgraphs(node).empty() || std::ranges::any_of(graph.inputs(node), is_container) ||
         std::ranges::any_of(graph.outputs(node), is_container);
}

}  // namespace halfnote
