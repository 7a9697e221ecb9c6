// Symbolic values of integer tensors: what is known of the result of shape arithmetic.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>

#include "compiler/ir/graph.h"

namespace onnx {
class TensorShapeProto;
}  // namespace onnx

namespace halfnote::proto {

/// Follows integer arithmetic backwards from a value through the data propagation functions of the
/// schemas, at most a few hundred nodes far. Made for one inference, so it caches without ever
/// being stale.
class Propagator {
 public:
  Propagator(const Graph& graph, int64_t opset) : graph_(graph), opset_(opset) {}
  ~Propagator();

  /// One dim per element (a scalar has one): number, symbol, or open. Null when nothing is known.
  const onnx::TensorShapeProto* value_of(ValueId value);
  /// The same, with all elements open where only their number is known.
  const onnx::TensorShapeProto* value_or_open(ValueId value);

  const Graph& graph() const { return graph_; }

 private:
  using Shape = std::unique_ptr<onnx::TensorShapeProto>;
  Shape compute(ValueId value);

  const Graph& graph_;
  int64_t opset_;
  int budget_ = 256;
  int depth_ = 0;
  std::unordered_map<uint32_t, Shape> known_, open_;
};

}  // namespace halfnote::proto
