// Walks over a graph and copies of parts of it: slices, sorting, cloning, removal of what nobody
// uses.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

/// The values that the nodes in the regions of `node`, at any depth, and the outputs of those
/// regions take from outside: each once, in the order of first use. Empty for a node without
/// subgraphs.
std::vector<ValueId> captures(const Graph& graph, NodeId node);
/// All that a node reads: its valid inputs, then its captures, each once.
std::vector<ValueId> reads(const Graph& graph, NodeId node);

/// All nodes on which `values` depend, in the order of `Graph::all_nodes`. A node with subgraphs
/// counts as a whole: with it come the nodes inside and all that these read.
std::vector<NodeId> backward_slice(const Graph& graph, std::span<const ValueId> values);
/// All nodes that depend on `values`, in the order of `Graph::all_nodes`. A node whose subgraph
/// reads one of them depends on it with all its results, and so do the inputs of its regions.
std::vector<NodeId> forward_slice(const Graph& graph, std::span<const ValueId> values);

/// Puts the nodes of a region into topological order; those that stand right keep their order. Says
/// whether anything moved. Throws Error(kModel) for a cycle, and names a node of it.
bool sort_region(Graph& graph, RegionId region);

/// Where the values of the source are in the target. An invalid target stands for an absent
/// operand.
using ValueMap = std::unordered_map<ValueId, ValueId>;

/// `name` without `front`, where it begins with that.
inline std::string_view without_front(std::string_view name, std::string_view front) {
  return name.starts_with(front) ? name.substr(front.size()) : name;
}

/// How copies differ from their originals.
struct CloneOptions {
  std::string prefix;                 // before the names of new nodes and values
  std::string replaced = {};          // front of the originals' names in whose place it comes
  std::optional<Role> role;           // in place of the role of the original
  std::optional<std::string> origin;  // in place of its origin
  /// Gives the value of an attribute reference; nothing leaves the attribute out. Without this
  /// function references are copied as they are.
  std::function<std::optional<Attribute>(const AttributeReference&)> resolve = nullptr;
};

/// Copies `nodes` of `from`, which stand in topological order in one region, to `at`, with the
/// regions they own, types, roles, precision and metadata. Operands are looked up in `values`; one
/// that is missing there stays the same value when the graphs are the same, is copied when it is an
/// initializer, and is an Error(kInternal) otherwise. `values` receives the copies of all values.
/// Names are made unique; training states are not copied. `from` may be `to`.
void clone_nodes(Graph& to, InsertPoint at, const Graph& from, std::span<const NodeId> nodes,
                 ValueMap& values, const CloneOptions& options = {});

/// Copies all nodes of the main region of `from` to `at`, as `clone_nodes` does; `values` holds
/// what stands for the inputs of `from`. Gives the values that stand for its outputs. This is how
/// functions are inlined.
std::vector<ValueId> clone_into(Graph& to, InsertPoint at, const Graph& from, ValueMap& values,
                                const CloneOptions& options = {});

/// Copies a region with all in it as a new region below `parent`; whoever makes a node with it
/// becomes its owner.
RegionId clone_region(Graph& to, RegionId parent, const Graph& from, RegionId region,
                      ValueMap& values, const CloneOptions& options = {});

/// May this node go when nobody uses its results?
using MayRemove = std::function<bool(const Graph&, NodeId)>;

/// Removes the nodes, in all regions, whose results have no use and that `may_remove` gives free,
/// and those that become so. Gives their number (without the nodes inside removed subgraphs).
size_t erase_dead(Graph& graph, const MayRemove& may_remove);
/// Removes initializers that nothing uses, but for trainable ones and current values of states.
/// Gives their number.
size_t erase_unused_initializers(Graph& graph);

}  // namespace halfnote
