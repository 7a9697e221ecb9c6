#include "kernels/cpu/fast/max_pool_2x2.h"

#include "kernels/cpu/fast/vector_math.h"

namespace halfnote::cpu::fast {

namespace {

/// The columns in windows; an odd last one is left out.
int64_t even_columns(const PoolGeometry& g) { return 2 * g.out[2]; }

/// Rows of even length, without the odd last column; `x` itself if there is none.
const float* even_rows(const PoolGeometry& g, const float* x, float* room) {
  const int64_t columns = even_columns(g);
  if (columns == g.in[2]) return x;
  for (int64_t row = 0; row < g.in[1]; ++row) {
    std::copy_n(x + row * g.in[2], columns, room + row * columns);
  }
  return room;
}

/// Three planes of the room: even rows, pairs, gradients of pairs.
struct Room {
  float *even, *pairs, *gradients;
  Room(const PoolGeometry& g, float* room)
      : even(room),
        pairs(even + g.in_size() + kOverrun),
        gradients(pairs + g.in_size() + kOverrun) {}
};

}  // namespace

bool is_two_by_two(const PoolGeometry& g) {
  constexpr PoolGeometry::Dims kTwo{1, 2, 2}, kOne{1, 1, 1}, kNone{0, 0, 0};
  return g.kernel == kTwo && g.stride[1] == 2 && g.stride[2] == 2 && g.dilation == kOne &&
         g.pad_begin == kNone && g.pad_end == kNone && g.in[0] == 1 && g.in[1] / 2 == g.out[1] &&
         g.in[2] / 2 == g.out[2];
}

int64_t two_by_two_room(const PoolGeometry& g) { return 3 * (g.in_size() + kOverrun); }

void two_by_two_forward(const PoolGeometry& g, const float* x, float* memory, float* y) {
  const Room room(g, memory);
  const float* even = even_rows(g, x, room.even);
  vector_math().pair_maximum(even, g.in[1] * g.out[2], room.pairs);
  vector_math().line_maximum(room.pairs, g.out[1], g.out[2], y);
}

void two_by_two_backward(const PoolGeometry& g, const float* dy, const float* x, float* memory,
                         float* dx) {
  const Room room(g, memory);
  const float* even = even_rows(g, x, room.even);
  const int64_t pairs = g.in[1] * g.out[2];
  vector_math().pair_maximum(even, pairs, room.pairs);
  vector_math().line_maximum_gradient(room.pairs, dy, g.out[1], g.out[2], room.gradients);
  const int64_t covered = 2 * g.out[1] * g.out[2];
  std::fill_n(room.gradients + covered, pairs - covered, 0.0f);  // an odd last row
  if (even == x) return vector_math().pair_maximum_gradient(x, room.gradients, pairs, dx);
  float* even_dx = room.pairs;  // no longer needed
  vector_math().pair_maximum_gradient(even, room.gradients, pairs, even_dx);
  for (int64_t row = 0; row < g.in[1]; ++row) {
    std::copy_n(even_dx + row * even_columns(g), even_columns(g), dx + row * g.in[2]);
    dx[row * g.in[2] + even_columns(g)] = 0;
  }
}

}  // namespace halfnote::cpu::fast
