// The type of a value: what ONNX's TypeProto says, as a plain struct.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "base/shape.h"

namespace halfnote {

enum class TypeKind : uint8_t { kUnknown, kTensor, kSparseTensor, kSequence, kOptional, kMap };

/// A tensor's element type and shape (`shape` absent: rank unknown), or a container of another
/// type.
struct ValueType {
  TypeKind kind = TypeKind::kUnknown;
  DType dtype = DType::kUndefined;
  std::optional<SymbolicShape> shape;
  DType key = DType::kUndefined;             // of a map
  std::shared_ptr<const ValueType> element;  // of a sequence, optional or map

  static ValueType tensor(DType dtype) {
    return {TypeKind::kTensor, dtype, std::nullopt, {}, nullptr};
  }
  static ValueType tensor(DType dtype, SymbolicShape shape) {
    return {TypeKind::kTensor, dtype, std::move(shape), {}, nullptr};
  }
  bool is_tensor() const { return kind == TypeKind::kTensor; }
  bool has_concrete_shape() const { return is_tensor() && shape && is_concrete(*shape); }
  int rank() const { return shape ? static_cast<int>(shape->size()) : -1; }
};

bool operator==(const ValueType& a, const ValueType& b);

/// ONNX text: `float[N,10]`, `int64[]` for a scalar, `float` with unknown rank, `seq(float[3])`.
std::string to_string(const ValueType& type);

}  // namespace halfnote
