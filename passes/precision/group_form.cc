#include "passes/precision/group_form.h"

#include <cstdint>
#include <optional>

namespace halfnote {
namespace {

std::optional<int64_t> channels_of(const Graph& graph, NodeId node) {
  const Node& n = graph.node(node);
  if (n.op != "InstanceNormalization" || !n.domain.empty()) return std::nullopt;
  const auto& shape = graph.value(graph.input(node, 0)).type.shape;
  if (!shape || shape->size() < 3) return std::nullopt;
  const Dim& channels = (*shape)[1];
  if (!channels.known() || channels.value < 1) return std::nullopt;
  return channels.value;
}

}  // namespace

bool has_group_form(const Graph& graph, NodeId node) {
  return channels_of(graph, node).has_value();
}

void take_group_form(Graph& graph, NodeId node) {
  const int64_t channels = channels_of(graph, node).value();
  graph.node(node).op = "GroupNormalization";
  graph.node(node).attributes.set("num_groups", channels);
}

}  // namespace halfnote
