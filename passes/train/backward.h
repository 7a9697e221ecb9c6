// Reverse mode over the nodes of one region: of the training step, and of the bodies in it.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "base/error.h"
#include "compiler/ops/operator.h"
#include "passes/unsupported.h"

namespace halfnote {

class Backward {
 public:
  /// New nodes go to the end of `region`. Ops without a gradient are noted in `problems`.
  Backward(Graph& graph, RegionId region, const InferNode& infer, UnsupportedOps& problems);

  Builder& builder() { return builder_; }
  /// Adds to the gradient of a value.
  void seed(ValueId value, Expr gradient);
  /// Goes backwards through `nodes`, which stand in the region in this order, wherever a seed
  /// depends on one of `sources`.
  void run(const std::vector<NodeId>& nodes, const std::vector<ValueId>& sources);
  /// Notes what `run` would note if every result between `sources` and `ends` had a gradient, and
  /// what the rules refuse: of nodes for which `judged` holds and whose types are known. What the
  /// rules write is of no use.
  void ask(const std::vector<NodeId>& nodes, const std::vector<ValueId>& sources,
           std::span<const ValueId> ends, const std::function<bool(NodeId)>& judged);
  /// The same of these nodes, last first, and the operands that are `reached`; gradients come to
  /// the results that are `wanted` on the way to the ends.
  void ask_rules(const std::vector<NodeId>& order, const std::vector<bool>& reached,
                 const std::vector<bool>& wanted, const std::function<bool(NodeId)>& judged);
  /// Did the rule of a node that was asked give operand `i` a gradient? Where it was not asked, or
  /// refused, it may.
  bool gives(NodeId node, size_t i) const;
  /// The gradient of a value; invalid where none flows into it.
  ValueId gradient(ValueId value) const;

 private:
  void ask_body(NodeId node, RegionId body, const std::vector<bool>& reached,
                const std::function<bool(NodeId)>& judged);
  void visit(NodeId node, const std::vector<bool>& reached);
  std::vector<Expr> gradient_of(NodeId node, GradientContext& rule, const Place& place);
  void note_given(NodeId node, size_t operands, const std::vector<Expr>& results);
  void contribute(ValueId value, Expr gradient, const Place& place);

  Graph& graph_;
  const InferNode& infer_;
  UnsupportedOps& problems_;
  Builder builder_;
  std::map<ValueId, Expr> gradients_;
  std::map<NodeId, std::vector<bool>> given_;  // by operand, of nodes that were asked
  bool asking_ = false;
};

}  // namespace halfnote
