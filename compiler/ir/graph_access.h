// The verifier's view of what a Graph keeps to itself: positions in lists of uses, order labels,
// names. Its tests break these on purpose. Nobody else includes this.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

struct GraphAccess {
  /// Where in the list of uses of input `slot` the use by this node stands.
  static uint32_t& use_index(Graph& graph, NodeId node, size_t slot) {
    return graph.operands_[node.index].use_index[slot];
  }
  static uint32_t use_index(const Graph& graph, const Use& use) {
    switch (use.kind) {
      case UseKind::kNodeInput:
        return graph.operands_[use.owner].use_index[use.slot];
      case UseKind::kRegionOutput:
        return graph.regions_[use.owner].output_use_index[use.slot];
      case UseKind::kStateNext:
        break;
    }
    return graph.state_use_index_[use.slot];
  }
  static auto& uses(Graph& graph, ValueId value) { return graph.uses_[value.index]; }
  static auto& inputs(Graph& graph, NodeId node) { return graph.operands_[node.index].inputs; }
  static int64_t& order(Graph& graph, NodeId node) { return graph.links_[node.index].order; }
  static int64_t order(const Graph& graph, NodeId node) { return graph.links_[node.index].order; }
  static NodeId& prev(Graph& graph, NodeId node) { return graph.links_[node.index].prev; }
  static NodeId& next(Graph& graph, NodeId node) { return graph.links_[node.index].next; }
  static NodeId& owner(Graph& graph, RegionId region) { return graph.regions_[region.index].owner; }
  static NodeId last(const Graph& graph, RegionId region) {
    return graph.regions_[region.index].last;
  }
  /// How many names lead to a value.
  static size_t name_count(const Graph& graph) { return graph.by_name_.size(); }
  static uint32_t& alive_nodes(Graph& graph) { return graph.alive_nodes_; }
};

}  // namespace halfnote
