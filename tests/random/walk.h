// A graph run node by node on the reference kernels, the bodies of If, Loop and Scan too, with a
// hand on every value: a second implementation of control flow beside the interpreter.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote::random {

class Walk {
 public:
  /// What a result of a node is to be; called anew for every trip of a body.
  using Settle =
      std::function<Tensor(ValueId result, std::span<const Tensor> operands, Tensor tensor)>;
  /// The same for the initializers of bodies.
  using Constant = std::function<Tensor(ValueId initializer, const Tensor& tensor)>;

  Walk(const Graph& graph, Settle settle, Constant constant)
      : graph_(graph),
        settle_(std::move(settle)),
        constant_(std::move(constant)),
        known_(graph.value_count()) {}

  void set(ValueId id, Tensor tensor) { known_[id.index] = std::move(tensor); }
  /// What the value is; of a body, what it was in the last trip.
  const Tensor& at(ValueId id) const { return known_[id.index]; }
  /// The nodes of a region, in order; its inputs are set.
  void run(RegionId region);
  void run_node(NodeId node);

 private:
  std::vector<Tensor> operands_of(NodeId node) const;
  std::vector<Tensor> run_body(RegionId body, const std::vector<Tensor>& inputs);
  std::vector<Tensor> run_if(NodeId node);
  std::vector<Tensor> run_loop(NodeId node);
  std::vector<Tensor> run_scan(NodeId node);
  RegionId body(NodeId node, const char* attribute) const;
  /// What a scan output collected; empty, of the body's type, without a trip.
  Tensor collected(RegionId body, size_t output, const std::vector<Tensor>& trips,
                   int64_t axis) const;

  const Graph& graph_;
  Settle settle_;
  Constant constant_;
  std::vector<Tensor> known_;
};

}  // namespace halfnote::random
