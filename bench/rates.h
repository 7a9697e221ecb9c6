// The least time of a step of the plan on a machine that reaches so much: contractions at its FLOP
// rate or the time to move their operands, all else the time to move its operands.
#pragma once

#include <algorithm>

#include "runtime/core/profile/table.h"

namespace halfnote {

/// Bytes of the operands, once what a step reads as several (Q, K and V in one tensor).
inline double moved_bytes(const ProgramStep& step) {
  double bytes = operand_bytes(step);
  const size_t inputs = std::min(step.inputs.size(), step.input_types.size());
  for (size_t i = 0; i < inputs; ++i) {
    const auto same = [&](const BufferRef& other) {
      return other.space == step.inputs[i].space && other.offset == step.inputs[i].offset;
    };
    const StepOperand& operand = step.input_types[i];
    const bool is_there =
        operand.dtype != DType::kUndefined && step.inputs[i].space != BufferRef::Space::kNone;
    if (is_there && std::any_of(step.inputs.begin(),
                                step.inputs.begin() + static_cast<std::ptrdiff_t>(i), same))
      bytes -= static_cast<double>(element_count(operand.shape) *
                                   static_cast<int64_t>(size_of(operand.dtype)));
  }
  return bytes;
}

struct Rates {
  double flops = 0, bytes = 0;  // a second; FLOPs of 16-bit operands, a quarter of them in f32

  double seconds(const ProgramStep& step) const {
    const double moving = moved_bytes(step) / bytes;
    if (step.flops <= 0) return moving;
    return std::max(moving, step.flops / (step.reads_16bit ? flops : flops / 4));
  }
};

}  // namespace halfnote
