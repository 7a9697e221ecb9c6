// What base/low_bit_codes.h computes, compiled once for the host.
#include "base/low_bit.h"

namespace halfnote {

bool is_low_bit(DType dtype) { return low_bit::is_one(dtype); }

double read_low_bit(DType dtype, uint8_t code) { return low_bit::read(dtype, code); }

uint8_t write_low_bit(DType dtype, double value, Overflow overflow, PowerRounding rounding) {
  return low_bit::write(dtype, value, overflow, rounding);
}

}  // namespace halfnote
