// What a recurrent op or its gradient computes: sizes, strides and attributes, checked. The rows
// that go through one step (the batch) are worked on together.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/ops/recurrence.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

/// Operands of RNN, GRU and LSTM, ONNX's and ours.
namespace recurrent {
enum ForwardInput : size_t { kX, kW, kR, kB, kLengths, kInitialH, kInitialC, kP };
}  // namespace recurrent

/// Where the operands of a gradient op stand, by op; kNone for what the op does not have.
struct RecurrentGradSlots {
  static constexpr size_t kNone = 64;
  size_t lengths = 3, initial_h = 4, initial_c = kNone, p = kNone, y = 5, gates = 6,
         stash = kNone,  // LSTM: cells, GRU: hidden
      dy = 7, dy_h = 8, dy_c = kNone;
  size_t d_initial_h = 4, d_initial_c = kNone, dp = kNone;  // results; dX dW dR dB are 0 to 3
};
RecurrentGradSlots grad_slots(RecurrentOp op);

struct RecurrentPlan {
  Recurrence r;
  int64_t steps = 0, batch = 0, inputs = 0, hidden = 0;  // T, B, I, H

  /// A GRU whose last gate takes (r∘s)·Rnᵀ.
  bool resets_first() const { return r.op == RecurrentOp::kGru && !r.linear_before_reset; }
  int64_t directions() const { return r.directions(); }
  int64_t rows() const { return steps * batch; }
  int64_t width() const { return r.gates() * hidden; }  // rows of W and R
  int64_t w_size() const { return width() * inputs; }
  int64_t r_size() const { return width() * hidden; }
  /// Does a forward op keep cells (LSTM) or the hidden part of the last gate beside its gates?
  bool has_stash() const { return r.op == RecurrentOp::kLstm || r.linear_before_reset; }
  /// Elements of gates, of all directions; in a reserve the stash lies behind them.
  int64_t gate_elements() const { return directions() * rows() * width(); }
  int64_t stash_elements() const { return has_stash() ? directions() * rows() * hidden : 0; }
  /// The time at step `step` of a direction.
  int64_t time(int64_t direction, int64_t step) const {
    return r.reverse[static_cast<size_t>(direction)] ? steps - 1 - step : step;
  }
  /// Element where the vector of X at (time, row) begins.
  int64_t x_at(int64_t time, int64_t row) const {
    return (r.batch_first ? row * steps + time : time * batch + row) * inputs;
  }
  /// … of Y at (time, direction, row).
  int64_t y_at(int64_t time, int64_t direction, int64_t row) const {
    const int64_t d = directions();
    return (r.batch_first ? (row * steps + time) * d + direction
                          : (time * d + direction) * batch + row) *
           hidden;
  }
  /// … of Y_h, Y_c and the initial states at (direction, row).
  int64_t state_at(int64_t direction, int64_t row) const {
    return (r.batch_first ? row * directions() + direction : direction * batch + row) * hidden;
  }
};

/// Each throws Error(kModel) if shapes and attributes do not fit.
RecurrentPlan plan_recurrent(const KernelCall& call);
RecurrentPlan plan_recurrent_grad(const KernelCall& call);

/// The reason if the operands' types are not those of the op; else empty.
std::string recurrent_type_refusal(const KernelCall& call, const RecurrentPlan& plan,
                                   bool gradient);

/// The valid length of each row: `lengths`, or all steps.
inline int64_t length_of(const RecurrentPlan& plan, const int32_t* lengths, int64_t row) {
  return lengths == nullptr ? plan.steps : lengths[row];
}
/// The error of a length outside 0 … T.
Error bad_length(int64_t length, int64_t steps);
/// Throws it for the first such length.
void check_lengths(const RecurrentPlan& plan, const int32_t* lengths);

}  // namespace halfnote::cpu
