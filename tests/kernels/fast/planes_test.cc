// Cross-entropy and softmax along an axis that is not the innermost one, in vectors of positions,
// against their references.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/cpu/cpu_info.h"
#include "tests/kernels/exact.h"

namespace halfnote::test {
namespace {

struct PlaneLossCase {
  Shape scores;
  std::string reduction;
  bool weights = false, ignore = false;
};

const PlaneLossCase kPlaneLosses[] = {
    {{1, 1, 8}, "mean"},
    {{2, 3, 9}, "sum", true},
    {{3, 21, 5, 7}, "mean", false, true},
    {{2, 7, 3, 100}, "none", true, true},
    {{1, 5, 600}, "mean", true},
    {{2, 700, 70}, "mean"},
    {{2, 2, 3, 4, 5}, "none"},
};

constexpr DType kPlaneTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
const RunOptions kPlanes{.kernel = "fast.cross_entropy_planes"};
const RunOptions kSoftmaxPlanes{.kernel = "fast.softmax_planes"};

bool cpu_has_planes() { return cpu::vector_isa() != cpu::VectorIsa::kBaseline; }

#define NEEDS_PLANES() \
  if (!cpu_has_planes()) GTEST_SKIP() << "neither AVX2 nor AVX-512"

struct PlaneLoss {
  Tensor x, labels, weights;
  Attributes attributes;
  Shape loss;
};

PlaneLoss plane_loss(const PlaneLossCase& c, DType type, DType weight_type) {
  PlaneLoss p;
  Shape positions = c.scores;
  positions.erase(positions.begin() + 1);
  p.x = random_tensor(type, c.scores, -9, 9, 1);
  p.labels = random_tensor(DType::kI64, positions, 0, static_cast<double>(c.scores[1]), 2);
  if (c.weights) p.weights = random_tensor(weight_type, {c.scores[1]}, 0.5, 2, 3);
  p.attributes = {{"reduction", c.reduction}};
  if (c.ignore) p.attributes.set("ignore_index", p.labels.data<int64_t>()[1]);
  if (c.reduction == "none") p.loss = positions;
  return p;
}

TEST(FastPlanes, CrossEntropyAgreesWithTheReference) {
  NEEDS_PLANES();
  for (const PlaneLossCase& c : kPlaneLosses) {
    for (const DType type : kPlaneTypes) {
      SCOPED_TRACE(to_string(c.scores) + " " + std::string(short_name(type)));
      const PlaneLoss p = plane_loss(c, type, type);
      const std::vector<Tensor> inputs{p.x, p.labels, p.weights};
      const std::vector<OutputSpec> outputs{{type, p.loss}, {type, c.scores}};
      const auto got =
          run_kernel("", "SoftmaxCrossEntropyLoss", inputs, p.attributes, outputs, kPlanes);
      const auto wanted = run_kernel("", "SoftmaxCrossEntropyLoss", inputs, p.attributes, outputs);
      // exp within an ulp, sums in f64, one rounding to the result. Log-probabilities are up to 27.
      const double bound = 8 * 0x1p-24 + 2 * unit_roundoff(type);
      for (size_t i = 0; i < wanted.size(); ++i)
        expect_close(got[i], wanted[i], bound, 27 * 4 * 0x1p-24);
      const Tensor dl = random_tensor(DType::kF32, p.loss, 0.5, 2, 4);
      const std::vector<Tensor> back{dl, wanted[1], p.labels, p.weights};
      const OutputSpec dx{type, c.scores};
      expect_close(run_one(kOwn, "SoftmaxCrossEntropyLossGrad", back, p.attributes, dx, kPlanes),
                   run_one(kOwn, "SoftmaxCrossEntropyLossGrad", back, p.attributes, dx), bound,
                   16 * 0x1p-24);
    }
  }
}

/// One call from scores of 16 bits: the bits of casts, loss and gradient one after the other.
TEST(FastPlanes, LossAndGradientAtOnceAreTheTwoBitForBit) {
  NEEDS_PLANES();
  for (const PlaneLossCase& c : kPlaneLosses) {
    for (const DType type : kPlaneTypes) {
      SCOPED_TRACE(to_string(c.scores) + " " + std::string(short_name(type)));
      const PlaneLoss p = plane_loss(c, type, DType::kF32);
      const Tensor dl = random_tensor(DType::kF32, p.loss, 0.5, 2, 4);
      const std::vector<OutputSpec> wide{{DType::kF32, p.loss}, {DType::kF32, c.scores}};
      const auto forward =
          run_kernel("", "SoftmaxCrossEntropyLoss", {p.x.cast_to(DType::kF32), p.labels, p.weights},
                     p.attributes, wide, kPlanes);
      const Tensor dx =
          run_one(kOwn, "SoftmaxCrossEntropyLossGrad", {dl, forward[1], p.labels, p.weights},
                  p.attributes, {DType::kF32, c.scores}, kPlanes);
      const auto got =
          run_kernel(kOwn, "SoftmaxCrossEntropyLossWithGradient", {p.x, p.labels, dl, p.weights},
                     p.attributes, {{DType::kF32, p.loss}, {type, c.scores}}, kPlanes);
      EXPECT_TRUE(identical(got[0], forward[0]));
      EXPECT_TRUE(identical(got[1], dx.cast_to(type)));
    }
  }
}

/// Scores (1, 3, 8): position 1 has infinities, 2 a NaN, 3 and 4 (ignored) a NaN, 5 only −∞.
Tensor special_scores() {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  return Tensor::of<float>({1, 3, 8}, {1, inf,  nan, 1,   nan, -inf, 0, -inf,  //
                                       2, -inf, 1,   nan, 1,   -inf, 0, 1,     //
                                       3, 1,    2,   2,   2,   -inf, 0, 2});
}

TEST(FastPlanes, TakesInfinitiesAndNanAsTheReference) {
  NEEDS_PLANES();
  const Tensor labels = Tensor::of<int64_t>({1, 8}, {0, 1, 2, 9, 9, 0, 1, 2});
  const Attributes attributes{{"reduction", "none"}, {"ignore_index", int64_t{9}}};
  const Tensor dl = Tensor::of<float>({1, 8}, {1, 1, 1, 1, 1, 1, 1, 0});
  for (const DType type : kPlaneTypes) {
    const Tensor x = special_scores().cast_to(type);
    const std::vector<OutputSpec> outputs{{DType::kF32, {1, 8}}, {type, {1, 3, 8}}};
    const std::string_view both = "SoftmaxCrossEntropyLossWithGradient";
    const auto got = run_kernel(kOwn, both, {x, labels, dl}, attributes, outputs, kPlanes);
    const auto wanted = run_kernel(kOwn, both, {x, labels, dl}, attributes, outputs);
    for (size_t i = 0; i < 2; ++i)
      expect_close(got[i], wanted[i], 4 * 0x1p-24 + 2 * unit_roundoff(type), 4 * 0x1p-24);
  }
}

TEST(FastPlanes, RejectsLabelsOutsideTheClasses) {
  NEEDS_PLANES();
  const Tensor x = random_tensor(DType::kF32, {1, 3, 8}, -1, 1, 1);
  const Tensor labels = Tensor::of<int64_t>({1, 8}, {0, 1, 2, 3, 0, 0, 0, 0});
  EXPECT_THROW(run_one("", "SoftmaxCrossEntropyLoss", {x, labels}, {}, {DType::kF32, {}}, kPlanes),
               Error);
}

TEST(FastPlanes, SoftmaxAgreesWithTheReference) {
  NEEDS_PLANES();
  struct Axis {
    Shape shape;
    int64_t axis;
  };
  const Axis axes[] = {{{2, 3, 9}, 1},     {{5, 8}, 0},        {{1, 1, 8}, 1},
                       {{3, 21, 5, 7}, 1}, {{2, 4, 300}, -2},  {{4, 3, 5, 6}, 0},
                       {{2, 600, 70}, 1},  {{2, 3, 4, 17}, -2}};
  for (const Axis& a : axes) {
    for (const DType type : kPlaneTypes) {
      const Attributes attributes{{"axis", a.axis}};
      const Tensor x = random_tensor(type, a.shape, -9, 9, 1);
      const Tensor dy = random_tensor(type, a.shape, -1, 1, 2);
      for (const std::string_view op : {"Softmax", "LogSoftmax"}) {
        SCOPED_TRACE(std::string(op) + " " + to_string(a.shape) + std::string(short_name(type)));
        const Tensor y = run_one("", op, {x}, attributes);
        // exp within an ulp; logarithms of up to 27, rounded to f32 in the reference.
        const double rtol = 8 * 0x1p-24 + 2 * unit_roundoff(type), atol = 27 * 4 * 0x1p-24;
        expect_close(run_one("", op, {x}, attributes, {}, kSoftmaxPlanes), y, rtol,
                     op == "Softmax" ? 0x1p-24 : atol);
        const std::string gradient = std::string(op) + "Grad";
        // Sums of up to 600 terms of at most 1, rounded to f32.
        expect_close(run_one(kOwn, gradient, {dy, y}, attributes, {}, kSoftmaxPlanes),
                     run_one(kOwn, gradient, {dy, y}, attributes), rtol, 600 * 2 * 0x1p-24);
      }
    }
  }
}

TEST(FastPlanes, SoftmaxTakesInfinitiesAndNanAsTheReference) {
  NEEDS_PLANES();
  const Attributes attributes{{"axis", int64_t{1}}};
  for (const std::string_view op : {"Softmax", "LogSoftmax"}) {
    expect_close(run_one("", op, {special_scores()}, attributes, {}, kSoftmaxPlanes),
                 run_one("", op, {special_scores()}, attributes), 8 * 0x1p-24, 0x1p-24);
  }
}

/// A mask may take all scores of a position to where f64 holds no logarithm beside the largest.
TEST(FastPlanes, SoftmaxOfPositionsThatAreFar) {
  NEEDS_PLANES();
  Tensor x = random_tensor(DType::kF32, {2, 5, 19}, -3, 3, 1);
  for (int64_t c = 0; c < 5; ++c) {
    x.mutable_data<float>()[static_cast<size_t>(c * 19 + 3)] = std::numeric_limits<float>::lowest();
    x.mutable_data<float>()[static_cast<size_t>(c * 19 + 8)] -= 1e9f;
  }
  const Attributes attributes{{"axis", int64_t{1}}};
  for (const std::string_view op : {"Softmax", "LogSoftmax"}) {
    expect_close(run_one("", op, {x}, attributes, {}, kSoftmaxPlanes),
                 run_one("", op, {x}, attributes), 0, 8 * 0x1p-24);
  }
  const Tensor labels(DType::kI64, {2, 19}), dl = random_tensor(DType::kF32, {2, 19}, 0.5, 2, 2);
  const Attributes none{{"reduction", std::string("none")}};
  const std::vector<OutputSpec> outputs{{DType::kF32, {2, 19}}, {DType::kF32, {2, 5, 19}}};
  const std::string_view both = "SoftmaxCrossEntropyLossWithGradient";
  const auto got = run_kernel(kOwn, both, {x, labels, dl}, none, outputs, kPlanes);
  const auto wanted = run_kernel(kOwn, both, {x, labels, dl}, none, outputs);
  for (size_t i = 0; i < 2; ++i) expect_close(got[i], wanted[i], 8 * 0x1p-24, 8 * 0x1p-24);
  EXPECT_NEAR(got[0].at_as_double(3), std::log(5.0), 1e-6);
}

TEST(FastPlanes, LeavesAloneWhatIsNotItsOwn) {
  NEEDS_PLANES();
  const auto why = [](const Shape& shape, int64_t axis, DType type) {
    return refusals("", "Softmax", {Tensor(type, shape)}, {{"axis", axis}}, {{type, shape}},
                    kSoftmaxPlanes);
  };
  EXPECT_EQ(why({2, 3, 8}, 1, DType::kF32), "");
  EXPECT_NE(why({2, 3, 8}, 2, DType::kF32).find("innermost"), std::string::npos);
  EXPECT_NE(why({2, 3, 7}, 1, DType::kF32).find("few"), std::string::npos);
  EXPECT_NE(why({2, 0, 8}, 1, DType::kF32).find("without elements"), std::string::npos);
  EXPECT_NE(why({2, 3, 8}, 1, DType::kF64), "");
}

}  // namespace
}  // namespace halfnote::test
