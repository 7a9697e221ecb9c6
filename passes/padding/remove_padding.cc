#include "passes/padding/remove_padding.h"

#include <algorithm>

namespace halfnote {

bool is_padding(const Node& node) {
  return std::any_of(node.metadata.begin(), node.metadata.end(),
                     [](const auto& entry) { return entry.first == kPaddingMark; });
}

int remove_padding(Graph& graph) {
  int removed = 0;
  for (NodeId id : graph.nodes()) {
    if (!is_padding(graph.node(id))) continue;
    const ValueId result = graph.output(id);
    const ValueId source = graph.input(id, 0);
    const std::string name = graph.value(result).name;
    bool names_output = false;
    for (const Use& use : graph.uses(result)) names_output |= use.kind == UseKind::kRegionOutput;
    graph.replace_uses(result, source);
    graph.remove(id);
    // A graph output keeps its name.
    if (names_output && graph.value(source).kind == ValueKind::kResult) graph.rename(source, name);
    ++removed;
  }
  if (removed == 0) return 0;
  // Sizes change back: forget those of the results, inference sets them. Symbols never grew.
  for (NodeId id : graph.nodes()) {
    for (ValueId output : graph.outputs(id)) {
      if (!output.valid() || !graph.value(output).type.shape) continue;
      for (Dim& dim : *graph.value(output).type.shape) {
        if (dim.known()) dim = Dim();
      }
    }
  }
  return removed;
}

}  // namespace halfnote
