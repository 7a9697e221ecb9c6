// Philox4x32-10 against the known answers of its authors, the distributions drawn from it, and
// dropout.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/stateful/keep.h"
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

TEST(Dropout, HasTheBitsOfTheReferenceOnVectors) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t size : {0, 1, 5, 63, 64, 65, 2047, 2049, 40001}) {
      for (const float ratio : {0.0f, 0.1f, 0.5f, 1.0f}) {
        SCOPED_TRACE(std::to_string(size) + " of " + std::string(short_name(type)));
        const std::vector<Tensor> inputs = {random_tensor(type, {size}, -2, 2),
                                            Tensor::scalar(int64_t{-3}),
                                            Tensor::scalar(int64_t{8})};
        const Attributes attributes = {{"ratio", ratio}, {"node", int64_t{2}}};
        EXPECT_TRUE(identical(
            run_one("ai.halfnote", "Dropout", inputs, attributes, {}, {.kernel = "fast."}),
            run_one("ai.halfnote", "Dropout", inputs, attributes)));
      }
    }
  }
}

std::vector<const cpu::KeepLoops*> all_keep_loops() {
  std::vector<const cpu::KeepLoops*> all = {&cpu::kBaselineKeep};
#if defined(__x86_64__)
  if (cpu::vector_isa() >= cpu::VectorIsa::kAvx2) all.push_back(&cpu::kAvx2Keep);
  if (cpu::vector_isa() == cpu::VectorIsa::kAvx512) all.push_back(&cpu::kAvx512Keep);
#endif
  return all;
}

TEST(KeepBits, AreTheWordsOfPhiloxOnEveryInstructionSet) {
  // The last group passes 2³²: its upper word counts too.
  for (const uint64_t group : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 32) - 3}) {
    for (const uint64_t threshold : {uint64_t{0}, uint64_t{1} << 31, uint64_t{0xfffffff0}}) {
      const cpu::KeepStream stream{(uint64_t{7} << 32) + 3, (uint64_t{1} << 40) + 6, ~0u,
                                   threshold};
      for (const cpu::KeepLoops* loops : all_keep_loops()) {
        SCOPED_TRACE(loops->name);
        for (const int64_t words : {1, 2, 3, 5}) {
          std::vector<uint64_t> bits(static_cast<size_t>(words) + 1, 77);
          loops->bits_of_groups(stream, group, words, bits.data());
          EXPECT_EQ(bits.back(), 77u);
          for (uint64_t i = 0; i < static_cast<uint64_t>(64 * words); ++i) {
            const auto drawn =
                math::dropout_words(stream.seed, stream.step, stream.node, group + i / 4);
            ASSERT_EQ(bits[i / 64] >> i % 64 & 1, drawn.word[i % 4] >= threshold ? 1u : 0u) << i;
          }
        }
      }
    }
  }
}

TEST(KeepBits, MayBeginAtAnyElement) {
  const cpu::KeepStream stream{11, 12, 13, uint64_t{1} << 31};
  std::vector<uint64_t> all(8);
  cpu::keep_bits(stream, 0, 8, all.data());
  for (uint64_t first = 0; first < 70; ++first) {
    std::vector<uint64_t> bits(3);
    cpu::keep_bits(stream, first, 3, bits.data());
    for (uint64_t i = 0; i < 192; ++i) {
      const uint64_t at = first + i;
      ASSERT_EQ(bits[i / 64] >> i % 64 & 1, all[at / 64] >> at % 64 & 1) << first << " + " << i;
    }
  }
}

TEST(Dropout, GivesNoNanWhereItDropsAnInfinity) {
  const Tensor x = Tensor::full(DType::kF32, {64}, INFINITY);
  const Tensor y = drop(x, 1.0f, 0, 0, 0);
  EXPECT_TRUE(identical(y, Tensor::full(DType::kF32, {64}, 0)));
}

// From a file they may be tensors of nothing, in which there is no number to read.
TEST(Dropout, SeedStepAndTrainingModeAreOneNumberEach) {
  const Tensor x = Tensor::full(DType::kF32, {4}, 1), one = Tensor::scalar<int64_t>(1);
  const Tensor none(DType::kI64, {0});
  for (const auto& [seed, step] : {std::pair(none, one), std::pair(one, none)}) {
    for (const char* op : {"Dropout", "RandomUniform", "RandomNormal"}) {
      const std::string why =
          refusals("ai.halfnote", op, {x, seed, step}, {}, {{DType::kF32, {4}}});
      EXPECT_NE(why.find("seed and step are not one i64"), std::string::npos) << op << why;
    }
  }
  EXPECT_THROW(refusals("", "Dropout", {x, Tensor::scalar(0.5f), Tensor(DType::kBool, {0})}, {},
                        {{DType::kF32, {4}}}),
               Error);
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
