// Positions and counts that a model computes: what comes from integers and constants alone.
#pragma once

#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

/// Which nodes of a graph compute on positions, in one sweep. A whole number above 256 is rounded
/// in bf16, above 2048 in f16: two positions become one, their distance 0, and the angle of a
/// rotary embedding, some thousand radians, is off by radians.
class ComputedPositions {
 public:
  explicit ComputedPositions(const Graph& graph);
  /// Are all float operands of the node positions or constants, and one a position?
  bool computes(NodeId node) const {
    return node.index < computes_.size() && computes_[node.index];
  }

 private:
  /// kSmall: whole numbers that every 16-bit type holds, from bools and bytes.
  enum class Level : uint8_t { kData, kConstant, kSmall, kPosition };
  Level level_of(const Graph& graph, NodeId node) const;
  Level of_integers(const Graph& graph, NodeId node) const;

  std::vector<Level> levels_;  // by value
  std::vector<bool> computes_;
};

}  // namespace halfnote
