// Why weights have no gradient: the nodes on the way to the loss that let none through.
#pragma once

#include <string>
#include <vector>

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

}  // namespace halfnote
