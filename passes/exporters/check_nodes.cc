// check_nodes: what the model says of its nodes, held against ONNX's schemas and the operators'
// contracts, before anything is built on it.
//
//   y = Conv <group = 3> (x, w)   with x (1,4,8,8)   ──▶   an error that names node and attribute
//
// Exact: changes nothing. Leaves alone: operators without a schema, types and dims that are not
// known, branches that never run (exporters write `If (rank == 0)` around what fits no other rank).
#include <string>
#include <unordered_set>

#include "base/error.h"
#include "compiler/onnx/schema.h"
#include "compiler/ops/contract/contract.h"
#include "passes/canonical/control/conditions.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

class Checker {
 public:
  Checker(const Graph& graph, const PassContext& context)
      : graph_(graph), limits_(context.options.limits), conditions_(graph, context) {}

  void check_region(RegionId region) {
    for (NodeId node = graph_.first(region); node.valid(); node = graph_.next(node)) {
      check(node);
      const std::vector<RegionId> bodies = graph_.subgraphs(node);
      if (bodies.empty()) continue;
      const std::optional<RegionId> dead = conditions_.dead_branch(node);
      for (RegionId body : bodies) {
        if (body != dead) check_region(body);
      }
    }
  }

  void check(NodeId id) {
    const Node& node = graph_.node(id);
    try {
      check_known_mistakes(graph_, id);
      if (has_schema(node.domain, node.op)) check_schema(id);
      check_contract(graph_, id);
      for (ValueId output : graph_.outputs(id)) {
        if (output.valid()) check_size(graph_.value(output));
      }
    } catch (Error& error) {
      throw error.within({.node = graph_.label(id), .op = node.op});
    }
  }

  /// A tensor larger than the limit could not be made.
  void check_size(const Value& value) const {
    if (!value.type.is_tensor() || !value.type.shape) return;
    int64_t elements = 1;
    for (const Dim& dim : *value.type.shape) {
      if (!dim.known() || dim.value <= 1) continue;
      if (elements <= limits_.elements / dim.value) {
        elements *= dim.value;
        continue;
      }
      throw Error(ErrorCode::kModel,
                  "the size of the tensor \"" + value.name + "\" is over the limit")
          .expected("at most " + std::to_string(limits_.elements) + " elements",
                    to_string(value.type));
    }
  }

 private:
  /// Nodes that look the same to their schema are checked once: a large model has few kinds.
  void check_schema(NodeId id) {
    const Node& node = graph_.node(id);
    std::string kind = node.domain + ":" + node.op;
    for (const auto values : {graph_.inputs(id), graph_.outputs(id)}) {
      kind += '|';
      for (ValueId value : values) {
        if (value.valid() && is_newer_type(graph_.value(value).type.dtype)) return;
        kind += value.valid() ? to_string(bare(graph_.value(value).type)) : "-";
        kind += ',';
      }
    }
    for (const auto& [name, value] : node.attributes) {
      kind += name + "=" + std::to_string(value.index()) + ";";
    }
    if (checked_.contains(kind)) return;
    check_node(graph_, id);
    checked_.insert(std::move(kind));
  }

  /// A type without its shape.
  static ValueType bare(const ValueType& type) {
    return type.is_tensor() ? ValueType::tensor(type.dtype) : type;
  }

  const Graph& graph_;
  const ImportLimits& limits_;
  Conditions conditions_;
  std::unordered_set<std::string> checked_;
};

}  // namespace

bool check_nodes(Graph& graph, PassContext& context) {
  Checker checker(graph, context);
  for (ValueId id : graph.inputs()) {
    const Value& input = graph.value(id);
    if (input.type.kind == TypeKind::kUnknown) {
      throw Error(ErrorCode::kModel, "the graph input \"" + input.name + "\" has no type")
          .expected("an element type and a shape, whose dims may be open", "nothing")
          .hint("exporters write both; a graph that was cut out of another one may lack them");
    }
    checker.check_size(input);
  }
  checker.check_region(graph.main());
  return false;
}

}  // namespace halfnote
