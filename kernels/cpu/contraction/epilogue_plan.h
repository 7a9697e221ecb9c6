// What a GemmActivation, GemmActivationGrad or GemmSums call computes, whatever kernel does it
// (base/ops/epilogue.h).
#pragma once

#include <string>

#include "base/ops/epilogue.h"
#include "kernels/cpu/contraction/matmul_plan.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

struct EpiloguePlan {
  enum class Kind : uint8_t { kActivation, kGradient, kSumsOfA, kSumsOfB };

  Kind kind = Kind::kActivation;
  GemmActivation activation = GemmActivation::kRelu;
  MatmulPlan product;  // of one matrix, without C
  bool has_bias = false;
  /// Is there a second result: what the gradient reads, or sums?
  bool has_second = false;

  int64_t m() const { return product.m; }
  int64_t n() const { return product.n; }
  int64_t k() const { return product.k; }
  bool sums_operand() const { return kind == Kind::kSumsOfA || kind == Kind::kSumsOfB; }
  bool is_relu() const { return !sums_operand() && activation == GemmActivation::kRelu; }
};

/// Throws Error(kModel) if the shapes do not fit.
EpiloguePlan plan_epilogue(const KernelCall& call);
/// Why the types of a call do not go together, or an empty string.
std::string unfit_epilogue_types(const KernelCall& call, const EpiloguePlan& plan);

}  // namespace halfnote::cpu
