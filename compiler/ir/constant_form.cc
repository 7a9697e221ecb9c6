// One table of spellings, and one function that turns any of them into a tensor.
#include "compiler/ir/constant_form.h"

#include <array>
#include <string_view>

#include "base/error.h"

namespace halfnote {
namespace {

constexpr std::array<std::string_view, 8> kSpellings = {
    "value",     "sparse_value", "value_float",  "value_floats",
    "value_int", "value_ints",   "value_string", "value_strings"};

template <class T>
Tensor list(const std::vector<T>& elements) {
  return Tensor::of<T>({static_cast<int64_t>(elements.size())}, std::span<const T>(elements));
}

/// The tensor, or an undefined one when the attribute's type does not fit its name.
Tensor tensor_of(std::string_view name, const Attribute& attribute) {
  if (const auto* value = std::get_if<Tensor>(&attribute)) {
    return name == "value" || name == "sparse_value" ? *value : Tensor();
  }
  if (const auto* value = std::get_if<float>(&attribute); value && name == "value_float") {
    return Tensor::scalar<float>(*value);
  }
  if (const auto* value = std::get_if<int64_t>(&attribute); value && name == "value_int") {
    return Tensor::scalar<int64_t>(*value);
  }
  if (const auto* value = std::get_if<std::string>(&attribute); value && name == "value_string") {
    return Tensor::strings({}, {*value});
  }
  using Floats = std::vector<float>;
  if (const auto* value = std::get_if<Floats>(&attribute); value && name == "value_floats") {
    return list(*value);
  }
  using Ints = std::vector<int64_t>;
  if (const auto* value = std::get_if<Ints>(&attribute); value && name == "value_ints") {
    return list(*value);
  }
  using Strings = std::vector<std::string>;
  if (const auto* value = std::get_if<Strings>(&attribute); value && name == "value_strings") {
    return Tensor::strings({static_cast<int64_t>(value->size())}, *value);
  }
  return {};
}

}  // namespace

void normalize_constant(Attributes& attributes) {
  std::string_view found;
  for (std::string_view name : kSpellings) {
    if (!attributes.has(name)) continue;
    if (!found.empty()) throw Error(ErrorCode::kModel, "a Constant has more than one value");
    found = name;
  }
  if (found.empty()) throw Error(ErrorCode::kModel, "a Constant has no value");
  const Attribute& attribute = *attributes.find(found);
  if (std::holds_alternative<AttributeReference>(attribute)) return;
  Tensor tensor = tensor_of(found, attribute);
  if (!tensor.defined()) {
    throw Error(ErrorCode::kModel,
                "attribute \"" + std::string(found) + "\" of a Constant has the wrong type");
  }
  attributes.erase(found);
  attributes.set("value", std::move(tensor));
}

}  // namespace halfnote
