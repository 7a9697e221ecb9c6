// TypeProto to ValueType and back.
#pragma once

#include <string>

#include "base/type.h"
#include "compiler/ir/limits.h"

namespace onnx {
class TypeProto;
class TensorShapeProto;
}  // namespace onnx

namespace halfnote::proto {

/// Throws Error(kModel) for element types outside the standard, negative dims and shapes over the
/// limits, and Error(kUnsupported) for opaque types. A proto without a value gives the unknown
/// type.
ValueType read_type(const onnx::TypeProto& type, const ImportLimits& limits = {});

/// Leaves `to` without a value for the unknown type.
void write_type(const ValueType& type, onnx::TypeProto& to);

/// What `write_type` writes, serialized. Tensors, nearly all, take no detour through a message.
std::string type_bytes(const ValueType& type);

void write_shape(const SymbolicShape& shape, onnx::TensorShapeProto& to);

}  // namespace halfnote::proto
