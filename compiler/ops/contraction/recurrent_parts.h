// What the bodies of the recurrent ops and of their gradients share: sizes, slices, activation
// functions in standard ops. Inside a body time comes first, (T, B, …), whatever the layout.
#pragma once

#include <vector>

#include "base/ops/recurrence.h"
#include "compiler/ops/operator.h"

namespace halfnote::contraction {

/// The sizes of a call; steps and hidden are numbers, the batch may be a symbol.
struct BodySizes {
  Recurrence r;
  int64_t steps = 0, hidden = 0, inputs = 0;

  /// The time of step `step` of direction `d`.
  int64_t time(int64_t d, int64_t step) const {
    return r.reverse[static_cast<size_t>(d)] ? steps - 1 - step : step;
  }
};

/// Throws Error(kUnsupported) where the number of steps or a size of W or R is symbolic: the body
/// writes the steps out.
BodySizes body_sizes(const BodyContext& body, RecurrentOp op);

/// x[from : to] along `axis`.
Expr slice(Expr x, int64_t axis, int64_t from, int64_t to);
/// The `count` equal parts of x along `axis`.
std::vector<Expr> split(Expr x, int64_t axis, int64_t count);
Expr concat(const std::vector<Expr>& parts, int64_t axis);
/// Input `index` in math precision, with time or direction first; invalid where it is absent.
Expr recurrent_input(BodyContext& body, size_t index, bool batch_first);
/// (…, B, …) back to the layout of the call: the first two dims of X and of states swapped.
Expr in_layout(Expr x, bool batch_first);
/// Part `d` of the first dim, which stays.
Expr direction_of(Expr x, int64_t d);
/// Zeros of shape (1, B, H).
Expr zero_state(const BodySizes& sizes, Expr x);
/// The initial state of direction d as (1, B, H): `state`, or zeros.
Expr initial_state(const BodySizes& sizes, Expr x, Expr state, int64_t d);
/// Rounds to `dtype` and back to math precision.
Expr rounded(Expr x, DType dtype);
/// Is time `t + offset` within the length of a row? Bool (T, B, 1) for all t.
Expr within_length(const BodySizes& sizes, Expr lengths, int64_t offset);

/// f(x cut to the clip).
Expr activation(const BodySizes& sizes, int64_t d, int64_t function, Expr x);
/// df/dx where y = activation(x).
Expr activation_slope(const BodySizes& sizes, int64_t d, int64_t function, Expr x, Expr y);

}  // namespace halfnote::contraction
