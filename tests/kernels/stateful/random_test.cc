// Philox4x32-10 against the known answers of its authors, the distributions drawn from it, and
// dropout.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/math/philox.h"
#include "tests/kernels/harness.h"

namespace halfnote::test {
namespace {

using math::PhiloxCounter;

void expect_words(const PhiloxCounter& got, const PhiloxCounter& wanted) {
  for (int i = 0; i < 4; ++i) EXPECT_EQ(got.word[i], wanted.word[i]) << "word " << i;
}

TEST(Philox, GivesTheKnownAnswers) {
  expect_words(math::philox4x32({{0, 0, 0, 0}}, {0, 0}),
               {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect_words(math::philox4x32({{~0u, ~0u, ~0u, ~0u}}, {~0u, ~0u}),
               {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect_words(math::philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
                                {0xa4093822, 0x299f31d0}),
               {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

constexpr int64_t kMany = 100003;  // odd, and several parallel blocks

struct Moments {
  double mean = 0, variance = 0, low = INFINITY, high = -INFINITY;
};

Moments moments_of(const Tensor& tensor) {
  Moments result;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const double x = tensor.at_as_double(i);
    result.mean += x / static_cast<double>(tensor.size());
    result.low = std::min(result.low, x);
    result.high = std::max(result.high, x);
  }
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const double off = tensor.at_as_double(i) - result.mean;
    result.variance += off * off / static_cast<double>(tensor.size());
  }
  return result;
}

Tensor draw(const char* op, const Attributes& attributes, DType dtype = DType::kF32) {
  return run_one("", op, {}, attributes, {dtype, {kMany}});
}

// The standard error of a mean of n draws of deviation s is s/sqrt(n): 0.0032·s here. Four of them.
TEST(Random, UniformFillsItsInterval) {
  const Moments m = moments_of(draw("RandomUniform", {{"low", -1.0f}, {"high", 3.0f}}));
  EXPECT_NEAR(m.mean, 1, 4 * 0.0032 * 1.155);
  EXPECT_NEAR(m.variance, 16.0 / 12, 0.02);
  EXPECT_GE(m.low, -1);
  EXPECT_LE(m.high, 3);
  EXPECT_LT(m.low, -0.99);
  EXPECT_GT(m.high, 2.99);
}

TEST(Random, NormalHasItsMeanAndDeviation) {
  const Moments m = moments_of(draw("RandomNormal", {{"mean", 2.0f}, {"scale", 0.5f}}));
  EXPECT_NEAR(m.mean, 2, 4 * 0.0032 * 0.5);
  EXPECT_NEAR(m.variance, 0.25, 4 * 0.0032 * 0.25 * 1.42);
}

TEST(Random, DependsOnTheSeedAlone) {
  for (const char* op : {"RandomNormal", "RandomUniform"}) {
    const Tensor first = draw(op, {{"seed", 1.0f}});
    EXPECT_TRUE(identical(first, draw(op, {{"seed", 1.0f}})));
    EXPECT_FALSE(identical(first, draw(op, {{"seed", 2.0f}})));
    EXPECT_TRUE(identical(draw(op, {{"seed", 1.0f}}, DType::kBF16), first.cast_to(DType::kBF16)));
    const Tensor shape_giver(DType::kF32, {kMany});
    EXPECT_TRUE(
        identical(run_one("", std::string(op) + "Like", {shape_giver}, {{"seed", 1.0f}}), first));
  }
}

Tensor drop(const Tensor& x, float ratio, int64_t node, int64_t seed, int64_t step) {
  return run_one("ai.halfnote", "Dropout", {x, Tensor::scalar(seed), Tensor::scalar(step)},
                 {{"ratio", ratio}, {"node", node}});
}

/// docs/operators.md, written out an element at a time.
bool is_kept(int64_t i, float ratio, int64_t node, int64_t seed, int64_t step) {
  const auto low = [](int64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](int64_t x) { return static_cast<uint32_t>(x >> 32); };
  const PhiloxCounter words =
      math::philox4x32({{low(i / 4), high(i / 4), low(step), low(node)}}, {low(seed), high(seed)});
  return words.word[i % 4] * 0x1p-32 >= ratio;
}

TEST(Dropout, KeepsWhatTheCounterSays) {
  const int64_t seed = (int64_t{7} << 32) + 3, step = 11;
  for (const float ratio : {0.0f, 0.1f, 0.5f, 0.9f, 1.0f}) {
    const Tensor x = random_tensor(DType::kF32, {4099}, 1, 2);
    const Tensor y = drop(x, ratio, 5, seed, step);
    const float factor = 1 / (1 - ratio);
    for (int64_t i = 0; i < x.size(); ++i) {
      const float wanted = is_kept(i, ratio, 5, seed, step) ? x.data<float>()[i] * factor : 0;
      ASSERT_EQ(y.data<float>()[i], wanted) << i << " at ratio " << ratio;
    }
  }
}

TEST(Dropout, DrawsAnewForEachStepNodeAndSeed) {
  const Tensor x = Tensor::full(DType::kF32, {1000}, 1);
  const Tensor y = drop(x, 0.5f, 1, 2, 3);
  EXPECT_TRUE(identical(y, drop(x, 0.5f, 1, 2, 3)));
  EXPECT_FALSE(identical(y, drop(x, 0.5f, 1, 2, 4)));
  EXPECT_FALSE(identical(y, drop(x, 0.5f, 1, 3, 3)));
  EXPECT_FALSE(identical(y, drop(x, 0.5f, 2, 2, 3)));
}

TEST(Dropout, GivesNoNanWhereItDropsAnInfinity) {
  const Tensor x = Tensor::full(DType::kF32, {64}, INFINITY);
  const Tensor y = drop(x, 1.0f, 0, 0, 0);
  EXPECT_TRUE(identical(y, Tensor::full(DType::kF32, {64}, 0)));
}

TEST(Dropout, OfOnnxIsRefusedInTraining) {
  const Tensor x = Tensor::full(DType::kF32, {3}, 1), ratio = Tensor::scalar(0.5f);
  const std::vector<OutputSpec> outputs = {{DType::kF32, {3}}, {DType::kBool, {3}}};
  EXPECT_EQ(refusals("", "Dropout", {x, ratio, Tensor::scalar(true)}, {}, outputs),
            "reference: training_mode is true: the compiler rewrites this to ai.halfnote.Dropout");
  const auto plain = run_kernel("", "Dropout", {x, ratio, Tensor::scalar(false)}, {}, outputs);
  EXPECT_TRUE(identical(plain[0], x));
  EXPECT_TRUE(identical(plain[1], Tensor::of<bool>({3}, {true, true, true})));
}

}  // namespace
}  // namespace halfnote::test
