#include "compiler/ir/node_names.h"

#include <unordered_map>
#include <unordered_set>

namespace halfnote {
namespace {

std::string first_result_name(const Graph& graph, NodeId node) {
  for (ValueId output : graph.outputs(node)) {
    if (output.valid()) return graph.value(output).name;
  }
  return graph.node(node).op;
}

}  // namespace

bool make_node_names_unique(Graph& graph) {
  const std::vector<NodeId> nodes = graph.all_nodes();
  std::unordered_set<std::string> given, taken;
  for (NodeId node : nodes) given.insert(graph.node(node).name);
  std::unordered_map<std::string, uint32_t> counters;
  bool changed = false;
  for (NodeId id : nodes) {
    std::string& name = graph.node(id).name;
    std::string candidate = name.empty() ? first_result_name(graph, id) : name;
    if (!taken.insert(candidate).second || (name.empty() && given.contains(candidate))) {
      const std::string base = candidate;
      do {
        candidate = base + "_" + std::to_string(++counters[base]);
      } while (given.contains(candidate) || !taken.insert(candidate).second);
    }
    changed |= candidate != name;
    name = std::move(candidate);
  }
  return changed;
}

}  // namespace halfnote
