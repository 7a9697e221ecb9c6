// The element types of 8 bits and fewer that no processor computes in: five 8-bit floats, a 4-bit
// float, 4- and 2-bit integers. In memory each element takes a byte; signed integers are
// sign-extended in it. They are read to double, which holds all of them, and written from it.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace halfnote {

/// What becomes of a value too large for a float type: the largest number, or infinity (NaN where
/// the type has none).
enum class Overflow : uint8_t { kSaturate, kInfinity };
/// How f8e8m0, which has powers of two only, rounds; all others round to nearest, ties to even.
enum class PowerRounding : uint8_t { kUp, kDown, kNearest };

/// One of the types this file is about.
bool is_low_bit(DType dtype);
/// The number that the byte of an element stands for.
double read_low_bit(DType dtype, uint8_t code);
/// The byte of an element, rounded once. Integers take the integer part, and of one that does not
/// fit the low bits. NaN becomes NaN where the type has one, else 0.
uint8_t write_low_bit(DType dtype, double value, Overflow overflow = Overflow::kSaturate,
                      PowerRounding rounding = PowerRounding::kUp);

}  // namespace halfnote
