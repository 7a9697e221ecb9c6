// Clones the body before the node, with attribute references resolved: to the node's attributes,
// else to the defaults of the schema.
#include "passes/canonical/expand_function.h"

#include "compiler/ir/walk.h"
#include "compiler/onnx/schema.h"

namespace halfnote {

bool expand_function(Graph& graph, NodeId node, int64_t opset) {
  const auto body = schema_function_body(graph, node, opset);
  if (!body) return false;
  ValueMap values;
  const auto formal = body->body.inputs();
  for (size_t i = 0; i < formal.size(); ++i) values[formal[i]] = graph.input(node, i);
  const Attributes given = graph.node(node).attributes;
  CloneOptions options;
  options.prefix = graph.node(node).name + "/";
  options.resolve = [&](const AttributeReference& reference) -> std::optional<Attribute> {
    if (const Attribute* attribute = given.find(reference.name)) return *attribute;
    for (const auto& [name, value] : body->default_attributes) {
      if (name == reference.name) return value;
    }
    return std::nullopt;
  };
  const std::vector<ValueId> results =
      clone_into(graph, graph.before(node), body->body, values, options);
  for (size_t i = 0; i < graph.outputs(node).size(); ++i) {
    const ValueId output = graph.output(node, i);
    if (!output.valid()) continue;
    const std::string name = graph.value(output).name;
    graph.rename(output, graph.unique_name(name + ".lifted"));
    graph.replace_uses(output, results[i]);
    if (graph.value(results[i]).kind == ValueKind::kResult) graph.rename(results[i], name);
  }
  graph.remove(node);
  return true;
}

}  // namespace halfnote
