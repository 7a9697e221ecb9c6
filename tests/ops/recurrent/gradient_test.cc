// The gradient rule of RNN, GRU and LSTM against central differences: every attribute, every
// optional operand, every result.
#include <gtest/gtest.h>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/recurrent/cases.h"

namespace halfnote::test {
namespace {

void expect_recurrent_gradient(const RecurrentCase& test, std::vector<size_t> silent = {}) {
  GradientCase call{test.name, test.op, test.attributes, recurrent_inputs(test, DType::kF64), {}};
  call.outputs = test.op == "LSTM" ? 3 : 2;
  call.silent = std::move(silent);
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.inputs[i].defined() && call.inputs[i].dtype() == DType::kF64) call.wrt.push_back(i);
  }
  expect_gradient(call);
}

TEST(RecurrentGradient, EveryAttribute) {
  for (const RecurrentCase& test : recurrent_cases()) expect_recurrent_gradient(test);
}

TEST(RecurrentGradient, OneResultAlone) {
  for (const char* op : {"RNN", "GRU", "LSTM"}) {
    const RecurrentCase test{
        "one result",
        op,
        {{"direction", std::string("bidirectional")}, {"hidden_size", int64_t{3}}}};
    expect_recurrent_gradient(test, {1, 2});
    expect_recurrent_gradient(test, {0, 2});
    if (std::string_view(op) == "LSTM") expect_recurrent_gradient(test, {0, 1});
  }
}

TEST(RecurrentGradient, SymbolicDims) {
  for (const char* op : {"RNN", "GRU", "LSTM"}) {
    const RecurrentCase test{"symbolic", op, {{"hidden_size", int64_t{3}}}};
    GradientCase call{
        test.name, test.op, test.attributes, recurrent_inputs(test, DType::kF64), {0, 1, 2, 3}};
    expect_gradient(call, Dims::kSymbolic);
  }
}

/// A model that we compiled before is differentiated again.
TEST(RecurrentGradient, FormsOfAiHalfnoteHaveTheSameGradient) {
  const RecurrentCase test{"our own form", "LSTM", {}};
  GradientCase call{test.name, test.op, {}, recurrent_inputs(test, DType::kF64), {0, 1, 2, 3}};
  call.domain = kHalfnoteDomain;
  expect_gradient(call);
}

/// As exporters write an LSTM whose h is projected to fewer sizes than c has.
TEST(RecurrentGradient, StatesOfAnotherSizeAreRefused) {
  const RecurrentCase test{"projected", "LSTM", {}};
  GradientCase call{test.name, test.op, {}, recurrent_inputs(test, DType::kF64), {0, 1, 2}};
  call.inputs[6] = random_tensor(DType::kF64, {1, test.batch, test.hidden + 2}, 1);
  try {
    gradient_graph(call, {random_tensor(DType::kF64, {test.steps, 1, test.batch, test.hidden}, 2)},
                   Dims::kFixed);
    FAIL() << "c has another size than h";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModel);
    EXPECT_NE(std::string(error.what()).find("initial_c"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace halfnote::test
