// The two 16-bit floats as storage types. Arithmetic is done in f32: convert, compute, convert
// back. Rounding is to nearest, ties to even; NaN stays NaN (quiet); values too large become
// infinity; nothing is flushed.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace halfnote {

/// IEEE binary16: largest 65504, smallest normal 2^-14, smallest subnormal 2^-24.
struct Half {
  uint16_t bits = 0;
};

/// bfloat16: the upper half of an f32, 8 significant bits.
struct BFloat16 {
  uint16_t bits = 0;
};

inline float to_f32(BFloat16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

inline BFloat16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

inline float to_f32(Half value) {
  const uint32_t sign = uint32_t{value.bits & 0x8000u} << 16;
  const uint32_t rest = value.bits & 0x7fffu;
  if (rest >= 0x7c00u) {  // infinity and NaN (quietened)
    const uint32_t quiet = rest > 0x7c00u ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7f800000u | ((rest & 0x3ffu) << 13) | quiet);
  }
  if (rest >= 0x400u) return std::bit_cast<float>(sign | ((rest << 13) + (112u << 23)));
  const float magnitude = static_cast<float>(rest) * 0x1p-24f;  // zero and subnormals, exact
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

inline Half to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  }
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65520 and above
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 puts the 24 binary places of a subnormal at the end of the mantissa,
    // rounded.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13))};
}

/// Rounds an f64 straight to 16 bits (rounding through f32 would round twice).
Half to_f16(double value);
BFloat16 to_bf16(double value);

/// Converts whole arrays of equal length; vectorised where the CPU can, same bits everywhere.
void convert(std::span<const float> from, std::span<Half> to);
void convert(std::span<const float> from, std::span<BFloat16> to);
void convert(std::span<const Half> from, std::span<float> to);
void convert(std::span<const BFloat16> from, std::span<float> to);

}  // namespace halfnote
