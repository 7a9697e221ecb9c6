// The floats have at most 128 magnitudes each: a value is rounded by looking for its place among
// them, in a table that is made once from the format's bits.
#include "base/low_bit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

namespace halfnote {
namespace {

/// Sign, exponent and mantissa; `largest` is the code of the largest finite magnitude.
struct Format {
  DType dtype;
  int mantissa_bits;
  int bias;
  int sign_bit;
  uint8_t largest;
  std::optional<uint8_t> nan;
  std::optional<uint8_t> infinity;
  bool negative_zero = true;
};

constexpr std::array<Format, 5> kFormats = {{
    {DType::kF8E4M3FN, 3, 7, 7, 0x7e, 0x7f, std::nullopt},
    {DType::kF8E4M3FNUZ, 3, 8, 7, 0x7f, 0x80, std::nullopt, false},
    {DType::kF8E5M2, 2, 15, 7, 0x7b, 0x7e, 0x7c},
    {DType::kF8E5M2FNUZ, 2, 16, 7, 0x7f, 0x80, std::nullopt, false},
    {DType::kF4E2M1, 1, 1, 3, 0x7, std::nullopt, std::nullopt},
}};

const Format* find_format(DType dtype) {
  for (const Format& format : kFormats) {
    if (format.dtype == dtype) return &format;
  }
  return nullptr;
}

double magnitude_of(const Format& format, int code) {
  const int mantissa = code & ((1 << format.mantissa_bits) - 1);
  const int exponent = code >> format.mantissa_bits;
  if (exponent == 0) return std::ldexp(mantissa, 1 - format.bias - format.mantissa_bits);
  return std::ldexp(mantissa + (1 << format.mantissa_bits),
                    exponent - format.bias - format.mantissa_bits);
}

/// Finite magnitudes, ascending, and the one that would follow them.
const std::vector<double>& magnitudes(const Format& format) {
  static const auto tables = [] {
    std::array<std::vector<double>, kFormats.size()> made;
    for (size_t k = 0; k < kFormats.size(); ++k) {
      for (int code = 0; code <= kFormats[k].largest + 1; ++code)
        made[k].push_back(magnitude_of(kFormats[k], code));
    }
    return made;
  }();
  return tables[static_cast<size_t>(&format - kFormats.data())];
}

uint8_t encode(const Format& format, double value, Overflow overflow) {
  if (std::isnan(value)) return format.nan.value_or(0);
  const bool negative = std::signbit(value);
  const double magnitude = std::fabs(value);
  const std::vector<double>& table = magnitudes(format);
  const auto above = std::lower_bound(table.begin(), table.end(), magnitude);
  auto code = static_cast<size_t>(above - table.begin());
  if (code > 0 && code < table.size()) {
    const double up = table[code] - magnitude, down = magnitude - table[code - 1];
    if (down < up || (down == up && code % 2 == 1)) --code;
  }
  if (code > format.largest) {
    const auto open = format.infinity ? format.infinity : format.nan;
    const bool saturates = overflow == Overflow::kSaturate || !open;
    if (!saturates && !format.infinity && !format.negative_zero) return *open;
    code = saturates ? format.largest : *open;
  }
  if (code == 0 && !format.negative_zero) return 0;
  return static_cast<uint8_t>(code | (negative ? 1u << format.sign_bit : 0u));
}

double decode(const Format& format, uint8_t code) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const int sign = 1 << format.sign_bit;
  if (!format.negative_zero && code == sign) return kNaN;
  const int rest = code & (sign - 1);
  const double factor = (code & sign) != 0 ? -1 : 1;
  if (format.infinity && rest == *format.infinity)
    return factor * std::numeric_limits<double>::infinity();
  return rest > format.largest ? kNaN : factor * magnitude_of(format, rest);
}

constexpr int kPowerBias = 127, kPowerNaN = 255, kLargestPower = 254;

uint8_t encode_power(double value, Overflow overflow, PowerRounding rounding) {
  if (std::isnan(value) || value < 0) return kPowerNaN;
  if (value == 0) return 0;
  if (std::isinf(value)) return overflow == Overflow::kSaturate ? kLargestPower : kPowerNaN;
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);  // in [0.5, 1): value = 2f · 2^(e - 1)
  const bool exact = fraction == 0.5;
  // Nearest: the middle of two powers is 1.5 times the lower one; a tie goes up.
  const bool up = rounding == PowerRounding::kUp     ? !exact
                  : rounding == PowerRounding::kDown ? false
                                                     : fraction >= 0.75;
  const int code = exponent - 1 + kPowerBias + (up ? 1 : 0);
  if (code < 0) return 0;
  if (code <= kLargestPower) return static_cast<uint8_t>(code);
  return overflow == Overflow::kSaturate ? kLargestPower : kPowerNaN;
}

struct IntegerFormat {
  DType dtype;
  int bits;
  bool is_signed;
};
constexpr IntegerFormat kIntegers[] = {
    {DType::kU4, 4, false}, {DType::kI4, 4, true}, {DType::kU2, 2, false}, {DType::kI2, 2, true}};

const IntegerFormat* find_integer(DType dtype) {
  for (const IntegerFormat& format : kIntegers) {
    if (format.dtype == dtype) return &format;
  }
  return nullptr;
}

uint8_t encode_integer(const IntegerFormat& format, double value) {
  if (std::isnan(value)) return 0;
  const double range = 1 << format.bits;
  const auto low = static_cast<int>(std::fmod(std::trunc(value), range));  // in (-range, range)
  int code = low < 0 ? low + (1 << format.bits) : low;
  if (format.is_signed && code >= 1 << (format.bits - 1)) code -= 1 << format.bits;
  return static_cast<uint8_t>(code);
}

}  // namespace

bool is_low_bit(DType dtype) {
  return dtype == DType::kF8E8M0 || find_format(dtype) != nullptr || find_integer(dtype) != nullptr;
}

double read_low_bit(DType dtype, uint8_t code) {
  if (const Format* format = find_format(dtype)) return decode(*format, code);
  if (dtype == DType::kF8E8M0) {
    return code == kPowerNaN ? std::numeric_limits<double>::quiet_NaN()
                             : std::ldexp(1.0, code - kPowerBias);
  }
  const IntegerFormat* integer = find_integer(dtype);
  return integer->is_signed ? static_cast<int8_t>(code) : code;
}

uint8_t write_low_bit(DType dtype, double value, Overflow overflow, PowerRounding rounding) {
  if (const Format* format = find_format(dtype)) return encode(*format, value, overflow);
  if (dtype == DType::kF8E8M0) return encode_power(value, overflow, rounding);
  return encode_integer(*find_integer(dtype), value);
}

}  // namespace halfnote
