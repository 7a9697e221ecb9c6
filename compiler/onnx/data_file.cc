// The messages of onnx-data.proto, one function for each kind of value.
#include "compiler/onnx/data_file.h"

#include <onnx/onnx-data.pb.h>
#include <onnx/onnx_pb.h>

#include "base/error.h"
#include "base/file.h"
#include "compiler/onnx/proto/tensor.h"

namespace halfnote {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;
constexpr int kMaxNesting = 16;

Error unreadable(const char* what) {
  return Error(ErrorCode::kModel, std::string("not a serialized ") + what);
}

template <class Proto>
Proto parse(const std::vector<std::byte>& bytes, const char* what) {
  Proto proto;
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) throw unreadable(what);
  return proto;
}

Datum read_tensor_value(const onnx::TensorProto& proto) {
  proto::TensorSource source;
  return proto::read_tensor(proto, source);
}

Datum read_optional(const onnx::OptionalProto& proto, int depth);

Datum read_sequence(const onnx::SequenceProto& proto, int depth) {
  if (depth > kMaxNesting) throw unreadable("SequenceProto: it is nested too deeply");
  std::vector<Datum> elements;
  switch (proto.elem_type()) {
    case onnx::SequenceProto::UNDEFINED:
    case onnx::SequenceProto::TENSOR:
      for (const auto& value : proto.tensor_values()) elements.push_back(read_tensor_value(value));
      break;
    case onnx::SequenceProto::SEQUENCE:
      for (const auto& value : proto.sequence_values())
        elements.push_back(read_sequence(value, depth + 1));
      break;
    case onnx::SequenceProto::OPTIONAL:
      for (const auto& value : proto.optional_values())
        elements.push_back(read_optional(value, depth + 1));
      break;
    default:
      throw Error(ErrorCode::kUnsupported, "a sequence of maps or sparse tensors");
  }
  return Datum::sequence(std::move(elements));
}

Datum read_optional(const onnx::OptionalProto& proto, int depth) {
  if (depth > kMaxNesting) throw unreadable("OptionalProto: it is nested too deeply");
  switch (proto.elem_type()) {
    case onnx::OptionalProto::UNDEFINED:
      return Datum::optional({});
    case onnx::OptionalProto::TENSOR:
      if (!proto.has_tensor_value()) return Datum::optional({});
      return Datum::optional({read_tensor_value(proto.tensor_value())});
    case onnx::OptionalProto::SEQUENCE:
      if (!proto.has_sequence_value()) return Datum::optional({});
      return Datum::optional({read_sequence(proto.sequence_value(), depth + 1)});
    default:
      throw Error(ErrorCode::kUnsupported, "an optional map or sparse tensor");
  }
}

Datum read_value(const std::vector<std::byte>& bytes, TypeKind kind) {
  switch (kind) {
    case TypeKind::kUnknown:
    case TypeKind::kTensor:
      return read_tensor_value(parse<onnx::TensorProto>(bytes, "TensorProto"));
    case TypeKind::kSequence:
      return read_sequence(parse<onnx::SequenceProto>(bytes, "SequenceProto"), 0);
    case TypeKind::kOptional:
      return read_optional(parse<onnx::OptionalProto>(bytes, "OptionalProto"), 0);
    default:
      throw Error(ErrorCode::kUnsupported, "a map or a sparse tensor");
  }
}

}  // namespace

Datum read_data_file(const std::filesystem::path& path, const ValueType& type) {
  try {
    return read_value(read_file(path, kMaxFileBytes), type.kind);
  } catch (Error& error) {
    throw error.within({.file = path.string()});
  }
}

}  // namespace halfnote
