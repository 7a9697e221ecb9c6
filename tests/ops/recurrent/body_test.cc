// Bodies of the recurrent ops of ai.halfnote and of their gradients against their kernels.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/body_record.h"
#include "tests/ops/recurrent/cases.h"

namespace halfnote::test {
namespace {

constexpr DType kRecurrentTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
// Sums of some ten terms through four steps, each of which passes an error on; f32 functions are
// exact to two spacings.
constexpr double kRecurrentSums = 64;

DType math_of(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

/// The body for fixed steps and, where the batch is the first dim, for a symbolic batch.
void expect_recurrent_body_agrees(const BodyCase& call) {
  SCOPED_TRACE(call.op + ": " + call.name + " " + std::string(short_name(call.inputs[0].dtype())));
  const std::vector<Tensor> kernel = run_kernel(call);
  record_body(call, kernel);
  expect_close(kernel, run_body(call), kRecurrentSums);
  if (call.attributes.get_int("layout", 0) == 0) return;
  BodyCase symbolic = call;
  symbolic.symbolic_batch = true;
  expect_close(kernel, run_body(symbolic), kRecurrentSums);
}

int forward_outputs(const RecurrentCase& test) {
  if (test.op == "LSTM") return 5;
  return test.attributes.get_int("linear_before_reset", 0) == 1 ? 4 : 3;
}

BodyCase forward_call(const RecurrentCase& test, DType dtype) {
  return {test.name, test.op, test.attributes, recurrent_inputs(test, dtype, math_of(dtype)),
          forward_outputs(test)};
}

/// The call of the gradient op that the forward's results lead to, with random incoming gradients.
BodyCase gradient_call(const RecurrentCase& test, const BodyCase& forward,
                       const std::vector<Tensor>& results) {
  const DType dtype = forward.inputs[0].dtype();
  const size_t states = test.op == "LSTM" ? 3 : 2;
  BodyCase call{test.name,
                test.op + "Grad",
                test.attributes,
                {forward.inputs[0], forward.inputs[1], forward.inputs[2], forward.inputs[4],
                 forward.inputs[5]},
                test.op == "LSTM" ? 7 : 5};
  if (test.op == "LSTM") {
    call.inputs.push_back(forward.inputs[6]);
    call.inputs.push_back(forward.inputs[7]);
  }
  call.inputs.push_back(results[0]);
  for (size_t i = states; i < results.size(); ++i) call.inputs.push_back(results[i]);
  if (test.op == "GRU" && results.size() == 3) call.inputs.emplace_back();
  for (size_t i = 0; i < states; ++i) {
    call.inputs.push_back(random_tensor(dtype, results[i].shape(), 30 + i));
  }
  if (dtype != DType::kF64) call.attributes.set("out_dtype", static_cast<int64_t>(DType::kF32));
  return call;
}

TEST(RecurrentBody, EveryAttribute) {
  for (DType dtype : kRecurrentTypes) {
    for (const RecurrentCase& test : recurrent_cases()) {
      const BodyCase forward = forward_call(test, dtype);
      expect_recurrent_body_agrees(forward);
    }
  }
}

TEST(RecurrentGradBody, EveryAttribute) {
  for (DType dtype : kRecurrentTypes) {
    for (const RecurrentCase& test : recurrent_cases()) {
      const BodyCase forward = forward_call(test, dtype);
      expect_recurrent_body_agrees(gradient_call(test, forward, run_kernel(forward)));
    }
  }
}

TEST(RecurrentGradBody, AbsentGradients) {
  for (const char* op : {"RNN", "GRU", "LSTM"}) {
    const RecurrentCase test{"only the last state", op};
    const BodyCase forward = forward_call(test, DType::kF32);
    BodyCase call = gradient_call(test, forward, run_kernel(forward));
    const size_t dy = call.inputs.size() - (test.op == "LSTM" ? 3 : 2);
    call.inputs[dy] = Tensor{};
    expect_recurrent_body_agrees(call);
  }
}

// ONNX's inference refuses a function with more results than its call names.
TEST(RecurrentGradBody, ResultsThatTheCallLeavesOut) {
  const BodyCase forward = forward_call({"no initial state", "LSTM"}, DType::kF32);
  BodyCase call = gradient_call({"no initial state", "LSTM"}, forward, run_kernel(forward));
  const size_t all = body_of(call).body.nodes().size();
  call.outputs = 4;
  EXPECT_EQ(body_of(call).body.outputs().size(), 4u);
  EXPECT_LT(body_of(call).body.nodes().size(), all) << "nodes for results that nobody reads";
  expect_recurrent_body_agrees(call);
}

// The body writes the steps out: an unknown number of them is refused, with the way out.
TEST(RecurrentBody, SymbolicStepsAreRefused) {
  BodyCase call = forward_call({"symbolic", "LSTM"}, DType::kF32);
  call.symbolic_batch = true;  // the first dim of X, which is the time here
  try {
    body_of(call);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("--dim"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace halfnote::test
