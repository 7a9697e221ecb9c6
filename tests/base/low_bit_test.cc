// The types of 8 bits and fewer: every code survives a round trip, and roundings and overflows are
// those of ONNX's table of casts.
#include "base/low_bit.h"

#include <gtest/gtest.h>

#include <cmath>

namespace halfnote {
namespace {

constexpr DType kFloats[] = {DType::kF8E4M3FN,   DType::kF8E4M3FNUZ, DType::kF8E5M2,
                             DType::kF8E5M2FNUZ, DType::kF8E8M0,     DType::kF4E2M1};

double round_trip(DType dtype, double value, Overflow overflow = Overflow::kSaturate) {
  return read_low_bit(dtype, write_low_bit(dtype, value, overflow));
}

TEST(LowBit, EveryCodeSurvivesARoundTrip) {
  for (const DType dtype : kFloats) {
    const int codes = 1 << bits_of(dtype);
    for (int code = 0; code < codes; ++code) {
      const double value = read_low_bit(dtype, static_cast<uint8_t>(code));
      const double again = round_trip(dtype, value, Overflow::kInfinity);
      if (std::isnan(value)) {
        EXPECT_TRUE(std::isnan(again)) << short_name(dtype) << " " << code;
      } else {
        EXPECT_EQ(again, value) << short_name(dtype) << " " << code;
      }
    }
  }
}

TEST(LowBit, RoundsToNearestAndTiesToEven) {
  for (const DType dtype : kFloats) {
    if (dtype == DType::kF8E8M0) continue;
    const int codes = 1 << (bits_of(dtype) - 1);
    for (int code = 0; code + 1 < codes; ++code) {
      const double low = read_low_bit(dtype, static_cast<uint8_t>(code));
      const double high = read_low_bit(dtype, static_cast<uint8_t>(code + 1));
      if (!std::isfinite(low) || !std::isfinite(high)) break;
      const double middle = (low + high) / 2, nudge = (high - low) / 64;
      EXPECT_EQ(round_trip(dtype, middle), code % 2 == 0 ? low : high) << short_name(dtype);
      EXPECT_EQ(round_trip(dtype, middle - nudge), low) << short_name(dtype);
      EXPECT_EQ(round_trip(dtype, -(middle + nudge)), -high) << short_name(dtype);
    }
  }
}

struct LargestRow {
  DType dtype;
  double largest;
  bool has_infinity;
};

TEST(LowBit, SaturatesOrOverflows) {
  constexpr LargestRow kRows[] = {{DType::kF8E4M3FN, 448, false},
                                  {DType::kF8E4M3FNUZ, 240, false},
                                  {DType::kF8E5M2, 57344, true},
                                  {DType::kF8E5M2FNUZ, 57344, false}};
  for (const LargestRow& row : kRows) {
    SCOPED_TRACE(short_name(row.dtype));
    EXPECT_EQ(round_trip(row.dtype, 1e6), row.largest);
    EXPECT_EQ(round_trip(row.dtype, -INFINITY), -row.largest);
    const double over = round_trip(row.dtype, -1e6, Overflow::kInfinity);
    if (row.has_infinity) {
      EXPECT_EQ(over, -INFINITY);
    } else {
      EXPECT_TRUE(std::isnan(over));
    }
    EXPECT_TRUE(std::isnan(round_trip(row.dtype, NAN)));
  }
  EXPECT_EQ(round_trip(DType::kF4E2M1, -100), -6);
  EXPECT_EQ(round_trip(DType::kF4E2M1, 100, Overflow::kInfinity), 6) << "it has no infinity";
}

TEST(LowBit, KeepsTheSignOfZeroWhereThereIsOne) {
  EXPECT_EQ(write_low_bit(DType::kF8E4M3FN, -0.0), 0x80);
  EXPECT_EQ(write_low_bit(DType::kF8E5M2, -1e-30), 0x80);
  EXPECT_EQ(write_low_bit(DType::kF8E4M3FNUZ, -0.0), 0) << "0x80 is NaN there";
  EXPECT_EQ(write_low_bit(DType::kF8E5M2FNUZ, -1e-30), 0);
}

TEST(LowBit, PowersOfTwoRoundAsAsked) {
  const auto power = [](double value, PowerRounding rounding) {
    return read_low_bit(DType::kF8E8M0,
                        write_low_bit(DType::kF8E8M0, value, Overflow::kSaturate, rounding));
  };
  EXPECT_EQ(power(4, PowerRounding::kUp), 4);
  EXPECT_EQ(power(4.1, PowerRounding::kUp), 8);
  EXPECT_EQ(power(7.9, PowerRounding::kDown), 4);
  EXPECT_EQ(power(5.9, PowerRounding::kNearest), 4);
  EXPECT_EQ(power(6.1, PowerRounding::kNearest), 8);
  EXPECT_TRUE(std::isnan(power(NAN, PowerRounding::kUp)));
}

TEST(LowBit, IntegersTakeTheLowBits) {
  EXPECT_EQ(read_low_bit(DType::kI4, write_low_bit(DType::kI4, -3.9)), -3);
  EXPECT_EQ(read_low_bit(DType::kI4, write_low_bit(DType::kI4, 9)), -7);
  EXPECT_EQ(read_low_bit(DType::kU4, write_low_bit(DType::kU4, -1)), 15);
  EXPECT_EQ(read_low_bit(DType::kI2, write_low_bit(DType::kI2, -2)), -2);
  EXPECT_EQ(read_low_bit(DType::kU2, write_low_bit(DType::kU2, 7)), 3);
  EXPECT_FALSE(is_low_bit(DType::kI8));
  EXPECT_TRUE(is_low_bit(DType::kU2));
}

}  // namespace
}  // namespace halfnote
