// The rows of the quantized family that stand in a file of their own, and what they share.
#pragma once

#include <vector>

#include "kernels/cuda/any_number.h"
#include "kernels/kernel.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> product_rows();  // product.cu: MatMulInteger, QLinearConv, …

/// Writes a value of a quantized integer type: it is clipped to the range of the type. (AnyOutput
/// clips to 8 bits and more, but takes the low bits of fewer.)
__device__ inline void write_clipped(double value, const AnyOutput& to, int64_t at) {
  const int bits = low_bit::integer_bits(to.dtype);
  if (bits != 0) {
    const bool has_sign = to.dtype == DType::kI4 || to.dtype == DType::kI2;
    const double low = has_sign ? -(1 << (bits - 1)) : 0;
    const double high = has_sign ? (1 << (bits - 1)) - 1 : (1 << bits) - 1;
    value = value < low ? low : value > high ? high : value;
  }
  to.write(at, value);
}

}  // namespace halfnote::HN_CUDA
