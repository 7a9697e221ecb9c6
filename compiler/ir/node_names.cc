#include "compiler/ir/node_names.h"

#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

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
  // Views of the names: only the first node of a name is looked at, and it keeps it.
  std::unordered_set<std::string_view> given, taken;
  given.reserve(nodes.size());
  taken.reserve(nodes.size());
  for (NodeId node : nodes) given.insert(graph.node(node).name);
  std::unordered_map<std::string, uint32_t> counters;
  bool changed = false;
  for (NodeId id : nodes) {
    std::string& name = graph.node(id).name;
    if (!name.empty() && taken.insert(name).second) continue;
    std::string candidate = name.empty() ? first_result_name(graph, id) : name;
    if (!name.empty() || taken.contains(candidate) || given.contains(candidate)) {
      const std::string base = candidate;
      do {
        candidate = base + "_" + std::to_string(++counters[base]);
      } while (given.contains(candidate) || taken.contains(candidate));
    }
    changed = true;
    name = std::move(candidate);
    taken.insert(name);
  }
  return changed;
}

}  // namespace halfnote
