// The element types of 8 bits and fewer that no processor computes in: five 8-bit floats, a 4-bit
// float, 4- and 2-bit integers. In memory each element takes a byte; signed integers are
// sign-extended in it. They are read to double, which holds all of them, and written from it.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/low_bit_codes.h"

namespace halfnote {

/// One of the types this file is about.
bool is_low_bit(DType dtype);
/// The number that the byte of an element stands for.
double read_low_bit(DType dtype, uint8_t code);
/// The byte of an element, rounded once. Integers take the integer part, and of one that does not
/// fit the low bits. NaN becomes NaN where the type has one, else 0.
uint8_t write_low_bit(DType dtype, double value, Overflow overflow = Overflow::kSaturate,
                      PowerRounding rounding = PowerRounding::kUp);

}  // namespace halfnote
