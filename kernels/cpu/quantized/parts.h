// The rows of the quantized family, file by file, and what they share.
#pragma once

#include <vector>

#include "base/low_bit.h"
#include "kernels/cpu/support.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

std::vector<KernelRow> linear_rows();  // linear.cc: QuantizeLinear, DequantizeLinear
std::vector<KernelRow>
product_rows();  // product.cc: MatMulInteger, QLinearMatMul, and convolutions

/// One element of any real type as a double. The switch is made for each element: the reference
/// kernels of this family are no inner loops.
double read_element(const std::byte* from, DType dtype, int64_t index);
/// Is it a type that read_element() knows?
bool is_element(DType dtype);
/// Writes a value of a quantized type: integers are clipped to their range, floats rounded.
void write_quantized(double value, std::byte* to, DType dtype, int64_t index, Overflow overflow);

/// Rounds to nearest, ties to even, and adds the zero point, as all quantizations do.
double quantized(double value, double zero_point);

}  // namespace halfnote::cpu
