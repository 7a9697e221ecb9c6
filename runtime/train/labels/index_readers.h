// Nodes that read labels, indices or lengths, which a run checks against a size.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

struct IndexReader {
  NodeId node;
  ValueId indices;
  bool labels = false;  // class numbers of a loss; else indices, of which negative ones may count
  /// How many there are to choose from; none where that is not known, or differs from one to the
  /// next.
  std::optional<int64_t> size = {};
  std::optional<int64_t> ignore_index = {};

  /// Is it one that the node takes? Only where the size is known.
  bool takes(int64_t value) const {
    return (value >= (labels ? 0 : -*size) && value < *size) || ignore_index == value;
  }
};

/// All of them, in the bodies of nodes too, in the order of the graph.
std::vector<IndexReader> find_index_readers(const Graph& graph);

}  // namespace halfnote
