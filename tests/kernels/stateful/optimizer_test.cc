// The optimizers against PyTorch's rules written out in f64, over several steps, and the
// transaction: a step that does not commit leaves the state bit for bit.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/harness.h"

namespace halfnote::test {
namespace {

constexpr int64_t kSize = 19;
constexpr int kSteps = 5;

/// PyTorch's update of one element: returns the new parameter, changes the moments.
using Rule = double (*)(double p, double g, double& m, double& v, double lr, int step);

struct OptimizerCase {
  const char* name;
  const char* op;
  int moments;
  Attributes attributes;
  Rule rule;
};

double adam(double p, double g, double& m, double& v, double lr, int step, double decay) {
  g += decay * p;
  m = 0.9f * m + (1 - double{0.9f}) * g;
  v = 0.999f * v + (1 - double{0.999f}) * g * g;
  const double first = 1 - std::pow(double{0.9f}, step);
  const double second = 1 - std::pow(double{0.999f}, step);
  return p - lr / first * m / (std::sqrt(v) / std::sqrt(second) + double{1e-8f});
}

const OptimizerCase kOptimizerCases[] = {
    {"SGD",
     "SGD",
     0,
     {},
     [](double p, double g, double&, double&, double lr, int) { return p - lr * g; }},
    {"SGD with decay",
     "SGD",
     0,
     {{"weight_decay", 0.125f}},
     [](double p, double g, double&, double&, double lr, int) { return p - lr * (g + 0.125 * p); }},
    {"momentum",
     "Momentum",
     1,
     {{"momentum", 0.75f}},
     [](double p, double g, double& m, double&, double lr, int step) {
       m = step == 1 ? g : 0.75 * m + g;
       return p - lr * m;
     }},
    {"momentum with dampening and decay",
     "Momentum",
     1,
     {{"momentum", 0.75f}, {"dampening", 0.25f}, {"weight_decay", 0.125f}},
     [](double p, double g, double& m, double&, double lr, int step) {
       g += 0.125 * p;
       m = step == 1 ? g : 0.75 * m + 0.75 * g;
       return p - lr * m;
     }},
    {"Nesterov",
     "Momentum",
     1,
     {{"momentum", 0.75f}, {"nesterov", int64_t{1}}},
     [](double p, double g, double& m, double&, double lr, int step) {
       m = step == 1 ? g : 0.75 * m + g;
       return p - lr * (g + 0.75 * m);
     }},
    {"Adam",
     "Adam",
     2,
     {},
     [](double p, double g, double& m, double& v, double lr, int step) {
       return adam(p, g, m, v, lr, step, 0);
     }},
    {"Adam with decay",
     "Adam",
     2,
     {{"weight_decay", 0.125f}},
     [](double p, double g, double& m, double& v, double lr, int step) {
       return adam(p, g, m, v, lr, step, 0.125);
     }},
    {"AdamW",
     "AdamW",
     2,
     {{"weight_decay", 0.125f}},
     [](double p, double g, double& m, double& v, double lr, int step) {
       return adam(p * (1 - lr * 0.125), g, m, v, lr, step, 0);
     }},
    {"AdamW without bias correction",
     "AdamW",
     2,
     {{"weight_decay", 0.125f}, {"correct_bias", int64_t{0}}},
     [](double p, double g, double& m, double& v, double lr, int) {
       p *= 1 - lr * 0.125;
       adam(p, g, m, v, lr, 1, 0);  // moves the moments
       return p - lr * m / (std::sqrt(v) + double{1e-8f});
     }},
    {"AdamW of Hugging Face",
     "AdamW",
     2,
     {{"weight_decay", 0.125f}, {"adam_mode", int64_t{1}}, {"epsilon", 1e-3f}},
     [](double p, double g, double& m, double& v, double lr, int step) {
       adam(p, g, m, v, lr, 1, 0);  // moves the moments
       const double first = 1 - std::pow(double{0.9f}, step);
       const double second = 1 - std::pow(double{0.999f}, step);
       p -= lr * std::sqrt(second) / first * m / (std::sqrt(v) + double{1e-3f});
       return p * (1 - lr * 0.125);
     }},
};

/// The operands of a step: state is param and then the moments.
std::vector<Tensor> operands(const OptimizerCase& test, const std::vector<Tensor>& state,
                             const Tensor& grad, const Tensor& lr, int64_t step) {
  std::vector<Tensor> inputs = {state[0], grad};
  inputs.insert(inputs.end(), state.begin() + 1, state.end());
  inputs.push_back(lr);
  if (test.moments > 0) inputs.push_back(Tensor::scalar(step));
  return inputs;
}

std::vector<OutputSpec> outputs_of(const OptimizerCase& test, DType dtype) {
  return std::vector<OutputSpec>(static_cast<size_t>(1 + test.moments), {dtype, {kSize}});
}

class Optimizers : public testing::TestWithParam<DType> {};

TEST_P(Optimizers, FollowPyTorch) {
  // Each f32 step rounds some ten times; the parameters are of size 1.
  const double tolerance = GetParam() == DType::kF64 ? 1e-14 : kSteps * 10 * 0x1p-24;
  for (const OptimizerCase& test : kOptimizerCases) {
    SCOPED_TRACE(test.name);
    const Tensor lr = Tensor::scalar_of(GetParam(), 0.0625);
    std::vector<Tensor> state = {random_tensor(GetParam(), {kSize}, -1, 1)};
    for (int i = 0; i < test.moments; ++i) state.push_back(Tensor::full(GetParam(), {kSize}, 0));
    std::vector<double> p(kSize), m(kSize, 0.0), v(kSize, 0.0);
    for (int64_t i = 0; i < kSize; ++i) p[static_cast<size_t>(i)] = state[0].at_as_double(i);
    for (int step = 1; step <= kSteps; ++step) {
      const Tensor grad =
          random_tensor(GetParam(), {kSize}, -1, 1, 10 + static_cast<uint32_t>(step));
      state = run_kernel("ai.halfnote", test.op, operands(test, state, grad, lr, step),
                         test.attributes, outputs_of(test, GetParam()));
      for (size_t i = 0; i < kSize; ++i) {
        p[i] =
            test.rule(p[i], grad.at_as_double(static_cast<int64_t>(i)), m[i], v[i], 0.0625, step);
        EXPECT_NEAR(state[0].at_as_double(static_cast<int64_t>(i)), p[i], tolerance);
      }
    }
  }
}

TEST_P(Optimizers, GiveTheOldStateBackWithoutCommit) {
  for (const OptimizerCase& test : kOptimizerCases) {
    SCOPED_TRACE(test.name);
    std::vector<Tensor> state;
    for (int i = 0; i <= test.moments; ++i) {
      state.push_back(random_tensor(GetParam(), {kSize}, 0, 1, 20 + static_cast<uint32_t>(i)));
    }
    const Tensor infinite = Tensor::full(GetParam(), {kSize}, INFINITY);
    std::vector<Tensor> inputs =
        operands(test, state, infinite, Tensor::scalar_of(GetParam(), 0.1), 3);
    inputs.push_back(Tensor::scalar(false));
    const std::vector<Tensor> after =
        run_kernel("ai.halfnote", test.op, inputs, test.attributes, outputs_of(test, GetParam()));
    for (size_t i = 0; i < state.size(); ++i) EXPECT_TRUE(identical(after[i], state[i]));
    inputs.back() = Tensor::scalar(true);
    EXPECT_FALSE(identical(run_kernel("ai.halfnote", test.op, inputs, test.attributes,
                                      outputs_of(test, GetParam()))[0],
                           state[0]));
  }
}

TEST(Optimizers, RefuseStateOf16Bits) {
  const Tensor x = Tensor::full(DType::kF16, {3}, 1), lr = Tensor::full(DType::kF16, {}, 1);
  EXPECT_EQ(refusals("ai.halfnote", "SGD", {x, x, lr}, {}, {{DType::kF16, {3}}}),
            "reference: optimizer state is neither f32 nor f64");
}

INSTANTIATE_TEST_SUITE_P(Types, Optimizers, testing::Values(DType::kF32, DType::kF64),
                         [](const auto& test) { return std::string(short_name(test.param)); });

}  // namespace
}  // namespace halfnote::test
