// The 16-bit floats against an independent reference that rounds with doubles: every one of the
// 2^16 bit patterns, every midpoint between neighbours and its neighbours in f32 and f64, and
// random bits. All comparisons are exact.
#include "base/float16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/float16_simd.h"

namespace halfnote {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A 16-bit float format, as IEEE describes one.
struct Format {
  int mantissa_bits;
  int min_exponent;
  double max;
};
constexpr Format kHalf = {10, -14, 65504.0};
constexpr Format kBFloat16 = {7, -126, 0x1.fep127};

template <class T>
const Format& format_of();
template <>
const Format& format_of<Half>() {
  return kHalf;
}
template <>
const Format& format_of<BFloat16>() {
  return kBFloat16;
}

Half narrow(float value, Half) { return to_f16(value); }
Half narrow(double value, Half) { return to_f16(value); }
BFloat16 narrow(float value, BFloat16) { return to_bf16(value); }
BFloat16 narrow(double value, BFloat16) { return to_bf16(value); }

/// The value of a bit pattern, from the definition of the format.
double decode(uint16_t bits, const Format& format) {
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  const int exponent_mask = (1 << (15 - format.mantissa_bits)) - 1;
  const int exponent = (bits >> format.mantissa_bits) & exponent_mask;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == exponent_mask) {
    return mantissa == 0 ? sign * kInfinity : std::numeric_limits<double>::quiet_NaN();
  }
  const int implicit = exponent == 0 ? 0 : 1 << format.mantissa_bits;
  const int scale = std::max(exponent, 1) - 1 + format.min_exponent - format.mantissa_bits;
  return sign * std::ldexp(implicit + mantissa, scale);
}

/// Rounds to the format's grid with the processor's own rounding of doubles to integers.
double round_to(double value, const Format& format) {
  if (value == 0 || !std::isfinite(value)) return value;
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const int grid = exponent - format.mantissa_bits;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -grid)), grid);
  return std::fabs(rounded) > format.max ? std::copysign(kInfinity, value) : rounded;
}

template <class T, class From>
void expect_rounded(From value) {
  const double got = decode(narrow(value, T{}).bits, format_of<T>());
  const double want = round_to(static_cast<double>(value), format_of<T>());
  ASSERT_TRUE(got == want && std::signbit(got) == std::signbit(want))
      << std::hexfloat << value << ": got " << got << ", want " << want;
}

template <class T>
class Float16 : public testing::Test {};
using Formats = testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(Float16, Formats);

TYPED_TEST(Float16, EveryPatternHasItsValueAndRoundTrips) {
  const Format& format = format_of<TypeParam>();
  const auto quiet = static_cast<uint16_t>(1 << (format.mantissa_bits - 1));
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const TypeParam value{static_cast<uint16_t>(i)};
    const float wide = to_f32(value);
    const double want = decode(value.bits, format);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(wide)) << i;
      ASSERT_EQ(narrow(wide, TypeParam{}).bits, value.bits | quiet) << i;
      ASSERT_EQ(narrow(double{wide}, TypeParam{}).bits, value.bits | quiet) << i;
      continue;
    }
    ASSERT_EQ(double{wide}, want) << i;
    ASSERT_EQ(narrow(wide, TypeParam{}).bits, value.bits) << i;
    ASSERT_EQ(narrow(want, TypeParam{}).bits, value.bits) << i;
  }
}

TYPED_TEST(Float16, RoundsAtEveryMidpointToEven) {
  const Format& format = format_of<TypeParam>();
  for (uint32_t i = 0; decode(static_cast<uint16_t>(i), format) < format.max; ++i) {
    const double low = decode(static_cast<uint16_t>(i), format);
    const double middle = (low + decode(static_cast<uint16_t>(i + 1), format)) / 2;
    const auto even = static_cast<uint16_t>(i + (i & 1));
    ASSERT_EQ(narrow(static_cast<float>(middle), TypeParam{}).bits, even) << i;
    ASSERT_EQ(narrow(middle, TypeParam{}).bits, even) << i;
    for (const double sign : {1.0, -1.0}) {
      const float tie = static_cast<float>(sign * middle);
      expect_rounded<TypeParam>(std::nextafter(tie, 0.0f));
      expect_rounded<TypeParam>(tie);
      expect_rounded<TypeParam>(std::nextafter(tie, static_cast<float>(sign * kInfinity)));
      // A double just beside the tie would round to the tie in f32, and from there to the wrong
      // side.
      expect_rounded<TypeParam>(std::nextafter(sign * middle, 0.0));
      expect_rounded<TypeParam>(std::nextafter(sign * middle, sign * kInfinity));
    }
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(Float16, RoundsEdgeValues) {
  const double max = format_of<TypeParam>().max;
  const double half_step =
      std::ldexp(1.0, std::ilogb(max) - format_of<TypeParam>().mantissa_bits - 1);
  const double edges[] = {0.0,
                          max,
                          max + half_step,
                          std::nextafter(max + half_step, 0.0),
                          std::nextafter(max + half_step, kInfinity),
                          0x1p-24,
                          0x1p-25,
                          0x1.000001p-25,
                          0x1p-26,
                          0x1p-133,
                          0x1p-134,
                          0x1.8p-134,
                          0x1p-149,
                          0x1p-150,
                          0x1p-1074,
                          0x1p-14,
                          0x1.ffcp-15,
                          0x1.ffep-15,
                          0x1p-126,
                          0x1.fffffep127,
                          0x1.ffffffp127,
                          0x1p128,
                          1e300,
                          kInfinity};
  for (const double edge : edges) {
    for (const double sign : {1.0, -1.0}) {
      expect_rounded<TypeParam>(sign * edge);
      expect_rounded<TypeParam>(static_cast<float>(sign * edge));
    }
  }
}

TYPED_TEST(Float16, RoundsRandomBits) {
  std::mt19937_64 random(20240607);
  for (int i = 0; i < 400000; ++i) {
    const uint64_t bits = random();
    const auto single = std::bit_cast<float>(static_cast<uint32_t>(bits >> 32));
    if (!std::isnan(single)) expect_rounded<TypeParam>(single);
    const auto wide = std::bit_cast<double>(bits);
    if (!std::isnan(wide)) expect_rounded<TypeParam>(wide);
    // Most random doubles are out of range; these are within both formats.
    expect_rounded<TypeParam>(
        std::ldexp(static_cast<double>(bits), -64 - static_cast<int>(bits % 28)));
    if (this->HasFatalFailure()) return;
  }
}

TEST(Float16Nan, KeepsItsUpperPayloadAndTurnsQuiet) {
  EXPECT_EQ(to_f16(std::bit_cast<float>(0x7f802000u)).bits, 0x7e01);
  EXPECT_EQ(to_f16(std::bit_cast<float>(0xff800001u)).bits, 0xfe00);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x7f810000u)).bits, 0x7fc1);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0xffffffffu)).bits, 0xffff);
  EXPECT_EQ(std::bit_cast<uint32_t>(to_f32(Half{0x7c01})), 0x7fc02000u);
}

// Arrays

/// Random bits, with a NaN, an infinity, subnormals and ties among the first elements.
std::vector<float> interesting_floats(size_t count) {
  const uint32_t edges[] = {0x7f800001, 0xffc12345, 0x7f800000, 0x00000001, 0x80012345,
                            0x477fefff, 0x477ff000, 0x33000000, 0x33000001, 0x387fe000,
                            0x7f7fffff, 0x3f808000, 0x3f818000, 0x80000000, 0x00008000};
  std::mt19937_64 random(count + 7);
  std::vector<float> result(count);
  for (size_t i = 0; i < count; ++i) {
    const auto bits = i < std::size(edges) ? edges[i] : static_cast<uint32_t>(random());
    result[i] = std::bit_cast<float>(bits);
  }
  return result;
}

constexpr uint16_t kGuard = 0x5a5a;

template <class T>
void expect_narrows_as_scalar(void (*convert_row)(const float*, T*, size_t), size_t count) {
  std::vector<float> from = interesting_floats(count + 1);
  std::vector<T> to(count + 2, T{kGuard});
  convert_row(from.data() + 1, to.data() + 1, count);  // one off, so that nothing is aligned
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(to[i + 1].bits, narrow(from[i + 1], T{}).bits)
        << std::hex << std::bit_cast<uint32_t>(from[i + 1]);
  }
  EXPECT_EQ(to.front().bits, kGuard);
  EXPECT_EQ(to.back().bits, kGuard);
}

template <class T>
void expect_widens_as_scalar(void (*convert_row)(const T*, float*, size_t), size_t count) {
  std::vector<T> from(count + 1);
  for (size_t i = 0; i < from.size(); ++i) from[i].bits = static_cast<uint16_t>(i * 40503u);
  std::vector<float> to(count + 2, -7.0f);
  convert_row(from.data() + 1, to.data() + 1, count);
  for (size_t i = 0; i < count; ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(to[i + 1]), std::bit_cast<uint32_t>(to_f32(from[i + 1])))
        << i;
  }
  EXPECT_EQ(to.front(), -7.0f);
  EXPECT_EQ(to.back(), -7.0f);
}

TEST(Float16Arrays, EveryRowGivesTheScalarBits) {
  std::vector<size_t> sizes = {1000, 0x10000};  // the latter: every pattern, since 40503 is odd
  for (size_t size = 0; size <= 40; ++size) sizes.push_back(size);
  for (const FloatConverters& row : float_converters()) {
    if (!row.supported()) continue;
    for (const size_t size : sizes) {
      SCOPED_TRACE(std::string(row.name) + ", size " + std::to_string(size));
      expect_narrows_as_scalar(row.f32_to_f16, size);
      expect_narrows_as_scalar(row.f32_to_bf16, size);
      expect_widens_as_scalar(row.f16_to_f32, size);
      expect_widens_as_scalar(row.bf16_to_f32, size);
    }
  }
}

TEST(Float16Arrays, LastRowRunsEverywhere) {
  EXPECT_EQ(float_converters().back().name, "scalar");
  EXPECT_TRUE(float_converters().back().supported());
}

TEST(Float16Arrays, ConvertTakesSpans) {
  const std::vector<float> from = {1.0f, -2.5f, 65520.0f, 0x1p-24f};
  std::vector<Half> half(4);
  std::vector<BFloat16> brain(4);
  std::vector<float> back(4);
  convert(from, half);
  convert(from, brain);
  EXPECT_EQ(half[2].bits, 0x7c00);
  EXPECT_EQ(brain[2].bits, 0x4780);
  convert(half, back);
  EXPECT_EQ(back, (std::vector<float>{1.0f, -2.5f, HUGE_VALF, 0x1p-24f}));
  convert(brain, back);
  EXPECT_EQ(back, (std::vector<float>{1.0f, -2.5f, 65536.0f, 0x1p-24f}));
  EXPECT_DEATH(convert(std::span<const float>(from).first(3), std::span<Half>(half)), "");
}

}  // namespace
}  // namespace halfnote
