// The plan of Det, which CPU and GPU share.
#pragma once

#include <string>

#include "kernels/kernel.h"

namespace halfnote::cpu {

/// `count` matrices of n × n, one behind the other.
struct DetPlan {
  int64_t n = 0, count = 0;
  DType type = DType::kUndefined;
};

/// Why there is none, or an empty string. Throws Error(kModel) if the matrices are not square.
std::string plan_det(const KernelCall& call, DetPlan& plan);

}  // namespace halfnote::cpu
