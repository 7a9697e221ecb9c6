// Groups of steps that have a loop of their own: the spellings of GELU that exporters write, and
// their gradients. Step by step every result goes through the first-level cache, and one of 16 bits
// is rounded in a walk of its own; in one loop all stays in registers. The bits are those of the
// steps.
#pragma once

#include <optional>
#include <vector>

#include "base/ops/pointwise.h"
#include "kernels/cpu/pointwise/loops.h"
#include "kernels/kernel.h"

namespace halfnote::cpu::pointwise {

/// Operands that a step or a group may have.
inline constexpr size_t kMaxOperands = 8;

/// A step, or a group that ends with it.
struct Task {
  int step = 0;
  Loop loop = nullptr;
  std::vector<int> operands;  // as in PointwiseStep: those with elements
};

/// What a program has to do, in its order. A group stands for its steps if `loops` has it for
/// their type, nobody else reads what they make, and the exponents of its powers are constants of
/// the call.
std::vector<Task> plan_tasks(const PointwiseProgram& program, const std::vector<Operand>& inputs,
                             const Loops& loops);

}  // namespace halfnote::cpu::pointwise
