// Quantization and products of 8-bit operands, against numbers worked out by hand.
#include <gtest/gtest.h>

#include <limits>

#include "base/low_bit.h"
#include "harness.h"

namespace halfnote::test {
namespace {

Tensor u8(Shape shape, std::initializer_list<uint8_t> data) {
  return Tensor::of<uint8_t>(std::move(shape), data);
}

TEST(Quantize, RoundsTiesToEvenAndSaturates) {
  const Tensor x = Tensor::of<float>({6}, {0, 1, 3, 1000, -256, -1000});
  const Tensor y =
      run_one("", "QuantizeLinear", {x, Tensor::scalar<float>(2), Tensor::scalar<uint8_t>(128)}, {},
              {DType::kU8, {6}});
  EXPECT_EQ(values<uint8_t>(y), (std::vector<uint8_t>{128, 128, 130, 255, 0, 0}));
}

TEST(Quantize, TakesAScaleForEachIndexOfAnAxis) {
  const Tensor x = Tensor::of<float>({2, 2}, {2, 4, 30, 40});
  const Tensor y =
      run_one("", "QuantizeLinear", {x, Tensor::of<float>({2}, {2, 10}), u8({2}, {0, 1})},
              {{"axis", int64_t{0}}}, {DType::kU8, {2, 2}});
  EXPECT_EQ(values<uint8_t>(y), (std::vector<uint8_t>{1, 2, 4, 5}));
  EXPECT_NE(refusals("", "QuantizeLinear", {x, Tensor::of<float>({3}, {1, 2, 3})}, {},
                     {{DType::kU8, {2, 2}}}),
            "");
}

TEST(Quantize, TakesAScaleForEachBlock) {
  const Tensor x = Tensor::of<float>({1, 5}, {1, 2, 10, 20, 100});
  const Tensor y =
      run_one("", "QuantizeLinear", {x, Tensor::of<float>({1, 3}, {1, 10, 100})},
              {{"axis", int64_t{1}}, {"block_size", int64_t{2}}}, {DType::kU8, {1, 5}});
  EXPECT_EQ(values<uint8_t>(y), (std::vector<uint8_t>{1, 2, 1, 2, 1}));
}

TEST(Quantize, TakesAScaleForEachBlockOfAVector) {
  const Tensor x = Tensor::of<float>({5}, {1, 2, 10, 20, 100});
  const Tensor y = run_one("", "QuantizeLinear", {x, Tensor::of<float>({3}, {1, 10, 100})},
                           {{"axis", int64_t{0}}, {"block_size", int64_t{2}}}, {DType::kU8, {5}});
  EXPECT_EQ(values<uint8_t>(y), (std::vector<uint8_t>{1, 2, 1, 2, 1}));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_NE(refusals("", "QuantizeLinear", {x, Tensor::of<float>({2}, {1, 10})},
                     {{"axis", int64_t{0}}, {"block_size", kMost}}, {{DType::kU8, {5}}}),
            "");
}

TEST(Quantize, WritesLowBitTypes) {
  const Tensor x = Tensor::of<float>({3}, {-100, 3, 100});
  const Tensor y =
      run_one("", "QuantizeLinear", {x, Tensor::scalar<float>(2)}, {}, {DType::kI4, {3}});
  std::vector<double> got;
  for (int i = 0; i < 3; ++i)
    got.push_back(read_low_bit(DType::kI4, std::to_integer<uint8_t>(y.bytes()[i])));
  EXPECT_EQ(got, (std::vector<double>{-8, 2, 7}));
}

TEST(Dequantize, UndoesIt) {
  const Tensor y =
      run_one("", "DequantizeLinear",
              {u8({3}, {0, 128, 255}), Tensor::scalar<float>(2), Tensor::scalar<uint8_t>(128)}, {},
              {DType::kF32, {3}});
  EXPECT_EQ(values<float>(y), (std::vector<float>{-256, 0, 254}));
}

TEST(IntegerProduct, SubtractsZeroPoints) {
  const Tensor y = run_one("", "MatMulInteger",
                           {u8({2, 2}, {1, 2, 3, 4}), u8({2, 2}, {5, 6, 7, 8}),
                            Tensor::scalar<uint8_t>(1), u8({2}, {5, 6})},
                           {}, {DType::kI32, {2, 2}});
  // ((0, 1), (2, 3)) · ((0, 0), (2, 2))
  EXPECT_EQ(values<int32_t>(y), (std::vector<int32_t>{2, 2, 6, 6}));
}

TEST(IntegerProduct, PadsWithTheZeroPoint) {
  const Tensor y =
      run_one("", "ConvInteger",
              {u8({1, 1, 2}, {5, 7}), u8({1, 1, 3}, {1, 1, 1}), Tensor::scalar<uint8_t>(5)},
              {{"pads", std::vector<int64_t>{1, 1}}}, {DType::kI32, {1, 1, 2}});
  EXPECT_EQ(values<int32_t>(y), (std::vector<int32_t>{2, 2}));
}

TEST(LinearProduct, ScalesAndSaturates) {
  const Tensor one = Tensor::scalar<float>(1), half = Tensor::scalar<float>(0.5f);
  const Tensor zero = Tensor::scalar<uint8_t>(0), ten = Tensor::scalar<uint8_t>(10);
  const Tensor y =
      run_one("", "QLinearMatMul",
              {u8({1, 1}, {100}), one, zero, u8({1, 2}, {1, 200}), half, zero, one, ten}, {},
              {DType::kU8, {1, 2}});
  EXPECT_EQ(values<uint8_t>(y), (std::vector<uint8_t>{60, 255}));
}

TEST(LinearProduct, ConvolutionHasAScaleForEachFilterAndABias) {
  const Tensor one = Tensor::scalar<float>(1), zero = Tensor::scalar<uint8_t>(0);
  const Tensor y = run_one(
      "", "QLinearConv",
      {u8({1, 1, 1}, {10}), one, zero, u8({2, 1, 1}, {1, 1}), Tensor::of<float>({2}, {1, 2}),
       u8({2}, {0, 0}), one, zero, Tensor::of<int32_t>({2}, {5, -4})},
      {}, {DType::kU8, {1, 2, 1}});
  EXPECT_EQ(values<uint8_t>(y), (std::vector<uint8_t>{15, 12}));
}

}  // namespace
}  // namespace halfnote::test
