// Which nodes a compilation added, removed, replaced and retyped, against the source model.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/ir/model.h"

namespace halfnote::cli {

struct NodeChange {
  enum class Kind { kRetyped, kReplaced, kAdded, kRemoved };
  Kind kind = Kind::kAdded;
  std::string name, op;
  std::string from, to;  // types of kRetyped, ops of kReplaced
  std::string reason;
};

struct GraphDiff {
  std::string graph;
  int unchanged = 0;
  std::vector<NodeChange> changes;           // in the order of the graph, removed ones last
  std::map<std::string, std::string> casts;  // value -> the types it is cast to
};

/// Types of values by name; empty where the source does not tell.
using TypesByName = std::map<std::string, DType>;
TypesByName types_of(const Graph& graph);

/// Nodes are the same when they have the same name, or make a value of the same name. `types` are
/// those of the source's values; a node that only `step` still has is needed for training alone.
GraphDiff diff_graph(const Graph& source, const TypesByName& types, const Graph& graph,
                     std::string name, const Graph* step = nullptr);

std::string diff_text(const GraphDiff& diff);
/// A list with one object a graph.
std::string diff_json(const std::vector<GraphDiff>& diffs);

}  // namespace halfnote::cli
