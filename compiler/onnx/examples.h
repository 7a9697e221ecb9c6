// What ONNX's checker is asked about a graph: one node of each kind of call. Its judgement of a
// node depends on the op, the attributes, the types of operands and results, and on the data of
// constants that say a shape; a model of 100,000 nodes has a few dozen different ones.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote::proto {

class Examples {
 public:
  /// Can this graph be judged node by node? Not if a value has no type (the checker would infer it
  /// from the nodes before), nor with bodies of control flow, which see the values around them.
  static bool suits(const Graph& graph);
  /// May the data of this constant decide whether a call is right? Shapes, axes and bounds are
  /// integers or a few numbers; of all else the type is enough.
  static bool counts_with_data(const Graph& graph, ValueId value);

  /// The nodes of the main region that make calls which no graph asked about before made, in order.
  std::vector<NodeId> pick(const Graph& graph);

 private:
  std::unordered_set<uint64_t> seen_;
};

}  // namespace halfnote::proto
