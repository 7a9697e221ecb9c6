// Why weights have no gradient: the nodes on the way to the loss that let none through.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "compiler/ir/builder.h"
#include "compiler/ir/graph.h"
#include "passes/train/backward.h"
#include "passes/unsupported.h"

namespace halfnote {

class StoppedGradients {
 public:
  /// Of a graph that `backward` has gone through. Looks at nothing before it is asked.
  StoppedGradients(const Graph& graph, const Backward& backward, ValueId loss)
      : graph_(graph), backward_(backward), loss_(loss) {}

  /// `no gradient passes N (Cast), its result is int64`, of the first such node behind the weight;
  /// all of them are noted.
  std::string why_untrained(ValueId weight);
  /// The nodes noted so far.
  const UnsupportedOps& all() const { return all_; }

 private:
  /// What the loss depends on, as a graph: gradients or not.
  void find_ways();

  const Graph& graph_;
  const Backward& backward_;
  const ValueId loss_;
  std::vector<bool> before_loss_;              // by value
  std::vector<std::vector<NodeId>> users_of_;  // by value: nodes before the loss, in order
  UnsupportedOps all_;
};

/// Why a node with a gradient rule lets no gradient through.
std::string why_stopped(const Graph& graph, NodeId node);

/// Nothing if a gradient comes from one of `ends` to one of `sources`; else all nodes between them
/// that give an operand none, and all that lack one. A node whose gradient is not known, or refused
/// (`judged` does not hold, types are open, the op is unknown), is no obstacle: another will stand
/// there. Asks the rules, which write into the graph.
UnsupportedOps find_closed_ways(Graph& graph, std::span<const ValueId> sources,
                                std::span<const ValueId> ends, const InferNode& infer,
                                const std::function<bool(NodeId)>& judged);

}  // namespace halfnote
