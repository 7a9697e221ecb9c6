// Functions of numbers whose results are rounded to 16 bits, over all such numbers, against those
// of f64.
#include "kernels/cuda/elementwise/chain/brief.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "base/float16.h"

namespace halfnote::cuda_emulated::generated {
namespace {

template <class T>
constexpr bool kIsHalf = std::is_same_v<T, Half>;

template <class T>
T rounded(double x) {
  if constexpr (kIsHalf<T>) return to_f16(x);
  if constexpr (!kIsHalf<T>) return to_bf16(x);
}

/// Calls `body` for all numbers of T, infinities and NaNs among them.
template <class T, class Body>
void for_all(const Body& body) {
  for (uint32_t bits = 0; bits < 1u << 16; ++bits) body(to_f32(T{static_cast<uint16_t>(bits)}));
}

/// `bound` is a share of the result, or of the smallest normal number of T if that is more.
template <class T, class Function, class Exact>
void expect_near(const Function& function, const Exact& exact, double bound) {
  constexpr double kSmallest = kIsHalf<T> ? 0x1p-14 : 0x1p-126;
  double worst = 0, at = 0;
  for_all<T>([&](float x) {
    const double want = exact(static_cast<double>(x)), got = function(Brief(x)).value;
    if (!std::isfinite(to_f32(rounded<T>(want)))) {  // NaN, or too large for T
      EXPECT_EQ(rounded<T>(got).bits & 0x7fff, rounded<T>(want).bits & 0x7fff) << x;
      return;
    }
    const double error = std::fabs(got - want) / std::max(std::fabs(want), kSmallest);
    if (error > worst) worst = error, at = x;
  });
  EXPECT_LE(worst, bound) << "at " << at;
  EXPECT_GT(worst, bound / 4) << "the bound is too wide";
}

TEST(Brief, FunctionsAreNear) {
  // What is off the table of erf is 1 in 16 bits.
  const auto erf_in_16_bits = [](double x) {
    return std::fabs(x) > 2.75 ? std::erf(std::copysign(2.75, x)) : std::erf(x);
  };
  expect_near<Half>([](Brief x) { return erf(x); }, erf_in_16_bits, 0x1p-21);
  expect_near<BFloat16>([](Brief x) { return erf(x); }, erf_in_16_bits, 0x1p-21);
  expect_near<Half>([](Brief x) { return tanh(x); }, [](double x) { return std::tanh(x); },
                    0x1p-21);
  expect_near<BFloat16>([](Brief x) { return tanh(x); }, [](double x) { return std::tanh(x); },
                        0x1p-21);
  expect_near<Half>([](Brief x) { return exp(x); }, [](double x) { return std::exp(x); }, 0x1p-19);
  expect_near<BFloat16>([](Brief x) { return exp(x); }, [](double x) { return std::exp(x); },
                        0x1p-18);
  expect_near<Half>([](Brief x) { return erfc(x); }, [](double x) { return std::erfc(x); },
                    0x1p-20);
  expect_near<BFloat16>([](Brief x) { return erfc(x); }, [](double x) { return std::erfc(x); },
                        0x1p-16);
}

/// The values of T that erf has beyond its polynomial.
template <class T, class Store>
void expect_ones(const Store& store) {
  EXPECT_EQ(to_f32(store(erf(Brief(2.75f)).value)), 1);
  EXPECT_EQ(to_f32(store(erf(Brief(-2.75f)).value)), -1);
}

TEST(Brief, ErfIsOneWhereItsPolynomialEnds) {
  expect_ones<Half>([](float x) { return to_f16(x); });
  expect_ones<BFloat16>([](float x) { return to_bf16(x); });
}

TEST(Brief, ADivisorServesForAllItDivides) {
  const float divisors[] = {1.41421356f, -3, 0x1p-149f, -0x1.8p-130f, 0x1p-126f, 0x1.7p126f,
                            0x1.fp127f,  0,  -0.0f,     INFINITY,     NAN};
  for (const float divisor : divisors) {
    const SameDivisor by(divisor);
    for_all<BFloat16>([&](float x) {
      const float want = x / divisor, got = by.quotient(x).value;
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << x << " / " << divisor;
      } else if (std::isinf(want) || std::fabs(want) < 0x1p-126f) {
        EXPECT_EQ(to_bf16(got).bits, to_bf16(want).bits) << x << " / " << divisor;
      } else {
        EXPECT_LE(std::fabs(got - want), std::fabs(want) * 0x1p-22f) << x << " / " << divisor;
      }
    });
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated::generated
