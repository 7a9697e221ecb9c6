// Reads the ONNX node tests that make_kernel_cases.py wrote to tests/fixtures/kernels.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/attribute.h"
#include "base/tensor.h"

namespace halfnote::test {

inline double number(const nlohmann::json& value) {
  if (value.is_string()) return std::strtod(value.get<std::string>().c_str(), nullptr);
  return value.get<double>();
}

/// Integers are read as such: a double does not hold all of 64 bits.
inline Tensor read_tensor(const nlohmann::json& source) {
  if (source.is_null()) return {};
  const DType dtype = dtype_from_name(source.at("dtype").get<std::string>()).value();
  const Shape shape = source.at("shape").get<Shape>();
  const nlohmann::json& data = source.at("data");
  if (dtype == DType::kU64) {
    const auto values = data.get<std::vector<uint64_t>>();
    return Tensor::of<uint64_t>(shape, std::span<const uint64_t>(values));
  }
  if (dtype == DType::kI64) {
    const auto values = data.get<std::vector<int64_t>>();
    return Tensor::of<int64_t>(shape, std::span<const int64_t>(values));
  }
  Tensor tensor(DType::kF64, shape);
  auto to = tensor.mutable_data<double>();
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] = data[i].is_boolean() ? (data[i].get<bool>() ? 1 : 0) : number(data[i]);
  }
  return tensor.cast_to(dtype);
}

inline Attributes read_attributes(const nlohmann::json& source) {
  Attributes attributes;
  for (const auto& [name, entry] : source.items()) {
    const std::string kind = entry.begin().key();
    const nlohmann::json& value = entry.begin().value();
    if (kind == "int") attributes.set(name, value.get<int64_t>());
    if (kind == "float") attributes.set(name, value.get<float>());
    if (kind == "string") attributes.set(name, value.get<std::string>());
    if (kind == "ints") attributes.set(name, value.get<std::vector<int64_t>>());
    if (kind == "floats") attributes.set(name, value.get<std::vector<float>>());
    if (kind == "tensor") attributes.set(name, read_tensor(value));
  }
  return attributes;
}

}  // namespace halfnote::test
