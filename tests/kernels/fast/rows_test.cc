// Adam, AllFinite, GlobalNorm and the cross-entropy in vectors, against their references.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/exact.h"

namespace halfnote::test {
namespace {

constexpr std::string_view kOwn = "ai.halfnote";
const RunOptions kFast{.kernel = "fast"};

TEST(FastOptimizer, AdamIsTheReferenceBitForBit) {
  for (const std::string_view op : {"Adam", "AdamW"}) {
    for (const int64_t mode : {0, 1}) {
      for (const bool commit : {true, false}) {
        for (const Shape& shape : {Shape{1}, Shape{37}, Shape{129, 257}}) {
          SCOPED_TRACE(std::string(op) + " " + to_string(shape));
          Attributes attributes{{"weight_decay", 0.1f}, {"beta1", 0.8f}};
          if (op == "AdamW") attributes.set("adam_mode", mode);
          const std::vector<Tensor> inputs{
              random_tensor(DType::kF32, shape, -1, 1, 1),
              random_tensor(DType::kF32, shape, -1, 1, 2),
              random_tensor(DType::kF32, shape, -1, 1, 3),
              random_tensor(DType::kF32, shape, 0, 1, 4),
              Tensor::of<float>({}, {0.01f}),
              Tensor::of<int64_t>({}, {3}),
              Tensor::of<float>({}, {commit ? 1.0f : 0.0f}).cast_to(DType::kBool)};
          const OutputSpec state{DType::kF32, shape};
          const auto got = run_kernel(kOwn, op, inputs, attributes, {state, state, state}, kFast);
          const auto wanted = run_kernel(kOwn, op, inputs, attributes, {state, state, state});
          for (size_t i = 0; i < wanted.size(); ++i) EXPECT_TRUE(identical(got[i], wanted[i])) << i;
        }
      }
    }
  }
}

TEST(FastOptimizer, FindsWhatIsNotFiniteWhereverItStands) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t at : {-1, 0, 5, 63, 64, 16384, 20000}) {
      for (const double special : {std::numeric_limits<double>::infinity(),
                                   -std::numeric_limits<double>::infinity(), std::nan("")}) {
        Tensor x = random_tensor(DType::kF64, {20001}, -6e4, 6e4, 1);
        if (at >= 0) x.mutable_data<double>()[static_cast<size_t>(at)] = special;
        const Tensor finite =
            run_one(kOwn, "AllFinite", {random_tensor(type, {3}, 0, 1), x.cast_to(type)}, {},
                    {DType::kBool, {}}, kFast);
        EXPECT_EQ(finite.data<bool>()[0], at < 0) << short_name(type) << " " << at;
      }
    }
  }
}

TEST(FastOptimizer, GlobalNormIsTheReferenceBitForBit) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::vector<Tensor> x{random_tensor(type, {7}, -1, 1, 1),
                                random_tensor(type, {129, 255}, -9, 9, 2),
                                random_tensor(type, {0}, 0, 1, 3)};
    EXPECT_TRUE(identical(run_one(kOwn, "GlobalNorm", x, {}, {DType::kF32, {}}, kFast),
                          run_one(kOwn, "GlobalNorm", x, {}, {DType::kF32, {}})));
  }
}

struct FastLossCase {
  Shape scores;
  std::string reduction = "mean";
  bool ignore = false, weights = false;
};
const FastLossCase kLosses[] = {{{1, 1}},
                                {{5, 7}},
                                {{6, 65}, "sum", true},
                                {{33, 130}, "none", false, true},
                                {{9, 4099}, "mean", true, true}};

TEST(FastCrossEntropy, AgreesWithTheReference) {
  for (const FastLossCase& c : kLosses) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(to_string(c.scores) + " " + std::string(short_name(type)));
      const int64_t rows = c.scores[0], classes = c.scores[1];
      const Tensor x = random_tensor(type, c.scores, -9, 9, 1);
      const Tensor labels = random_tensor(DType::kI64, {rows}, 0, static_cast<double>(classes), 2);
      const Tensor weights = c.weights ? random_tensor(type, {classes}, 0.5, 2, 3) : Tensor();
      Attributes attributes{{"reduction", c.reduction}};
      if (c.ignore) attributes.set("ignore_index", labels.data<int64_t>()[1]);
      const Shape loss = c.reduction == "none" ? Shape{rows} : Shape{};
      const std::vector<OutputSpec> outputs{{type, loss}, {type, c.scores}};
      const auto got = run_kernel("", "SoftmaxCrossEntropyLoss", {x, labels, weights}, attributes,
                                  outputs, kFast);
      const auto wanted =
          run_kernel("", "SoftmaxCrossEntropyLoss", {x, labels, weights}, attributes, outputs);
      // exp within an ulp, 64 partial sums of f32 over at most 2048 elements; one rounding each to
      // the type of the result. Log-probabilities are up to 27.
      const double bound = 64 * 0x1p-24 + 2 * unit_roundoff(type);
      for (size_t i = 0; i < wanted.size(); ++i)
        expect_close(got[i], wanted[i], bound, 27 * 64 * 0x1p-24);
      const Tensor dl = random_tensor(DType::kF32, loss, 0.5, 2, 4);
      const OutputSpec dx{type, c.scores};
      expect_close(run_one(kOwn, "SoftmaxCrossEntropyLossGrad", {dl, wanted[1], labels, weights},
                           attributes, dx, kFast),
                   run_one(kOwn, "SoftmaxCrossEntropyLossGrad", {dl, wanted[1], labels, weights},
                           attributes, dx),
                   bound, 16 * 0x1p-24);
    }
  }
}

/// One call from scores of 16 bits: the bits of casts, loss and gradient one after the other.
TEST(FastCrossEntropy, LossAndGradientAtOnceAreTheTwoBitForBit) {
  for (const FastLossCase& c : kLosses) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(to_string(c.scores) + " " + std::string(short_name(type)));
      const int64_t rows = c.scores[0], classes = c.scores[1];
      const Tensor x = random_tensor(type, c.scores, -9, 9, 1);
      const Tensor labels = random_tensor(DType::kI64, {rows}, 0, static_cast<double>(classes), 2);
      const Tensor weights =
          c.weights ? random_tensor(DType::kF32, {classes}, 0.5, 2, 3) : Tensor();
      Attributes attributes{{"reduction", c.reduction}};
      if (c.ignore) attributes.set("ignore_index", labels.data<int64_t>()[1]);
      const Shape loss = c.reduction == "none" ? Shape{rows} : Shape{};
      const Tensor dl = random_tensor(DType::kF32, loss, 0.5, 2, 4);
      const std::vector<OutputSpec> wide{{DType::kF32, loss}, {DType::kF32, c.scores}};
      const auto forward =
          run_kernel("", "SoftmaxCrossEntropyLoss", {x.cast_to(DType::kF32), labels, weights},
                     attributes, wide, kFast);
      const Tensor dx =
          run_one(kOwn, "SoftmaxCrossEntropyLossGrad", {dl, forward[1], labels, weights},
                  attributes, {DType::kF32, c.scores}, kFast);
      const std::vector<OutputSpec> outputs{{DType::kF32, loss}, {type, c.scores}};
      const std::vector<Tensor> inputs{x, labels, dl, weights};
      const auto got = run_kernel(kOwn, "SoftmaxCrossEntropyLossWithGradient", inputs, attributes,
                                  outputs, kFast);
      EXPECT_TRUE(identical(got[0], forward[0]));
      EXPECT_TRUE(identical(got[1], dx.cast_to(type)));
      const auto wanted =
          run_kernel(kOwn, "SoftmaxCrossEntropyLossWithGradient", inputs, attributes, outputs);
      expect_close(got[0], wanted[0], 64 * 0x1p-24, 27 * 64 * 0x1p-24);
      // Two roundings to the type may fall on different sides of a tie.
      expect_close(got[1], wanted[1], 64 * 0x1p-24 + 2 * unit_roundoff(type), 27 * 64 * 0x1p-24);
    }
  }
}

/// What stands behind the classes is not read, and its gradient is 0.
TEST(FastCrossEntropy, PaddedClassesAreThoseWithoutPadding) {
  constexpr int64_t kRows = 9, kAll = 136;
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t classes : {int64_t{1}, int64_t{5}, int64_t{131}, kAll}) {
      SCOPED_TRACE(std::to_string(classes) + " " + std::string(short_name(type)));
      Tensor x = random_tensor(DType::kF64, {kRows, kAll}, -9, 9, 1);
      Tensor few(DType::kF64, {kRows, classes});
      for (int64_t i = 0; i < x.size(); ++i) {
        double& value = x.mutable_data<double>()[static_cast<size_t>(i)];
        const int64_t at = i / kAll * classes + i % kAll;
        if (i % kAll < classes) few.mutable_data<double>()[static_cast<size_t>(at)] = value;
        if (i % kAll >= classes) value = std::nan("");
      }
      const Tensor labels = random_tensor(DType::kI64, {kRows}, 0, static_cast<double>(classes), 2);
      const Tensor dl = Tensor::scalar(0.5f);
      Attributes attributes{{"ignore_index", labels.data<int64_t>()[1]}};
      const std::string_view op = "SoftmaxCrossEntropyLossWithGradient";
      const auto wanted = run_kernel(kOwn, op, {few.cast_to(type), labels, dl}, attributes,
                                     {{DType::kF32, {}}, {type, {kRows, classes}}}, kFast);
      attributes.set("classes", classes);
      const auto got = run_kernel(kOwn, op, {x.cast_to(type), labels, dl}, attributes,
                                  {{DType::kF32, {}}, {type, {kRows, kAll}}}, kFast);
      EXPECT_TRUE(identical(got[0], wanted[0]));
      for (int64_t i = 0; i < got[1].size(); ++i) {
        const int64_t at = i / kAll * classes + i % kAll;
        EXPECT_EQ(got[1].at_as_double(i), i % kAll < classes ? wanted[1].at_as_double(at) : 0);
      }
    }
  }
}

TEST(FastCrossEntropy, TakesInfinitiesAndNanAsTheReference) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x =
      Tensor::of<float>({3, 4}, {-inf, 1, 2, -inf, 0, inf, 1, 2, 1, std::nanf(""), 2, 3});
  const Tensor labels = Tensor::of<int64_t>({3}, {1, 0, 2});
  const std::vector<OutputSpec> outputs{{DType::kF32, {3}}, {DType::kF32, {3, 4}}};
  const Attributes attributes{{"reduction", "none"}};
  const auto got =
      run_kernel("", "SoftmaxCrossEntropyLoss", {x, labels}, attributes, outputs, kFast);
  const auto wanted = run_kernel("", "SoftmaxCrossEntropyLoss", {x, labels}, attributes, outputs);
  for (size_t i = 0; i < 2; ++i) expect_close(got[i], wanted[i], 4 * 0x1p-24, 0);
}

TEST(FastLogSoftmax, IsExactInTheMean) {
  for (const Shape& shape : {Shape{300, 2}, Shape{64, 12}, Shape{50, 1000}, Shape{3, 5000}}) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(to_string(shape) + std::string(short_name(type)));
      const Tensor x = random_tensor(type, shape, -3, 3, 1);
      const Tensor exact = run_one("", "LogSoftmax", {x.cast_to(DType::kF64)});
      const Tensor y = run_one("", "LogSoftmax", {x}, {}, {}, kFast);
      expect_close(y, exact.cast_to(type), 2 * unit_roundoff(type), 8 * 0x1p-24);
      double mean = 0;
      for (int64_t i = 0; i < y.size(); ++i)
        mean += (y.at_as_double(i) - exact.at_as_double(i)) / static_cast<double>(y.size());
      // Roundings of f32 to either side; oneDNN 3.2 is 2e-7 to 1.3e-6 too high.
      if (type == DType::kF32) {
        EXPECT_LT(std::abs(mean), 3e-8);
      }
    }
  }
}

TEST(FastLogSoftmax, TakesInfinitiesAndNanAsTheReference) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor x =
      Tensor::of<float>({4, 3}, {-inf, 1, 2, 0, inf, 1, 1, std::nanf(""), 2, -inf, -inf, -inf});
  expect_close(run_one("", "LogSoftmax", {x}, {}, {}, kFast), run_one("", "LogSoftmax", {x}),
               4 * 0x1p-24, 0);
}

/// Whole lines that a mask has taken to where f64 holds no logarithm beside the largest.
TEST(FastLogSoftmax, OfLinesThatAreFar) {
  const float lowest = std::numeric_limits<float>::lowest();
  Tensor x = random_tensor(DType::kF32, {4, 24}, -3, 3, 1);
  const std::span<float> numbers = x.mutable_data<float>();
  for (size_t i = 0; i < 24; ++i) {
    numbers[24 + i] = lowest;
    numbers[48 + i] = i < 20 ? lowest : -1e9f;
    numbers[72 + i] += 1e8f;
  }
  expect_close(run_one("", "LogSoftmax", {x}, {}, {}, kFast), run_one("", "LogSoftmax", {x}), 0,
               8 * 0x1p-24);
  const Tensor y = run_one("", "LogSoftmax", {x}, {}, {}, kFast);
  EXPECT_NEAR(y.at_as_double(24), -std::log(24.0), 1e-6);
  const Tensor labels = Tensor::of<int64_t>({4}, {0, 1, 22, 3});
  const Attributes none{{"reduction", std::string("none")}};
  const std::vector<OutputSpec> outputs = {{DType::kF32, {4}}, {DType::kF32, {4, 24}}};
  const auto got = run_kernel("", "SoftmaxCrossEntropyLoss", {x, labels}, none, outputs, kFast);
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_NEAR(got[0].at_as_double(i),
                -y.at_as_double(i * 24 + labels.at_as_int(static_cast<size_t>(i))), 1e-5);
}

TEST(FastCrossEntropy, SaysWhatItDoesNotTake) {
  const Tensor x(DType::kF32, {2, 3, 4}), labels(DType::kI64, {2, 4});
  EXPECT_NE(refusals("", "SoftmaxCrossEntropyLoss", {x, labels}, {}, {{DType::kF32, {}}}, kFast)
                .find("innermost"),
            std::string::npos);
  EXPECT_NE(refusals(kOwn, "SoftmaxCrossEntropyLossWithGradient", {x, labels, Tensor::scalar(1.0f)},
                     {}, {{DType::kF32, {}}, {DType::kF32, {2, 3, 4}}}, kFast)
                .find("innermost"),
            std::string::npos);
}

}  // namespace
}  // namespace halfnote::test
