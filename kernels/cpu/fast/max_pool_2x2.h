// The maximum over 2×2 windows with stride 2, and its gradient, a whole plane at a time: first the
// maximum of each horizontal pair, then of each vertical one. In the gradient each dY goes down the
// same tree, which ends at the first maximum of the window, as in the reference.
#pragma once

#include "kernels/cpu/reduction/window.h"

namespace halfnote::cpu::fast {

/// Nothing padded, no window that hangs over the end; an odd last row or column is in no window.
bool is_two_by_two(const PoolGeometry& g);
/// Elements of room that both functions need.
int64_t two_by_two_room(const PoolGeometry& g);
/// `y` has kOverrun elements of room past its end.
void two_by_two_forward(const PoolGeometry& g, const float* x, float* room, float* y);
/// `dy` has kOverrun readable elements past its end.
void two_by_two_backward(const PoolGeometry& g, const float* dy, const float* x, float* room,
                         float* dx);

}  // namespace halfnote::cpu::fast
