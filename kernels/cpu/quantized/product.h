// What the products of 8-bit operands compute, checked: for the kernels of every device.
#pragma once

#include <string>

#include "kernels/cpu/contraction/conv_plan.h"
#include "kernels/cpu/contraction/matmul_plan.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

/// A scale, zero point or bias: one number, one for each row or column of its operand, or, without
/// a type, `fallback`.
struct ProductParameter {
  size_t slot = 0;  // among the inputs
  DType dtype = DType::kUndefined;
  int64_t count = 0;
  double fallback = 0;
};

/// A product of a and b less their zero points; with an i32 result, or scaled and rounded to 8
/// bits. Parameters of a go by rows of the result, those of b by its columns (filters of a Conv).
struct ProductPlan {
  size_t a = 0, b = 0;  // among the inputs
  DType a_type = DType::kUndefined, b_type = DType::kUndefined, y_type = DType::kUndefined;
  int64_t a_size = 0, b_size = 0;
  ProductParameter a_scale, b_scale, y_scale, a_zero, b_zero, y_zero, bias;
};

// The reason why the operands have no kernel, or an empty string; Error(kModel) for shapes that do
// not fit.

std::string plan_quantized_matmul(const KernelCall& call, ProductPlan& plan, MatmulPlan& product);
std::string plan_quantized_conv(const KernelCall& call, ProductPlan& plan, ConvPlan& product);

}  // namespace halfnote::cpu
