#include "passes/pass_through.h"

#include <algorithm>

namespace halfnote {

bool is_region_output(const Graph& graph, ValueId value) {
  const auto uses = graph.uses(value);
  return std::any_of(uses.begin(), uses.end(),
                     [](const Use& use) { return use.kind == UseKind::kRegionOutput; });
}

void pass_through(Graph& graph, NodeId node) {
  const ValueId result = graph.output(node);
  const ValueId source = graph.input(node, 0);
  const bool named = is_region_output(graph, result);
  const Value& value = graph.value(source);
  const bool bears_names = value.kind == ValueKind::kResult &&
                           value.region == graph.value(result).region &&
                           !is_region_output(graph, source);
  if (named && !bears_names) {
    graph.node(node).op = "Identity";
    graph.node(node).attributes = {};
    return;
  }
  const std::string name = graph.value(result).name;
  graph.replace_uses(result, source);
  graph.remove(node);
  if (named) graph.rename(source, name);
}

}  // namespace halfnote
