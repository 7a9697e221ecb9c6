#include "kernels/cpu/contraction/recurrent/backward_plan.h"

namespace halfnote::cpu {

std::vector<DType> types_of(const std::vector<Operand>& operands, size_t count) {
  std::vector<DType> types(count, DType::kUndefined);
  for (size_t i = 0; i < operands.size() && i < count; ++i) types[i] = operands[i].dtype;
  return types;
}

std::vector<Side> sides_of(const RecurrentPlan& plan) {
  const int64_t n = plan.hidden, width = plan.width();
  if (plan.r.op != RecurrentOp::kGru) return {{0, width, false}};
  if (plan.r.linear_before_reset) return {{0, width, true}};
  return {{0, 2 * n, true}, {2 * n, n, true}};
}

}  // namespace halfnote::cpu
