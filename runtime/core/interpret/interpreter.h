// Runs a graph of any kind node by node: control flow, sequences, optional values, strings, shapes
// that depend on data. Slow and simple; what a Program cannot be planned for runs here.
#pragma once

#include <vector>

#include "base/datum.h"
#include "compiler/ir/graph.h"
#include "runtime/core/evaluate.h"

namespace halfnote {

class Interpreter {
 public:
  explicit Interpreter(const Graph& graph, const EvaluateOptions& options = {})
      : graph_(graph), options_(options), values_(graph.value_count()) {}

  /// The outputs for these inputs, in order. Throws Error(kUnsupported) for an op that nothing
  /// runs, Error(kData) where data does not fit an op.
  std::vector<Datum> run(const std::vector<Datum>& inputs);

  // --- for the ops that run regions or handle containers -----------------------------------------
  const Graph& graph() const { return graph_; }
  const Attributes& attributes(NodeId node) const { return graph_.node(node).attributes; }
  /// The value of input `index`; absent if the node leaves it out.
  const Datum& input(NodeId node, size_t index) const;
  /// The same as a tensor; throws Error(kModel) if it is none.
  const Tensor& tensor(NodeId node, size_t index) const;
  RegionId region(NodeId node, const char* attribute) const;
  /// Runs a region on values for its inputs and gives its outputs.
  std::vector<Datum> run_region(RegionId region, std::vector<Datum> inputs);

 private:
  void run_node(NodeId node);

  const Graph& graph_;
  EvaluateOptions options_;
  std::vector<Datum> values_;  // by ValueId, of all regions
};

/// A node that is no call of a kernel: gives its results.
using RunNode = std::vector<Datum> (*)(Interpreter&, NodeId);
/// If, Loop, Scan, SequenceMap; null for other ops.
RunNode find_control_op(std::string_view op);
/// Sequence and optional ops; null for other ops.
RunNode find_container_op(std::string_view op);

}  // namespace halfnote
