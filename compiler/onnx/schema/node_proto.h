// A node of the IR in the forms that the schema functions of the ONNX library want.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compiler/ir/graph.h"

namespace onnx {
class AttributeProto;
class TensorProto;
class TypeProto;
}  // namespace onnx

namespace halfnote::proto {

/// Attributes of one node, converted when asked for. Large tensors come without their data,
/// subgraphs without content.
class AttributeProtos {
 public:
  explicit AttributeProtos(const Attributes& attributes) : attributes_(attributes) {}
  ~AttributeProtos();
  AttributeProtos(const AttributeProtos&) = delete;
  AttributeProtos& operator=(const AttributeProtos&) = delete;

  /// Null if absent, or if a reference to an attribute of a function.
  const onnx::AttributeProto* get(const std::string& name) const;

 private:
  const Attributes& attributes_;
  mutable std::vector<std::pair<std::string, std::unique_ptr<onnx::AttributeProto>>> converted_;
};

/// Tensors of more bytes are never turned into protos for inference.
inline constexpr size_t kMaxConstantBytes = 64 * 1024;

/// The tensor; beyond kMaxConstantBytes only its type and dims.
void write_small_tensor(const Tensor& tensor, onnx::TensorProto& to);

}  // namespace halfnote::proto
