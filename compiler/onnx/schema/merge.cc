// Merging is symmetric but for symbols, where the declared one stays.
#include "compiler/onnx/schema/merge.h"

#include "base/error.h"

namespace halfnote::proto {
namespace {

[[noreturn]] void contradiction(const ValueType& declared, const ValueType& inferred,
                                const std::string& value) {
  throw Error(ErrorCode::kModel, "value \"" + value + "\" has another type than declared")
      .expected(to_string(declared), to_string(inferred));
}

bool merge_dims(SymbolicShape& to, const SymbolicShape& from) {
  if (to.size() != from.size()) return false;
  for (size_t i = 0; i < to.size(); ++i) {
    if (to[i].known() && from[i].known() && to[i].value != from[i].value) return false;
    const bool takes = from[i].known() || (!to[i].known() && to[i].symbol.empty());
    if (takes) to[i] = from[i];
  }
  return true;
}

bool merge_into(ValueType& to, const ValueType& from) {
  if (from.kind == TypeKind::kUnknown) return true;
  if (to.kind == TypeKind::kUnknown) {
    to = from;
    return true;
  }
  if (to.kind != from.kind) return false;
  for (auto [mine, other] : {std::pair(&to.dtype, from.dtype), std::pair(&to.key, from.key)}) {
    if (*mine == DType::kUndefined) *mine = other;
    if (other != DType::kUndefined && *mine != other) return false;
  }
  if (from.shape) {
    if (!to.shape) to.shape = from.shape;
    if (!merge_dims(*to.shape, *from.shape)) return false;
  }
  if (to.element == nullptr || from.element == nullptr) {
    if (to.element == nullptr) to.element = from.element;
    return true;
  }
  ValueType element = *to.element;
  if (!merge_into(element, *from.element)) return false;
  to.element = std::make_shared<const ValueType>(std::move(element));
  return true;
}

}  // namespace

ValueType merge_types(const ValueType& declared, const ValueType& inferred,
                      const std::string& value) {
  ValueType merged = declared;
  if (!merge_into(merged, inferred)) contradiction(declared, inferred, value);
  return merged;
}

}  // namespace halfnote::proto
