// inline_functions: replaces calls of the model's own functions by their bodies.
//
//   y = my.Gelu(x)   with my.Gelu (X) => (Y) { … }   ──▶   the nodes of the body, on x and y
//
// Exact. Calls inside bodies are inlined too; a function that calls itself is an error. Functions
// of the domain ai.halfnote stay: their nodes are ours, but a body that differs from the one we
// would write is an error. Leaves alone: models without functions, nodes that no function stands
// for.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "compiler/ir/walk.h"
#include "compiler/ops/body.h"
#include "compiler/ops/operator.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

std::string key_of(const std::string& domain, const std::string& name,
                   const std::string& overload) {
  return domain + ":" + name + ":" + overload;
}

class Inliner {
 public:
  Inliner(Model& model, const ImportLimits& limits) : model_(model), limits_(limits) {
    for (const Function& function : model.functions) {
      functions_[key_of(function.domain, function.name, function.overload)] = &function;
    }
  }

  bool run(Graph& graph) {
    bool changed = false;
    for (NodeId node : graph.all_nodes()) changed |= visit(graph, node, 0);
    return changed;
  }

 private:
  const Function* function_of(const Node& node) const {
    if (node.domain == kHalfnoteDomain) return nullptr;
    const auto found = functions_.find(key_of(node.domain, node.op, node.overload));
    return found == functions_.end() ? nullptr : found->second;
  }

  bool visit(Graph& graph, NodeId id, int depth) {
    const Function* function = function_of(graph.node(id));
    if (function == nullptr) return false;
    const Place place{model_.source, graph.node(id).name, graph.node(id).op};
    if (depth >= limits_.graph_nesting) {
      throw Error(ErrorCode::kModel, "functions call each other too deeply")
          .at(place)
          .expected("at most " + std::to_string(limits_.graph_nesting) + " levels",
                    "a function that calls itself, or more levels");
    }
    check_opsets(*function, place);
    check_operands(graph, id, *function, place);
    const Attributes given = graph.node(id).attributes;
    CloneOptions options;
    options.prefix = graph.node(id).name.empty() ? "" : graph.node(id).name + "/";
    options.resolve = [&](const AttributeReference& reference) {
      return resolve(*function, given, reference);
    };
    ValueMap values;
    const auto formal = function->body.inputs();
    for (size_t i = 0; i < formal.size(); ++i) values[formal[i]] = graph.input(id, i);
    const NodeId before = graph.prev(id);
    const std::vector<ValueId> results =
        clone_into(graph, graph.before(id), function->body, values, options);
    replace(graph, id, results);
    if (graph.node_count() > limits_.nodes) {
      throw Error(ErrorCode::kModel,
                  "the number of nodes with all functions expanded is over the limit")
          .at(place)
          .expected("at most " + std::to_string(limits_.nodes), "more");
    }
    // The nodes of the body stand between `before` and what followed the call.
    NodeId inner = before.valid() ? graph.next(before) : graph.first(graph.node(id).region);
    graph.remove(id);
    for (size_t left = function->body.nodes().size(); left > 0 && inner.valid(); --left) {
      const NodeId next = graph.next(inner);
      visit(graph, inner, depth + 1);
      inner = next;
    }
    return true;
  }

  void check_opsets(const Function& function, const Place& place) const {
    for (const auto& [domain, version] : function.opsets) {
      const auto model = model_.opsets.find(domain);
      if (model == model_.opsets.end() || model->second == version || domain == kHalfnoteDomain)
        continue;
      if (!domain.empty()) continue;
      throw Error(ErrorCode::kUnsupported,
                  "function \"" + function.name + "\" has another op-set than the model")
          .at(place)
          .expected("op-set " + std::to_string(model->second), std::to_string(version))
          .hint("export functions and graph with one op-set");
    }
  }

  /// Operands that may be left out are fewer; more are nothing that the body could read.
  static void check_operands(const Graph& graph, NodeId id, const Function& function,
                             const Place& place) {
    const std::pair<const char*, std::pair<size_t, size_t>> counts[] = {
        {"inputs", {graph.inputs(id).size(), function.body.inputs().size()}},
        {"outputs", {graph.outputs(id).size(), function.body.outputs().size()}}};
    for (const auto& [what, count] : counts) {
      if (count.first <= count.second) continue;
      throw Error(ErrorCode::kModel, std::string("a call has more ") + what + " than function \"" +
                                         function.name + "\"")
          .at(place)
          .expected("at most " + std::to_string(count.second), std::to_string(count.first));
    }
  }

  static std::optional<Attribute> resolve(const Function& function, const Attributes& given,
                                          const AttributeReference& reference) {
    if (const Attribute* attribute = given.find(reference.name)) return *attribute;
    for (const auto& [name, value] : function.default_attributes) {
      if (name == reference.name) return value;
    }
    return std::nullopt;
  }

  static void replace(Graph& graph, NodeId id, const std::vector<ValueId>& results) {
    for (size_t i = 0; i < graph.outputs(id).size(); ++i) {
      const ValueId output = graph.output(id, i);
      if (!output.valid() || i >= results.size()) continue;
      const std::string name = graph.value(output).name;
      const bool can_take = graph.value(results[i]).kind == ValueKind::kResult;
      // What the call declared of its result holds on.
      if (can_take && graph.value(results[i]).type.kind == TypeKind::kUnknown) {
        graph.value(results[i]).type = graph.value(output).type;
      }
      graph.replace_uses(output, results[i]);
      graph.rename(output, graph.unique_name(name + ".call"));
      if (can_take) graph.rename(results[i], graph.unique_name(name));
    }
  }

  Model& model_;
  const ImportLimits limits_;
  std::map<std::string, const Function*> functions_;
};

/// Bodies of ai.halfnote functions must be those we would write.
void check_own_bodies(const Model& model, const Graph& graph, const InferNode& infer) {
  for (NodeId id : graph.all_nodes()) {
    const Node& node = graph.node(id);
    if (node.domain != kHalfnoteDomain) continue;
    for (const Function& function : model.functions) {
      if (function.domain != node.domain || function.name != node.op ||
          function.overload != node.overload)
        continue;
      const Function own = build_body(graph, id, infer);
      if (own.overload == function.overload && body_digest(own.body) == body_digest(function.body))
        continue;
      throw Error(ErrorCode::kModel,
                  "the body of function ai.halfnote." + node.op + " is not halfnote's")
          .at({model.source, node.name, node.op})
          .expected("the body that this version writes",
                    "another body under overload \"" + node.overload + "\"")
          .hint("compile the source model again with this version");
    }
  }
}

}  // namespace

bool inline_functions(Model& model, PassContext& context) {
  if (model.functions.empty()) return false;
  bool changed = false;
  Inliner inliner(model, context.options.limits);
  for_each_graph(model, [&](Graph& graph) { changed |= inliner.run(graph); });
  for_each_graph(model, [&](Graph& graph) { check_own_bodies(model, graph, context.infer); });
  const size_t removed =
      std::erase_if(model.functions, [](const Function& f) { return f.domain != kHalfnoteDomain; });
  return changed || removed > 0;
}

}  // namespace halfnote
