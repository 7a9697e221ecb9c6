// What integers, bool and special floats do where C++ leaves it open: they wrap, saturate,
// propagate NaN or are refused, and never trap.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "harness.h"

namespace halfnote::test {
namespace {

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();
constexpr float kInf = INFINITY, kNan = NAN;

template <class T>
std::vector<T> binary(const char* op, std::initializer_list<T> a, std::initializer_list<T> b,
                      const Attributes& attributes = {}) {
  const auto size = static_cast<int64_t>(a.size());
  return values<T>(
      run_one("", op, {Tensor::of<T>({size}, a), Tensor::of<T>({size}, b)}, attributes));
}

using I64 = std::vector<int64_t>;

TEST(Integers, WrapAround) {
  EXPECT_EQ(binary<int64_t>("Add", {kHighest, 1}, {1, 2}), (I64{kLowest, 3}));
  EXPECT_EQ(binary<int64_t>("Sub", {kLowest, 1}, {1, 2}), (I64{kHighest, -1}));
  EXPECT_EQ(binary<int64_t>("Mul", {kHighest, -3}, {2, 4}), (I64{-2, -12}));
  EXPECT_EQ(binary<int64_t>("Div", {kLowest, -7}, {-1, 2}), (I64{kLowest, -3}));
  EXPECT_EQ(binary<uint16_t>("Mul", {65535, 3}, {65535, 4}), (std::vector<uint16_t>{1, 12}));
  EXPECT_EQ(values<int64_t>(run_one("", "Abs", {Tensor::of<int64_t>({2}, {kLowest, -4})})),
            (I64{kLowest, 4}));
  EXPECT_EQ(values<int64_t>(run_one("", "Neg", {Tensor::of<int64_t>({2}, {kLowest, -4})})),
            (I64{kLowest, 4}));
}

TEST(Integers, ModTakesTheSignOfItsAttribute) {
  const std::initializer_list<int64_t> a = {7, -7, 7, -7, kLowest}, b = {3, 3, -3, -3, -1};
  EXPECT_EQ(binary<int64_t>("Mod", a, b), (I64{1, 2, -2, -1, 0}));
  EXPECT_EQ(binary<int64_t>("Mod", a, b, {{"fmod", int64_t{1}}}), (I64{1, -1, 1, -1, 0}));
}

TEST(Integers, RefuseToDivideByZero) {
  for (const char* op : {"Div", "Mod"}) {
    try {
      binary<int64_t>(op, {1, 2}, {1, 0});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kData);
      EXPECT_EQ(error.problem(), "integer division by zero");
    }
  }
}

TEST(Integers, ShiftByTheWidthOrMoreToZero) {
  const Attributes left = {{"direction", std::string("LEFT")}};
  const Attributes right = {{"direction", std::string("RIGHT")}};
  EXPECT_EQ(binary<uint64_t>("BitShift", {1, 1, 1}, {63, 64, 1000}, left),
            (std::vector<uint64_t>{uint64_t{1} << 63, 0, 0}));
  EXPECT_EQ(binary<uint8_t>("BitShift", {255, 255}, {7, 8}, right), (std::vector<uint8_t>{1, 0}));
}

TEST(Integers, PowersStayIntegers) {
  EXPECT_EQ(binary<int64_t>("Pow", {3, -2, -1, 2, 0}, {5, 3, -3, -1, 0}), (I64{243, -8, -1, 0, 1}));
  const Tensor base = Tensor::of<int64_t>({2}, {9, 2}), half = Tensor::scalar(0.5f);
  EXPECT_EQ(values<int64_t>(run_one("", "Pow", {base, half})), (I64{3, 1}));
  const Tensor x = Tensor::of<float>({2}, {3, 0.5f}), two = Tensor::scalar(int64_t{2});
  EXPECT_EQ(values<float>(run_one("", "Pow", {x, two})), (std::vector<float>{9, 0.25f}));
}

template <class To, class From>
std::vector<To> cast(std::initializer_list<From> from) {
  const Tensor x = Tensor::of<From>({static_cast<int64_t>(from.size())}, from);
  return values<To>(run_one("", "Cast", {x}, {}, {dtype_of<To>(), x.shape()}));
}

TEST(Cast, TruncatesAndSaturates) {
  EXPECT_EQ((cast<int32_t, float>({1.9f, -1.9f, 3e9f, -3e9f, kInf, -kInf, kNan})),
            (std::vector<int32_t>{1, -1, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, 0}));
  EXPECT_EQ((cast<uint8_t, double>({-1, 255.9, 256, 0.5})), (std::vector<uint8_t>{0, 255, 255, 0}));
  EXPECT_EQ((cast<int64_t, float>({0x1p62f, 0x1p63f, -0x1p63f})),
            (I64{int64_t{1} << 62, kHighest, kLowest}));
  EXPECT_EQ((cast<uint64_t, double>({0x1p63, 0x1p64})),
            (std::vector<uint64_t>{uint64_t{1} << 63, UINT64_MAX}));
}

TEST(Cast, WrapsIntegers) {
  EXPECT_EQ((cast<int8_t, int32_t>({127, 128, 256, -129})),
            (std::vector<int8_t>{127, -128, 0, 127}));
  EXPECT_EQ((cast<uint32_t, int64_t>({-1, int64_t{1} << 32})),
            (std::vector<uint32_t>{UINT32_MAX, 0}));
}

TEST(Cast, KnowsTwoTruths) {
  EXPECT_EQ((cast<bool, float>({0, -0.0f, 0.25f, kNan})),
            (std::vector<bool>{false, false, true, true}));
  EXPECT_EQ((cast<float, bool>({true, false})), (std::vector<float>{1, 0}));
}

TEST(Cast, RoundsOnceTo16Bits) {
  // 1 + 2^-8 + 2^-40 lies above the tie of bf16; through f32 it would become the tie and round to
  // even.
  const Tensor above = Tensor::of<double>({1}, {1 + 0x1p-8 + 0x1p-40});
  const Tensor got = run_one("", "Cast", {above}, {}, {DType::kBF16, {1}});
  EXPECT_EQ(got.at_as_double(0), 1 + 0x1p-7);
  // The same with 2^62 + 2^54 + 1, which no double holds.
  const Tensor large = Tensor::of<int64_t>({1}, {(int64_t{1} << 62) + (int64_t{1} << 54) + 1});
  EXPECT_EQ(run_one("", "Cast", {large}, {}, {DType::kBF16, {1}}).at_as_double(0), 0x1p62 + 0x1p55);
  EXPECT_EQ(run_one("", "Cast", {large}, {}, {DType::kF16, {1}}).at_as_double(0), kInf);
}

TEST(Cast, RefusesWhatItCannotHold) {
  const Tensor x = Tensor::of<float>({1}, {1});
  EXPECT_TRUE(refusals("", "Cast", {x}, {}, {{DType::kC64, {1}}})
                  .starts_with("reference: no kernel for elements of type c64"));
}

TEST(Cast, GoesToAndFromLowBitTypes) {
  const Tensor x = Tensor::of<float>({4}, {1, -300, 1e6f, kNan});
  const Tensor low = run_one("", "Cast", {x}, {}, {DType::kF8E4M3FN, {4}});
  const Tensor back = run_one("", "Cast", {low}, {}, {DType::kF32, {4}});
  expect_close(back, Tensor::of<float>({4}, {1, -288, 448, kNan}), 0, 0);
  const Attributes open = {{"saturate", int64_t{0}}};
  const Tensor wide = run_one("", "Cast", {x}, open, {DType::kF8E5M2, {4}});
  const Tensor again = run_one("", "Cast", {wide}, {}, {DType::kF32, {4}});
  expect_close(again, Tensor::of<float>({4}, {1, -320, kInf, kNan}), 0, 0);
  const Tensor bits = run_one("", "Cast", {low}, {}, {DType::kI4, {4}});
  EXPECT_EQ(std::to_integer<int>(bits.bytes()[0]), 1);
}

TEST(SpecialFloats, GoThrough) {
  const Tensor nan = Tensor::of<float>({2}, {kNan, 1}), x = Tensor::of<float>({2}, {1, kNan});
  for (const char* op : {"Min", "Max", "Add", "Mul"}) {
    for (const float y : values<float>(run_one("", op, {nan, x}))) EXPECT_TRUE(std::isnan(y)) << op;
  }
  for (const char* op : {"Relu", "LeakyRelu", "Sigmoid", "Gelu", "Mish", "Softplus", "Sign", "Abs",
                         "HardSigmoid", "HardSwish", "Elu", "Round"}) {
    EXPECT_TRUE(std::isnan(values<float>(run_one("", op, {nan}))[0])) << op;
  }
  const Tensor bound = Tensor::scalar(0.0f);
  EXPECT_TRUE(std::isnan(values<float>(run_one("", "Clip", {nan, bound, bound}))[0]));
}

TEST(SpecialFloats, TailsStayAccurate) {
  const Tensor x = Tensor::of<float>({4}, {-100, -20, 20, 100});
  const auto at = [&](const char* op) { return values<float>(run_one("", op, {x})); };
  EXPECT_EQ(at("Softplus")[3], 100);
  EXPECT_NEAR(at("Softplus")[1], std::exp(-20.0), 1e-6 * std::exp(-20.0));
  EXPECT_NEAR(at("Sigmoid")[1], std::exp(-20.0), 1e-6 * std::exp(-20.0));
  EXPECT_NEAR(at("Mish")[1], -20 * std::exp(-20.0), 1e-6 * 20 * std::exp(-20.0));
  EXPECT_EQ(at("Mish")[3], 100);
  EXPECT_EQ(at("Gelu")[3], 100);
  const Tensor far = Tensor::of<float>({1}, {-5});
  // x·Φ(x) at −5: 1 + erf would leave no digit in f32.
  const double wanted = -5 * 0.5 * std::erfc(5 / std::sqrt(2.0));
  EXPECT_NEAR(values<float>(run_one("", "Gelu", {far}))[0], wanted, -2e-6 * wanted);
}

TEST(SpecialFloats, MixedTypesAreRefused) {
  const Tensor f32 = Tensor::of<float>({1}, {1}), f64 = Tensor::of<double>({1}, {1});
  EXPECT_TRUE(refusals("", "Add", {f32, f64}, {}, {{DType::kF32, {1}}})
                  .starts_with("reference: operands of different types"));
  EXPECT_EQ(refusals("", "Mod", {f32, f32}, {}, {{DType::kF32, {1}}}),
            "reference: Mod of floats needs fmod = 1");
}

}  // namespace
}  // namespace halfnote::test
