// The optimizers against PyTorch (LAMB and Lion: against the published rules), over a few steps:
// the cases of tests/fixtures/make_torch_cases.py.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cuda/harness/device_check.h"
#include "tests/kernels/harness.h"

namespace halfnote::test {
namespace {

using nlohmann::json;

json read_cases(const std::string& name) {
  std::ifstream stream(test::source_folder() + "/tests/fixtures/torch/" + name);
  return json::parse(stream);
}

Tensor tensor_of(DType dtype, const Shape& shape, const json& data) {
  Tensor tensor(DType::kF64, shape);
  auto to = tensor.mutable_data<double>();
  for (size_t i = 0; i < to.size(); ++i) to[i] = data[i].get<double>();
  return tensor.cast_to(dtype);
}

Attributes attributes_of(const json& test) {
  Attributes attributes;
  for (const auto& [name, value] : test.at("attributes").items()) {
    if (value.is_number_integer()) {
      attributes.set(name, value.get<int64_t>());
    } else {
      attributes.set(name, value.get<float>());
    }
  }
  return attributes;
}

bool reads_step(const std::string& op) { return op != "RMSprop" && op != "Lion"; }

/// Rows whose names begin with `kernel`, in a type.
struct FixtureRows {
  DType dtype;
  const char* kernel;
  size_t cases;  // at least so many of the file have such a row
};

bool has_row(const std::string& op, std::string_view kernel) {
  if (kernel == "reference") return true;
  return op == "Adam" || op == "AdamW" || op == "Lamb" || op == "Adafactor";
}

class OptimizerFixture : public testing::TestWithParam<FixtureRows> {
 protected:
  static std::vector<Tensor> run_row(const std::string& op, const std::vector<Tensor>& inputs,
                                     const Attributes& attributes,
                                     const std::vector<OutputSpec>& outputs) {
    return run_kernel("ai.halfnote", op, inputs, attributes, outputs,
                      {.kernel = GetParam().kernel});
  }

  static void run(const json& test) {
    const DType dtype = GetParam().dtype;
    const Shape shape = test.at("shape").get<Shape>();
    const std::string op = test.at("op");
    std::vector<Tensor> slots;  // undefined where absent
    std::vector<OutputSpec> outputs = {{dtype, shape}};
    for (const json& slot : test.at("states")) {
      slots.push_back(slot.is_null() ? Tensor() : Tensor::full(dtype, slot.get<Shape>(), 0));
      if (!slot.is_null()) outputs.push_back({dtype, slot.get<Shape>()});
    }
    Tensor param = tensor_of(dtype, shape, test.at("param"));
    // A dozen roundings a step of numbers of size 1. The square roots and quotients of small
    // variances (centered RMSprop: a difference of equals) spread an f32 rounding further: 2^-16.
    const double tolerance = dtype == DType::kF64 ? 1e-12 : 0x1p-16;
    int64_t step = 0;
    for (const json& grad : test.at("grads")) {
      std::vector<Tensor> inputs = {param, tensor_of(dtype, shape, grad)};
      inputs.insert(inputs.end(), slots.begin(), slots.end());
      inputs.push_back(Tensor::scalar_of(dtype, test.at("lr").get<double>()));
      ++step;
      if (reads_step(op)) inputs.push_back(Tensor::scalar<int64_t>(step));
      const auto results = run_row(op, inputs, attributes_of(test), outputs);
      param = results[0];
      size_t next = 1;
      for (Tensor& slot : slots) {
        if (slot.dtype() != DType::kUndefined) slot = results[next++];
      }
      expect_close(param.cast_to(DType::kF64),
                   tensor_of(DType::kF64, shape, test.at("want")[static_cast<size_t>(step - 1)]), 0,
                   tolerance);
    }
    expect_uncommitted(test, op, param, slots, outputs, step);
  }

  /// Without commit the state comes back bit for bit, whatever the gradient.
  static void expect_uncommitted(const json& test, const std::string& op, const Tensor& param,
                                 const std::vector<Tensor>& slots,
                                 const std::vector<OutputSpec>& outputs, int64_t step) {
    std::vector<Tensor> inputs = {param, Tensor::full(GetParam().dtype, param.shape(), INFINITY)};
    inputs.insert(inputs.end(), slots.begin(), slots.end());
    inputs.push_back(Tensor::scalar_of(GetParam().dtype, 0.5));
    if (reads_step(op)) inputs.push_back(Tensor::scalar<int64_t>(step + 1));
    inputs.push_back(Tensor::scalar(false));
    const auto results = run_row(op, inputs, attributes_of(test), outputs);
    EXPECT_TRUE(identical(results[0], param));
    size_t next = 1;
    for (const Tensor& slot : slots) {
      if (slot.dtype() != DType::kUndefined) {
        EXPECT_TRUE(identical(results[next++], slot));
      }
    }
  }
};

TEST_P(OptimizerFixture, FollowsTheReference) {
  const json cases = read_cases("optimizers.json");
  size_t ran = 0;
  for (const json& test : cases) {
    if (!has_row(test.at("op"), GetParam().kernel)) continue;
    SCOPED_TRACE(test.at("name").get<std::string>());
    run(test);
    ++ran;
  }
  EXPECT_GE(ran, GetParam().cases);
}

INSTANTIATE_TEST_SUITE_P(Types, OptimizerFixture,
                         testing::Values(FixtureRows{DType::kF32, "reference", 15},
                                         FixtureRows{DType::kF64, "reference", 15},
                                         FixtureRows{DType::kF32, "fast", 6}),
                         [](const auto& test) {
                           return std::string(short_name(test.param.dtype)) + test.param.kernel;
                         });

TEST(OptimizerKernels, RefuseStatesOfTheWrongSize) {
  const Tensor w = Tensor::full(DType::kF32, {2, 3}, 1), row = Tensor::full(DType::kF32, {2}, 0);
  const Tensor lr = Tensor::full(DType::kF32, {}, 1), step = Tensor::scalar<int64_t>(1);
  EXPECT_EQ(
      refusals("ai.halfnote", "Adafactor", {w, w, row, row, lr, step}, {},
               {{DType::kF32, {2, 3}}, {DType::kF32, {2}}, {DType::kF32, {2}}}, {.kernel = ""}),
      "fast.adafactor: operands of different sizes; reference: operands of different sizes");
  EXPECT_EQ(refusals("ai.halfnote", "RMSprop", {w, w, w, {}, {}, lr}, {{"centered", int64_t{1}}},
                     {{DType::kF32, {2, 3}}, {DType::kF32, {2, 3}}}),
            "reference: an operand is missing");
}

// From a file they may be tensors of nothing, in which there is no number to read.
TEST(OptimizerKernels, RefuseStepsAndDecisionsThatAreNotOneNumber) {
  const Tensor w = Tensor::full(DType::kF32, {3}, 1), lr = Tensor::full(DType::kF32, {}, 1);
  const Tensor step = Tensor::scalar<int64_t>(1), no_step(DType::kI64, {0});
  const Tensor no_commit(DType::kBool, {0});
  const std::vector<OutputSpec> states(3, {DType::kF32, {3}});
  const std::string no = refusals("ai.halfnote", "Adam", {w, w, w, w, lr, no_step}, {}, states);
  EXPECT_NE(no.find("step is not one i64"), std::string::npos) << no;
  const std::string undecided =
      refusals("ai.halfnote", "Adam", {w, w, w, w, lr, step, no_commit}, {}, states);
  EXPECT_NE(undecided.find("commit is not one bool"), std::string::npos) << undecided;
}

}  // namespace
}  // namespace halfnote::test
