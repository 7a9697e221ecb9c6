// TypeProto to ValueType and back. Sparse tensors, sequences, optionals and maps keep their
// structure: the compiler refuses what it cannot run later, with the node at hand.
#include "compiler/onnx/proto/type.h"

#include <onnx/onnx_pb.h>

#include "base/error.h"
#include "compiler/onnx/proto/wire_format.h"

namespace halfnote::proto {
namespace {

DType read_dtype(int64_t code) {
  if (code == 0) return DType::kUndefined;
  if (const auto dtype = dtype_from_onnx(code)) return *dtype;
  throw Error(ErrorCode::kModel, "unknown element type")
      .expected("an ONNX data type, 1 to " + std::to_string(kDTypeCount - 1), std::to_string(code));
}

Dim read_dim(const onnx::TensorShapeProto::Dimension& dim, const ImportLimits& limits) {
  if (dim.has_dim_param()) {
    if (dim.dim_param().size() > limits.name_bytes) {
      throw Error(ErrorCode::kModel, "the length of the name of a dim is over the limit")
          .expected("at most " + std::to_string(limits.name_bytes),
                    std::to_string(dim.dim_param().size()));
    }
    return Dim::named(dim.dim_param());
  }
  if (!dim.has_dim_value()) return {};
  if (dim.dim_value() > limits.dim) {
    throw Error(ErrorCode::kModel, "the size of a dim is over the limit")
        .expected("at most " + std::to_string(limits.dim), std::to_string(dim.dim_value()));
  }
  if (dim.dim_value() < 0) {
    throw Error(ErrorCode::kModel, "bad dim in a type")
        .expected("0 to " + std::to_string(limits.dim), std::to_string(dim.dim_value()))
        .hint("a dim that is open should have a name (dim_param) or no value");
  }
  return dim.dim_value();
}

template <class TensorProtoType>
ValueType read_tensor_type(TypeKind kind, const TensorProtoType& tensor,
                           const ImportLimits& limits) {
  ValueType type;
  type.kind = kind;
  type.dtype = read_dtype(tensor.elem_type());
  if (!tensor.has_shape()) return type;
  if (tensor.shape().dim_size() > limits.rank) {
    throw Error(ErrorCode::kModel, "the rank of a type is over the limit")
        .expected("at most " + std::to_string(limits.rank),
                  std::to_string(tensor.shape().dim_size()));
  }
  type.shape.emplace();
  for (const auto& dim : tensor.shape().dim()) type.shape->push_back(read_dim(dim, limits));
  return type;
}

template <class Container>
ValueType read_container(TypeKind kind, const Container& container, const ImportLimits& limits) {
  ValueType type;
  type.kind = kind;
  type.element = std::make_shared<ValueType>(read_type(container.elem_type(), limits));
  return type;
}

template <class TensorProtoType>
void write_tensor_type(const ValueType& type, TensorProtoType& to) {
  to.set_elem_type(static_cast<int>(type.dtype));
  if (type.shape) write_shape(*type.shape, *to.mutable_shape());
}

std::string tensor_bytes(const ValueType& type) {
  std::string tensor;
  append_number(tensor, onnx::TypeProto_Tensor::kElemTypeFieldNumber,
                static_cast<uint64_t>(type.dtype));
  if (!type.shape) return tensor;
  std::string shape, dim;
  for (const Dim& d : *type.shape) {
    dim.clear();
    if (d.known()) {
      append_number(dim, onnx::TensorShapeProto_Dimension::kDimValueFieldNumber,
                    static_cast<uint64_t>(d.value));
    } else if (!d.symbol.empty()) {
      append_field(dim, onnx::TensorShapeProto_Dimension::kDimParamFieldNumber, d.symbol);
    }
    append_field(shape, onnx::TensorShapeProto::kDimFieldNumber, dim);
  }
  append_field(tensor, onnx::TypeProto_Tensor::kShapeFieldNumber, shape);
  return tensor;
}

}  // namespace

ValueType read_type(const onnx::TypeProto& type, const ImportLimits& limits) {
  switch (type.value_case()) {
    case onnx::TypeProto::kTensorType:
      return read_tensor_type(TypeKind::kTensor, type.tensor_type(), limits);
    case onnx::TypeProto::kSparseTensorType:
      return read_tensor_type(TypeKind::kSparseTensor, type.sparse_tensor_type(), limits);
    case onnx::TypeProto::kSequenceType:
      return read_container(TypeKind::kSequence, type.sequence_type(), limits);
    case onnx::TypeProto::kOptionalType:
      return read_container(TypeKind::kOptional, type.optional_type(), limits);
    case onnx::TypeProto::kMapType: {
      ValueType map;
      map.kind = TypeKind::kMap;
      map.key = read_dtype(type.map_type().key_type());
      map.element = std::make_shared<ValueType>(read_type(type.map_type().value_type(), limits));
      return map;
    }
    case onnx::TypeProto::VALUE_NOT_SET:
      return {};
    default:
      break;
  }
  throw Error(ErrorCode::kUnsupported, "opaque types are not supported")
      .expected("a tensor, sequence, optional or map", "an opaque type");
}

void write_shape(const SymbolicShape& shape, onnx::TensorShapeProto& to) {
  to.mutable_dim()->Reserve(static_cast<int>(shape.size()));
  for (const Dim& dim : shape) {
    auto* target = to.add_dim();
    if (dim.known()) {
      target->set_dim_value(dim.value);
    } else if (!dim.symbol.empty()) {
      target->set_dim_param(dim.symbol);
    }
  }
}

void write_type(const ValueType& type, onnx::TypeProto& to) {
  switch (type.kind) {
    case TypeKind::kUnknown:
      return;
    case TypeKind::kTensor:
      write_tensor_type(type, *to.mutable_tensor_type());
      return;
    case TypeKind::kSparseTensor:
      write_tensor_type(type, *to.mutable_sparse_tensor_type());
      return;
    case TypeKind::kSequence:
      write_type(*type.element, *to.mutable_sequence_type()->mutable_elem_type());
      return;
    case TypeKind::kOptional:
      write_type(*type.element, *to.mutable_optional_type()->mutable_elem_type());
      return;
    case TypeKind::kMap:
      to.mutable_map_type()->set_key_type(static_cast<int>(type.key));
      write_type(*type.element, *to.mutable_map_type()->mutable_value_type());
      return;
  }
}

std::string type_bytes(const ValueType& type) {
  std::string bytes;
  if (type.is_tensor()) {
    append_field(bytes, onnx::TypeProto::kTensorTypeFieldNumber, tensor_bytes(type));
    return bytes;
  }
  onnx::TypeProto proto;
  write_type(type, proto);
  proto.AppendToString(&bytes);
  return bytes;
}

}  // namespace halfnote::proto
