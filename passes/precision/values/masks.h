// What a caller feeds in: masks that are added to scores, data far from 0; both may hold what 16
// bits do not.
#pragma once

#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

/// Which floats come from inputs of the graph and from constants alone, as masks do
/// ((1 - mask) * -1e9). What they hold is known by no pass.
class FedValues {
 public:
  explicit FedValues(const Graph& graph);
  bool has(ValueId value) const { return value.index < fed_.size() && fed_[value.index]; }
  /// Does the node add a fed value to another that is neither fed nor a constant (Add,
  /// Where, Concat)?
  bool adds(const Graph& graph, NodeId node) const { return adds(graph, node, fed_); }
  /// The same of data: what comes from bools alone, 16 bits hold.
  bool adds_data(const Graph& graph, NodeId node) const { return adds(graph, node, data_); }
  /// Does it read an f32 that is fed, and no result of a node that is `low`? Rounded for it, an x
  /// near 1000 would have no digits left behind (x - 1000) / 5.
  bool are_read_by(const Graph& graph, NodeId node, const std::vector<bool>& low) const;

 private:
  bool adds(const Graph& graph, NodeId node, const std::vector<bool>& which) const;

  std::vector<bool> fed_;       // by value
  std::vector<bool> data_;      // those that are not made of bools alone
  std::vector<bool> constant_;  // by value
};

bool is_softmax(const Node& node);

/// Is the input read by nothing but sums on their way into a softmax, as a mask of scores is? There
/// -Inf is a probability of 0; anywhere else it spoils the step.
bool is_mask_of_scores(const Graph& graph, ValueId input);

}  // namespace halfnote
