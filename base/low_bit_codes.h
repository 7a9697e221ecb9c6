// The codes of the types of 8 bits and fewer, made by arithmetic on the bits of a double alone:
// constexpr, so that every device has the same.
#pragma once

#include <bit>
#include <cstdint>

#include "base/dtype.h"

namespace halfnote {

/// What becomes of a value too large for a float type: the largest number, or infinity (NaN where
/// the type has none).
enum class Overflow : uint8_t { kSaturate, kInfinity };
/// How f8e8m0, which has powers of two only, rounds; all others round to nearest, ties to even.
enum class PowerRounding : uint8_t { kUp, kDown, kNearest };

namespace low_bit {

/// A float format: sign, exponent and mantissa; `largest` is the code of the largest finite
/// magnitude. -1: the format has no such code.
struct Format {
  int mantissa_bits = 0;
  int bias = 0;
  int sign_bit = 0;
  int largest = 0;
  int nan = -1;
  int infinity = -1;
  bool negative_zero = true;
};

/// Is it one of the float formats with a mantissa?
constexpr bool is_format(DType dtype) {
  return dtype == DType::kF8E4M3FN || dtype == DType::kF8E4M3FNUZ || dtype == DType::kF8E5M2 ||
         dtype == DType::kF8E5M2FNUZ || dtype == DType::kF4E2M1;
}

constexpr Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3FN:
      return {3, 7, 7, 0x7e, 0x7f, -1, true};
    case DType::kF8E4M3FNUZ:
      return {3, 8, 7, 0x7f, 0x80, -1, false};
    case DType::kF8E5M2:
      return {2, 15, 7, 0x7b, 0x7e, 0x7c, true};
    case DType::kF8E5M2FNUZ:
      return {2, 16, 7, 0x7f, 0x80, -1, false};
    default:
      return {1, 1, 3, 0x7, -1, -1, true};  // f4e2m1
  }
}

/// Bits of an integer type; 0 for all others.
constexpr int integer_bits(DType dtype) {
  if (dtype == DType::kU4 || dtype == DType::kI4) return 4;
  return dtype == DType::kU2 || dtype == DType::kI2 ? 2 : 0;
}

constexpr uint64_t kFraction = (uint64_t{1} << 52) - 1;
constexpr uint64_t kInfiniteBits = uint64_t{0x7ff} << 52;

constexpr double quiet_nan() { return std::bit_cast<double>(uint64_t{0x7ff8} << 48); }

/// 2^exponent, where that is a normal number.
constexpr double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

constexpr double decode(const Format& format, uint8_t code) {
  const int sign = 1 << format.sign_bit;
  if (!format.negative_zero && code == sign) return quiet_nan();
  const int rest = code & (sign - 1);
  const double factor = (code & sign) != 0 ? -1 : 1;
  if (rest == format.infinity) return factor * std::bit_cast<double>(kInfiniteBits);
  if (rest > format.largest) return quiet_nan();
  const int mantissa = rest & ((1 << format.mantissa_bits) - 1);
  const int exponent = rest >> format.mantissa_bits;
  const int whole = exponent == 0 ? mantissa : mantissa + (1 << format.mantissa_bits);
  const int scale = (exponent == 0 ? 1 : exponent) - format.bias - format.mantissa_bits;
  return factor * whole * power_of_two(scale);
}

/// The code of the magnitude nearest to that with these bits, ties to the even code; more than
/// `largest` if it is too large. Not for NaN.
constexpr int nearest_code(const Format& format, uint64_t magnitude) {
  const int exponent = static_cast<int>(magnitude >> 52) - 1023;
  const int lowest = 1 - format.bias;
  if (exponent > 128) return format.largest + 1;
  // Units of the mantissa's last place: below the normal numbers there are fewer bits.
  const int shift = 52 - format.mantissa_bits + (exponent < lowest ? lowest - exponent : 0);
  if (shift > 53) return 0;  // less than half of the smallest, subnormal doubles among it
  const uint64_t significand = (magnitude & kFraction) | (uint64_t{1} << 52);
  const uint64_t half = uint64_t{1} << (shift - 1);
  const uint64_t units = significand >> shift, rest = significand & (2 * half - 1);
  const bool up = rest > half || (rest == half && (units & 1) != 0);
  const int field = exponent < lowest ? 0 : exponent - lowest;  // adds up with the leading bit
  return (field << format.mantissa_bits) + static_cast<int>(units) + (up ? 1 : 0);
}

constexpr uint8_t encode(const Format& format, double value, Overflow overflow) {
  if (value != value) return static_cast<uint8_t>(format.nan < 0 ? 0 : format.nan);
  const auto bits = std::bit_cast<uint64_t>(value);
  int code = nearest_code(format, bits & ~(uint64_t{1} << 63));
  if (code > format.largest) {
    const int open = format.infinity >= 0 ? format.infinity : format.nan;
    const bool saturates = overflow == Overflow::kSaturate || open < 0;
    if (!saturates && format.infinity < 0 && !format.negative_zero)
      return static_cast<uint8_t>(open);
    code = saturates ? format.largest : open;
  }
  if (code == 0 && !format.negative_zero) return 0;
  return static_cast<uint8_t>(code | (bits >> 63 != 0 ? 1 << format.sign_bit : 0));
}

inline constexpr int kPowerBias = 127, kPowerNaN = 255, kLargestPower = 254;

constexpr uint8_t encode_power(double value, Overflow overflow, PowerRounding rounding) {
  if (value != value || value < 0) return kPowerNaN;
  const auto bits = std::bit_cast<uint64_t>(value);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1023;
  if (exponent < -1000) return 0;
  const uint64_t fraction = bits & kFraction;
  // Nearest: the middle of two powers is 1.5 times the lower one; a tie goes up.
  const bool up = rounding == PowerRounding::kUp     ? fraction != 0
                  : rounding == PowerRounding::kDown ? false
                                                     : fraction >> 51 != 0;
  const int code = exponent + kPowerBias + (up ? 1 : 0);
  if (code < 0) return 0;
  if (code <= kLargestPower) return static_cast<uint8_t>(code);
  return overflow == Overflow::kSaturate ? kLargestPower : kPowerNaN;
}

/// The low bits of the integer part.
constexpr uint8_t encode_integer(int bits, bool is_signed, double value) {
  const auto own = std::bit_cast<uint64_t>(value);
  const int exponent = static_cast<int>(own >> 52 & 0x7ff) - 1023;
  if (exponent < 0 || exponent > 62) return 0;  // less than 1, or no low bits; NaN
  const uint64_t significand = (own & kFraction) | (uint64_t{1} << 52);
  uint64_t whole = exponent <= 52 ? significand >> (52 - exponent) : significand << (exponent - 52);
  if (own >> 63 != 0) whole = 0 - whole;
  const int range = 1 << bits;
  int code = static_cast<int>(whole & static_cast<uint64_t>(range - 1));
  if (is_signed && code >= range / 2) code -= range;
  return static_cast<uint8_t>(code);
}

/// As read_low_bit() and write_low_bit() of base/low_bit.h.
constexpr double read(DType dtype, uint8_t code) {
  if (is_format(dtype)) return decode(format_of(dtype), code);
  if (dtype == DType::kF8E8M0) {
    return code == kPowerNaN ? quiet_nan() : power_of_two(code - kPowerBias);
  }
  const bool is_signed = dtype == DType::kI4 || dtype == DType::kI2;
  return is_signed ? static_cast<int8_t>(code) : code;
}

constexpr uint8_t write(DType dtype, double value, Overflow overflow = Overflow::kSaturate,
                        PowerRounding rounding = PowerRounding::kUp) {
  if (is_format(dtype)) return encode(format_of(dtype), value, overflow);
  if (dtype == DType::kF8E8M0) return encode_power(value, overflow, rounding);
  const bool is_signed = dtype == DType::kI4 || dtype == DType::kI2;
  return encode_integer(integer_bits(dtype), is_signed, value);
}

/// One of the types this file is about.
constexpr bool is_one(DType dtype) {
  return dtype == DType::kF8E8M0 || is_format(dtype) || integer_bits(dtype) != 0;
}

}  // namespace low_bit

}  // namespace halfnote
