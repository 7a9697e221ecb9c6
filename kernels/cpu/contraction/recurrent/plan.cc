#include "kernels/cpu/contraction/recurrent/plan.h"

#include <array>
#include <string>

#include "kernels/cpu/reals.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu {
namespace {

void require_shape(const KernelCall& call, const Operand& operand, const Shape& shape,
                   const std::string& what) {
  if (!operand.present() || operand.shape == shape) return;
  throw model_error(call, what + " has the wrong shape")
      .expected(to_string(shape), to_string(operand.shape));
}

void require_input(const KernelCall& call, size_t index, const Shape& shape, const char* name) {
  if (call.has_input(index)) require_shape(call, call.inputs[index], shape, name);
}

void require_output(const KernelCall& call, size_t index, const Shape& shape, const char* name) {
  if (call.has_output(index)) require_shape(call, call.outputs[index], shape, name);
}

/// Sizes from X and R; W and R checked.
RecurrentPlan plan_common(const KernelCall& call) {
  for (size_t i = 0; i < 3; ++i) {
    if (!call.has_input(i) || call.inputs[i].shape.size() != 3) {
      throw model_error(call, "operand " + std::to_string(i) + " has the wrong rank")
          .expected("3 (X, W and R)",
                    call.has_input(i) ? to_string(call.inputs[i].shape) : std::string("none"));
    }
  }
  const Shape& x = call.inputs[0].shape;
  const Shape& r = call.inputs[2].shape;
  RecurrentPlan plan;
  plan.r = recurrence_of(*recurrent_op(call.op), attributes_of(call), r[2]);
  plan.steps = x[plan.r.batch_first ? 1 : 0];
  plan.batch = x[plan.r.batch_first ? 0 : 1];
  plan.inputs = x[2];
  plan.hidden = r[2];
  require_shape(call, call.inputs[1], {plan.directions(), plan.width(), plan.inputs}, "W");
  require_shape(call, call.inputs[2], {plan.directions(), plan.width(), plan.hidden}, "R");
  return plan;
}

Shape y_shape(const RecurrentPlan& plan) {
  if (plan.r.batch_first) return {plan.batch, plan.steps, plan.directions(), plan.hidden};
  return {plan.steps, plan.directions(), plan.batch, plan.hidden};
}

Shape state_shape(const RecurrentPlan& plan) {
  if (plan.r.batch_first) return {plan.batch, plan.directions(), plan.hidden};
  return {plan.directions(), plan.batch, plan.hidden};
}

Shape stash_shape(const RecurrentPlan& plan, int64_t blocks) {
  return {plan.directions(), plan.steps, plan.batch, blocks * plan.hidden};
}

/// A reserve holds gates and stash at least.
void check_reserve(const KernelCall& call, const RecurrentPlan& plan, const Operand& reserve,
                   DType type) {
  if (!reserve.present()) return;
  require_shape(call, reserve, {plan.r.reserve}, "the reserve");
  const int64_t bytes = (plan.gate_elements() + plan.stash_elements()) *
                        static_cast<int64_t>(size_of(type == DType::kF64 ? type : DType::kF32));
  if (reserve.dtype == DType::kU8 && plan.r.reserve >= bytes) return;
  throw model_error(call, "what a recurrent op keeps does not fit its reserve")
      .expected("u8, " + std::to_string(bytes) + " bytes or more",
                std::string(short_name(reserve.dtype)) + ", " + std::to_string(plan.r.reserve));
}

std::string type_refusal(const KernelCall& call, std::span<const size_t> inputs, DType type) {
  for (size_t index : inputs) {
    if (!call.has_input(index) || call.inputs[index].dtype == type) continue;
    return "operand " + std::to_string(index) + " is " +
           std::string(short_name(call.inputs[index].dtype)) + " and X is " +
           std::string(short_name(type));
  }
  return {};
}

std::string real_refusal(const Operand& operand, const std::string& name) {
  if (!operand.present() || is_real(operand.dtype)) return {};
  return name + " is no float type: " + std::string(short_name(operand.dtype));
}

}  // namespace

RecurrentGradSlots grad_slots(RecurrentOp op) {
  RecurrentGradSlots s;
  if (op == RecurrentOp::kGru) {
    s.stash = 7;
    s.dy = 8;
    s.dy_h = 9;
  }
  if (op == RecurrentOp::kLstm) {
    s = {.lengths = 3,
         .initial_h = 4,
         .initial_c = 5,
         .p = 6,
         .y = 7,
         .gates = 8,
         .stash = 9,
         .dy = 10,
         .dy_h = 11,
         .dy_c = 12,
         .d_initial_h = 4,
         .d_initial_c = 5,
         .dp = 6};
  }
  return s;
}

RecurrentPlan plan_recurrent(const KernelCall& call) {
  using namespace recurrent;  // NOLINT(google-build-using-namespace): names of operands
  const RecurrentPlan plan = plan_common(call);
  const int64_t d = plan.directions();
  require_input(call, kB, {d, 2 * plan.width()}, "B");
  require_input(call, kLengths, {plan.batch}, "sequence_lens");
  require_input(call, kInitialH, state_shape(plan), "initial_h");
  require_output(call, 0, y_shape(plan), "Y");
  require_output(call, 1, state_shape(plan), "Y_h");
  const bool lstm = plan.r.op == RecurrentOp::kLstm;
  if (lstm) {
    require_input(call, kInitialC, state_shape(plan), "initial_c");
    require_input(call, kP, {d, 3 * plan.hidden}, "P");
    require_output(call, 2, state_shape(plan), "Y_c");
  }
  const size_t gates = lstm ? 3 : 2;
  if (plan.r.reserve > 0) {
    if (call.has_output(gates))
      check_reserve(call, plan, call.outputs[gates], call.inputs[kX].dtype);
    return plan;
  }
  require_output(call, gates, stash_shape(plan, plan.r.gates()), "gates");
  require_output(call, gates + 1, stash_shape(plan, 1), lstm ? "cells" : "hidden");
  return plan;
}

RecurrentPlan plan_recurrent_grad(const KernelCall& call) {
  const RecurrentPlan plan = plan_common(call);
  const RecurrentGradSlots s = grad_slots(plan.r.op);
  const int64_t d = plan.directions();
  const Shape state = state_shape(plan);
  const bool wants_stash = plan.r.reserve == 0 && plan.has_stash();
  if (!call.has_input(s.y) || !call.has_input(s.gates) ||
      (wants_stash && !call.has_input(s.stash))) {
    throw model_error(call, "what the forward op kept is missing");
  }
  require_input(call, s.lengths, {plan.batch}, "sequence_lens");
  require_input(call, s.initial_h, state, "initial_h");
  require_input(call, s.initial_c, state, "initial_c");
  require_input(call, s.p, {d, 3 * plan.hidden}, "P");
  require_input(call, s.y, y_shape(plan), "Y");
  if (plan.r.reserve > 0) {
    check_reserve(call, plan, call.inputs[s.gates], call.inputs[0].dtype);
  } else {
    require_input(call, s.gates, stash_shape(plan, plan.r.gates()), "gates");
    require_input(call, s.stash, stash_shape(plan, 1), "cells or hidden");
  }
  require_input(call, s.dy, y_shape(plan), "dY");
  require_input(call, s.dy_h, state, "dY_h");
  require_input(call, s.dy_c, state, "dY_c");
  require_output(call, 0, call.inputs[0].shape, "dX");
  require_output(call, 1, call.inputs[1].shape, "dW");
  require_output(call, 2, call.inputs[2].shape, "dR");
  require_output(call, 3, {d, 2 * plan.width()}, "dB");
  require_output(call, s.d_initial_h, state, "dinitial_h");
  require_output(call, s.d_initial_c, state, "dinitial_c");
  require_output(call, s.dp, {d, 3 * plan.hidden}, "dP");
  return plan;
}

std::string recurrent_type_refusal(const KernelCall& call, const RecurrentPlan& plan,
                                   bool gradient) {
  const RecurrentGradSlots s = grad_slots(plan.r.op);
  using recurrent::kInitialH;
  const size_t lengths = gradient ? s.lengths : size_t{recurrent::kLengths};
  if (call.has_input(lengths) && call.inputs[lengths].dtype != DType::kI32) {
    return "sequence_lens is no i32";
  }
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (i == lengths || (gradient && i == s.gates && plan.r.reserve > 0)) continue;
    if (std::string why = real_refusal(call.inputs[i], "operand " + std::to_string(i));
        !why.empty()) {
      return why;
    }
  }
  const size_t gates = plan.r.op == RecurrentOp::kLstm ? 3 : 2;
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    if (!gradient && i == gates && plan.r.reserve > 0) continue;
    if (std::string why = real_refusal(call.outputs[i], "a result"); !why.empty()) return why;
  }
  const DType type = call.inputs[0].dtype;
  if (!gradient)
    return type_refusal(call, std::array{size_t{1}, size_t{2}, size_t{kInitialH}}, type);
  if (std::string why =
          type_refusal(call, std::array{size_t{1}, size_t{2}, s.y, s.initial_h}, type);
      !why.empty()) {
    return why;
  }
  if (plan.r.reserve > 0) return {};
  const DType math = type == DType::kF64 ? DType::kF64 : DType::kF32;
  for (size_t index : {s.gates, s.stash}) {
    if (call.has_input(index) && call.inputs[index].dtype != math) {
      return "gates and cells are not in " + std::string(short_name(math));
    }
  }
  return {};
}

Error bad_length(int64_t length, int64_t steps) {
  return Error(ErrorCode::kData, "sequence_lens goes beyond the sequence")
      .expected("0 to " + std::to_string(steps), std::to_string(length));
}

void check_lengths(const RecurrentPlan& plan, const int32_t* lengths) {
  if (lengths == nullptr) return;
  for (int64_t row = 0; row < plan.batch; ++row) {
    if (lengths[row] < 0 || lengths[row] > plan.steps) throw bad_length(lengths[row], plan.steps);
  }
}

}  // namespace halfnote::cpu
