// What DeformConv does, checked: for the kernels of every device.
#pragma once

#include <string>

#include "kernels/cpu/contraction/conv_plan.h"
#include "kernels/math/host_device.h"

namespace halfnote::cpu {

/// Operands: X, W, offset, B, mask.
struct DeformPlan {
  ConvPlan conv;
  int64_t offset_groups = 1;
  DType type = DType::kUndefined;
  bool has_bias = false, has_mask = false;
  // The offsets are (N, offset_groups · taps · 2, oH, oW), the mask has half of their channels.
};

/// The reason why the operands do not fit, or an empty string; Error(kModel) for shapes and
/// attributes that no convolution has.
std::string plan_deform(const KernelCall& call, DeformPlan& plan);

/// Between the four pixels around (y, x), which `pixel(i)` reads; pixels outside of the image are
/// zero, and NaN is nowhere.
template <class Pixel>
HN_HD double between_pixels(const Pixel& pixel, int64_t height, int64_t width, double y, double x) {
  if (y != y || x != x) return y + x;
  const double top = math::floor(y), left = math::floor(x);
  double sum = 0;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const double row = top + i, column = left + j;
      if (row < 0 || column < 0 || row >= static_cast<double>(height) ||
          column >= static_cast<double>(width)) {
        continue;
      }
      const double weight = (1 - math::fabs(y - row)) * (1 - math::fabs(x - column));
      sum += weight * pixel(static_cast<int64_t>(row) * width + static_cast<int64_t>(column));
    }
  }
  return sum;
}

}  // namespace halfnote::cpu
