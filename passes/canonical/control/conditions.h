// What is known of conditions before anything is folded: which branch of an If can never run.
#pragma once

#include <map>
#include <optional>

#include "passes/pass.h"

namespace halfnote {

/// Follows conditions back to constants and to sizes that types know, by the constant folding of
/// the context, and changes nothing. Of graphs whose types are inferred; it remembers what it
/// found, so it must not outlive a change of the graph.
class Conditions {
 public:
  Conditions(const Graph& graph, const PassContext& context) : graph_(graph), context_(context) {}

  /// Whether the one element of `value` is true; nothing where that depends on data, on open dims
  /// or on more than a few hundred elements.
  std::optional<bool> truth(ValueId value);
  /// The branch of this node that never runs; nothing if both may, or the node has no branches.
  std::optional<RegionId> dead_branch(NodeId node);

 private:
  std::optional<Tensor> find(ValueId value, int depth);
  std::optional<Tensor> compute(NodeId node, size_t output, int depth);

  const Graph& graph_;
  const PassContext& context_;
  std::map<ValueId, std::optional<Tensor>> known_;
};

}  // namespace halfnote
