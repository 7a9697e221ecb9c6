// Every `<Op>Grad` of ai.halfnote against central differences of its op in f64, and its behaviour
// at the kinks.
#include <gtest/gtest.h>

#include <cmath>

#include "harness.h"

namespace halfnote::test {
namespace {

enum class Reads { kInput, kOutput };

/// An op on the interval [low, high]; points closer than `gap` to a kink are moved away from it.
struct GradCase {
  const char* op;
  Reads reads = Reads::kInput;
  double low = -3, high = 3;
  Attributes attributes = {};
  std::vector<double> kinks = {};
};

const GradCase kGradCases[] = {
    {"Abs", Reads::kInput, -3, 3, {}, {0}},
    {"Acos", Reads::kInput, -0.9, 0.9},
    {"Acosh", Reads::kInput, 1.1, 9},
    {"Asin", Reads::kInput, -0.9, 0.9},
    {"Asinh"},
    {"Atan"},
    {"Atanh", Reads::kInput, -0.9, 0.9},
    {"Celu", Reads::kInput, -3, 3, {{"alpha", 0.7f}}},
    {"Cos"},
    {"Cosh"},
    {"Elu", Reads::kOutput, -3, 3, {{"alpha", 1.3f}}, {0}},
    {"Elu", Reads::kInput, -3, 3, {{"alpha", -0.5f}, {"from_input", int64_t{1}}}, {0}},
    {"Erf"},
    {"Exp", Reads::kOutput},
    {"Gelu"},
    {"Gelu", Reads::kInput, -3, 3, {{"approximate", std::string("tanh")}}},
    {"HardSigmoid", Reads::kInput, -4, 4, {}, {-2.5, 2.5}},
    {"HardSigmoid", Reads::kInput, -4, 4, {{"alpha", 0.5f}, {"beta", 0.25f}}, {-0.5, 1.5}},
    {"HardSwish", Reads::kInput, -5, 5, {}, {-3, 3}},
    {"LeakyRelu", Reads::kOutput, -3, 3, {{"alpha", 0.1f}}, {0}},
    {"LeakyRelu", Reads::kInput, -3, 3, {{"alpha", -0.1f}, {"from_input", int64_t{1}}}, {0}},
    {"Log", Reads::kInput, 0.1, 5},
    {"Mish", Reads::kInput, -5, 5},
    {"Reciprocal", Reads::kOutput, 0.2, 4},
    {"Relu", Reads::kOutput, -3, 3, {}, {0}},
    {"Selu", Reads::kInput, -3, 3, {}, {0}},
    {"Shrink", Reads::kInput, -2, 2, {{"lambd", 0.7f}, {"bias", 0.2f}}, {-0.7, 0.7}},
    {"Sigmoid", Reads::kOutput},
    {"Sin"},
    {"Sinh"},
    {"Softplus"},
    {"Softsign", Reads::kInput, -3, 3, {}, {0}},
    {"Sqrt", Reads::kOutput, 0.1, 5},
    {"Swish"},
    {"Swish", Reads::kInput, -3, 3, {{"alpha", 1.7f}}},
    {"Tan", Reads::kInput, -1.2, 1.2},
    {"Tanh", Reads::kOutput},
    {"ThresholdedRelu", Reads::kInput, -3, 3, {{"alpha", 0.6f}}, {0.6}},
};

constexpr double kStep = 1e-5;  // the error of a central difference is about step² = 1e-10

Tensor points_of(const GradCase& test) {
  Tensor points = random_tensor(DType::kF64, {101}, test.low, test.high);
  for (double& x : points.mutable_data<double>()) {
    for (const double kink : test.kinks) {
      if (std::fabs(x - kink) < 0.01) x = kink + (x < kink ? -0.01 : 0.01);
    }
  }
  return points;
}

Tensor shifted(const Tensor& points, double by) {
  Tensor moved = points.deep_copy();
  for (double& x : moved.mutable_data<double>()) x += by;
  return moved;
}

/// The attributes that the forward op knows.
Attributes forward_attributes(const GradCase& test) {
  Attributes attributes = test.attributes;
  attributes.erase("from_input");
  return attributes;
}

TEST(ElementwiseGrad, AgreesWithCentralDifferences) {
  for (const GradCase& test : kGradCases) {
    SCOPED_TRACE(test.op);
    const Attributes forward = forward_attributes(test);
    const Tensor x = points_of(test), dy = random_tensor(DType::kF64, {101}, -2, 2, 7);
    const Tensor s = test.reads == Reads::kInput ? x : run_one("", test.op, {x}, forward);
    const Tensor got =
        run_one("ai.halfnote", std::string(test.op) + "Grad", {dy, s}, test.attributes);
    const Tensor above = run_one("", test.op, {shifted(x, kStep)}, forward);
    const Tensor below = run_one("", test.op, {shifted(x, -kStep)}, forward);
    for (int64_t i = 0; i < x.size(); ++i) {
      const double slope = (above.at_as_double(i) - below.at_as_double(i)) / (2 * kStep);
      const double wanted = slope * dy.at_as_double(i);
      EXPECT_NEAR(got.at_as_double(i), wanted, 1e-6 * std::max(1e-3, std::fabs(wanted)))
          << "at " << x.at_as_double(i);
    }
  }
}

TEST(ElementwiseGrad, IsZeroOnTheFlatSideOfAKink) {
  const Tensor dy = Tensor::of<float>({3}, {5, 5, 5}), zero = Tensor::of<float>({3}, {0, -0.0f, 0});
  const Tensor flat = Tensor::of<float>({3}, {0, 0, 0});
  for (const char* op : {"ReluGrad", "AbsGrad", "ThresholdedReluGrad", "ShrinkGrad"}) {
    SCOPED_TRACE(op);
    expect_close(run_one("ai.halfnote", op, {dy, zero}), flat, 0, 0);
  }
}

TEST(ElementwiseGrad, ClipPassesTheGradientOnTheClosedInterval) {
  const Tensor dy = Tensor::of<float>({5}, {1, 2, 3, 4, 5});
  const Tensor x = Tensor::of<float>({5}, {-2, -1, 0, 1, 2});
  const Tensor low = Tensor::scalar(-1.0f), high = Tensor::scalar(1.0f);
  const auto clip_grad = [&](const Tensor& min, const Tensor& max) {
    return run_one("ai.halfnote", "ClipGrad", {dy, x, min, max});
  };
  EXPECT_TRUE(identical(clip_grad(low, high), Tensor::of<float>({5}, {0, 2, 3, 4, 0})));
  EXPECT_TRUE(identical(clip_grad({}, high), Tensor::of<float>({5}, {1, 2, 3, 4, 0})));
  EXPECT_TRUE(identical(clip_grad(low, {}), Tensor::of<float>({5}, {0, 2, 3, 4, 5})));
  EXPECT_TRUE(identical(clip_grad({}, {}), dy));
}

}  // namespace
}  // namespace halfnote::test
