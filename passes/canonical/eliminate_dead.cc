// eliminate_dead: removes nodes whose results nobody reads, then initializers without a reader.
//
//   y = Relu(x)  z = Exp(x)  outputs: y      ──▶      y = Relu(x)  outputs: y
//
// Exact. Leaves alone: graph inputs, states, results that a region or a state takes, and the used
// results' optional neighbours; an optional result that nobody reads loses its name. Random nodes
// are dead as any other.
#include "passes/passes.h"

namespace halfnote {
namespace {

bool is_used(const Graph& graph, NodeId node) {
  for (ValueId output : graph.outputs(node)) {
    if (output.valid() && graph.has_uses(output)) return true;
  }
  return false;
}

/// Last first, so that one sweep is enough; bodies before the node that owns them.
bool sweep(Graph& graph, RegionId region) {
  bool changed = false;
  std::vector<NodeId> nodes = graph.nodes(region);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    if (!is_used(graph, *node)) {
      graph.remove(*node);
      changed = true;
      continue;
    }
    for (RegionId inner : graph.subgraphs(*node)) changed |= sweep(graph, inner);
  }
  for (ValueId value : graph.initializers(region)) {
    if (graph.has_uses(value) || graph.state_of(value)) continue;
    graph.remove_value(value);
    changed = true;
  }
  return changed;
}

}  // namespace

bool eliminate_dead(Graph& graph, PassContext&) { return sweep(graph, graph.main()); }

}  // namespace halfnote
