// What QuantizeLinear and DequantizeLinear do, checked: for the kernels of every device.
#pragma once

#include <string>

#include "kernels/kernel.h"
#include "kernels/math/host_device.h"

namespace halfnote::cpu {

/// Which scale belongs to an element of x.
struct ScaleMap {
  int64_t inner = 1, dim = 1;    // elements behind the axis, and along it
  int64_t block = 1, parts = 1;  // elements of a block, and scales along the axis
  enum class Kind { kTensor, kAxis, kBlocked } kind = Kind::kTensor;

  HN_HD int64_t index(int64_t i) const {
    if (kind == Kind::kTensor) return 0;
    const int64_t along = i / inner % dim;
    if (kind == Kind::kAxis) return along;
    return (i / inner / dim * parts + along / block) * inner + i % inner;
  }
};

/// The types of x, scale, zero point (kUndefined: none) and result, and which scale is whose.
struct LinearPlan {
  ScaleMap map;
  DType from = DType::kUndefined, scale = DType::kUndefined, zero = DType::kUndefined,
        to = DType::kUndefined;
};

/// The reason why the operands of either op have no kernel, or an empty string.
std::string plan_linear(const KernelCall& call, LinearPlan& plan);

}  // namespace halfnote::cpu
