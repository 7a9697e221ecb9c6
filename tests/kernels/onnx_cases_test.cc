// ONNX's own node tests, exported to tests/fixtures/kernels by make_kernel_cases.py, on the
// reference kernels; with the tolerance of ONNX's runner.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "harness.h"

namespace halfnote::test {
namespace {

using nlohmann::json;

double number(const json& value) {
  if (value.is_string()) return std::strtod(value.get<std::string>().c_str(), nullptr);
  return value.get<double>();
}

/// Integers are read as such: a double does not hold all of 64 bits.
Tensor read_tensor(const json& source) {
  if (source.is_null()) return {};
  const DType dtype = dtype_from_name(source.at("dtype").get<std::string>()).value();
  const Shape shape = source.at("shape").get<Shape>();
  const json& data = source.at("data");
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

Attributes read_attributes(const json& source) {
  Attributes attributes;
  for (const auto& [name, entry] : source.items()) {
    const std::string kind = entry.begin().key();
    const json& value = entry.begin().value();
    if (kind == "int") attributes.set(name, value.get<int64_t>());
    if (kind == "float") attributes.set(name, value.get<float>());
    if (kind == "string") attributes.set(name, value.get<std::string>());
    if (kind == "ints") attributes.set(name, value.get<std::vector<int64_t>>());
    if (kind == "floats") attributes.set(name, value.get<std::vector<float>>());
    if (kind == "tensor") attributes.set(name, read_tensor(value));
  }
  return attributes;
}

class OnnxCases : public testing::TestWithParam<const char*> {};

TEST_P(OnnxCases, AgreesWithTheNodeTests) {
  std::ifstream file(std::string(HALFNOTE_SOURCE_DIR) + "/tests/fixtures/kernels/" + GetParam() +
                     ".json");
  ASSERT_TRUE(file) << "fixture missing";
  const json cases = json::parse(file);
  for (const json& entry : cases) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    std::vector<Tensor> inputs, wanted;
    for (const json& input : entry.at("inputs")) inputs.push_back(read_tensor(input));
    std::vector<OutputSpec> outputs;
    for (const json& output : entry.at("outputs")) {
      wanted.push_back(read_tensor(output));
      outputs.push_back({});  // an absent output
      if (wanted.back().defined()) outputs.back() = {wanted.back().dtype(), wanted.back().shape()};
    }
    try {
      const std::vector<Tensor> got =
          run_kernel(entry.at("domain").get<std::string>(), entry.at("op").get<std::string>(),
                     inputs, read_attributes(entry.at("attributes")), outputs);
      for (size_t i = 0; i < wanted.size(); ++i) {
        if (wanted[i].defined()) expect_close(got[i], wanted[i], 1e-3, 1e-7);
      }
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OnnxCases,
                         testing::Values("contraction", "elementwise", "loss", "movement",
                                         "normalization", "recurrent", "reduction", "stateful"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace halfnote::test
