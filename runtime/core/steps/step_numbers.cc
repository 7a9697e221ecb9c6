#include "runtime/core/steps/step_numbers.h"

#include <algorithm>

namespace halfnote {

StepNumbers::StepNumbers(const Program& program) : first_{0} {
  for (const ProgramStep& step : program.steps)
    first_.push_back(first_.back() + 1 + step.kernel->inner_nodes());
}

Place StepNumbers::place(const Program& program, int32_t number) const {
  if (number < 0 || number >= count()) return {};
  const auto behind = std::ranges::upper_bound(first_, number);
  const auto index = static_cast<size_t>(behind - first_.begin()) - 1;
  const ProgramStep& step = program.steps[index];
  if (number == first_[index]) return {{}, step.node, step.op};
  return step.kernel->inner_node(number - first_[index] - 1);
}

}  // namespace halfnote
