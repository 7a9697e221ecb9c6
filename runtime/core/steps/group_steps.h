// Steps that a kernel does together: updates of one optimizer with the same settings become one
// step, whose kernel takes a constant number of launches for all parameters (KernelRow::group).
//
// They come together where the last of them stands, and what reads their results comes behind them
// (averages of weights), as does what writes states that they read (accumulators). Where all of
// them wait for a norm or a finite check of all gradients, they stand side by side anyhow. Where
// they do not, gradients would be kept for longer: a group is closed once it keeps kMostHeld bytes,
// which its launches take far longer to read than to start.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "compiler/ir/graph.h"
#include "runtime/core/plan.h"

namespace halfnote {

inline constexpr size_t kMostHeld = size_t{64} << 20;

/// What order_groups() needs to know of a step.
struct GroupedStep {
  std::span<const ValueId> reads, writes;
  int key = -1;            // steps with the same one may become one; -1: the step stays alone
  bool while_held = true;  // may gradients be kept over it, however many?
};

/// The steps in a new order, and which of them become one; `bytes(value)` of what is not a state.
std::vector<std::vector<size_t>> order_groups(const Graph& graph,
                                              std::span<const GroupedStep> steps,
                                              const std::function<size_t(ValueId)>& bytes);

/// The steps of a plan with the values that they read and write.
struct PlannedSteps {
  std::vector<ProgramStep>& steps;
  std::vector<std::vector<ValueId>>&reads, &writes;
};

/// Makes one step of each group whose kernel accepts it. `call_of(i)` is the call of step i, and
/// `bytes(value)` the size of a value.
void group_steps(const Graph& graph, PlannedSteps planned,
                 const std::function<KernelCall(size_t)>& call_of,
                 const std::function<size_t(ValueId)>& bytes);

}  // namespace halfnote
