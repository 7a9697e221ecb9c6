// Types print in ONNX's text syntax, because the text form of the IR is a superset of it.
#include "base/type.h"

namespace halfnote {

bool operator==(const ValueType& a, const ValueType& b) {
  if (a.kind != b.kind || a.dtype != b.dtype || a.shape != b.shape || a.key != b.key) return false;
  if ((a.element == nullptr) != (b.element == nullptr)) return false;
  return a.element == nullptr || *a.element == *b.element;
}

std::string to_string(const ValueType& type) {
  const auto inner = [&] { return type.element ? to_string(*type.element) : std::string("?"); };
  switch (type.kind) {
    case TypeKind::kUnknown:
      return "?";
    case TypeKind::kSequence:
      return "seq(" + inner() + ")";
    case TypeKind::kOptional:
      return "optional(" + inner() + ")";
    case TypeKind::kMap:
      return "map(" + std::string(onnx_name(type.key)) + ", " + inner() + ")";
    case TypeKind::kTensor:
    case TypeKind::kSparseTensor:
      break;
  }
  const std::string name(onnx_name(type.dtype));
  const std::string tensor = name + (type.shape ? to_string(*type.shape) : "");
  return type.kind == TypeKind::kSparseTensor ? "sparse_tensor(" + tensor + ")" : tensor;
}

}  // namespace halfnote
