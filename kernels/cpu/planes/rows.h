// The rows of losses and softmax along an axis that is not the innermost one, and what they share.
#pragma once

#include <array>
#include <cmath>
#include <limits>

#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/normalization/parts.h"
#include "kernels/cpu/planes/loops.h"

namespace halfnote::cpu::planes {

std::vector<KernelRow> cross_entropy_rows();  // cross_entropy.cc: the loss and its gradient
std::vector<KernelRow> softmax_rows();        // softmax.cc: Softmax, LogSoftmax, their gradients

/// Positions of a block at most: what belongs to them fits onto the stack.
inline constexpr int64_t kPositions = 256;

/// Neighbouring positions of one image: class c of the first one is element first + c·stride.
struct Block {
  int64_t line = 0, first = 0, stride = 1, count = 0;
};

/// Positions of a block: all classes of them stay in the second-level cache.
int64_t block_size(const Lines& lines);
/// Why lines are not for these kernels; else empty.
std::string lines_refusal(const Lines& lines, const Operand& operand);

/// Calls `body(block)` for blocks that cover all lines.
template <class Body>
void for_blocks(const Lines& lines, int threads, const Body& body) {
  const int64_t size = block_size(lines), across = (lines.stride + size - 1) / size;
  parallel_blocks(lines.count / lines.stride * across, 1, threads, [&](int64_t index, int64_t) {
    const int64_t at = index % across * size;
    const int64_t line = index / across * lines.stride + at;
    body(Block{line, lines.start(line), lines.stride, std::min(size, lines.stride - at)});
  });
}

template <class M>
using Room = std::array<M, kPositions>;

/// Calls `body(class, x)` for the rows of a block in f32.
template <class T, class Body>
void for_rows(const T* x, const Block& block, int64_t classes, const Body& body) {
  Room<float> room;
  for (int64_t c = 0; c < classes; ++c)
    body(c, load_block(x + block.first + c * block.stride, block.count, room.data()));
}

/// Row `c` of a result: `make(y)` writes it in f32.
template <class T, class Make>
void write_row(T* y, const Block& block, int64_t c, const Make& make) {
  Room<float> room;
  T* to = y + block.first + c * block.stride;
  float* result = result_block(to, room.data());
  make(result);
  store_block(result, block.count, to);
}

/// Maximum and Σ exp(x − maximum) of each position.
template <class T>
void sum_exponentials(const T* x, const Block& block, int64_t classes, Room<float>& most,
                      Room<double>& sums) {
  std::fill_n(most.data(), block.count, -std::numeric_limits<float>::infinity());
  std::fill_n(sums.data(), block.count, 0.0);
  for_rows(x, block, classes,
           [&](int64_t, const float* row) { loops()->larger(row, block.count, most.data()); });
  for_rows(x, block, classes, [&](int64_t, const float* row) {
    loops()->add_exponentials(row, block.count, most.data(), sums.data());
  });
}

/// The logarithm of Σ exp(x) of each position: what is taken from x at once, and what is taken from
/// what is left. The second is 0 but where a mask has taken a whole position so far away, to
/// -FLT_MAX, that f64 would lose the logarithm beside the largest x.
struct LogSums {
  Room<double> first, rest;
  bool far = false;

  template <class T>
  LogSums(const T* x, const Block& block, int64_t classes) {
    Room<float> most;
    sum_exponentials(x, block, classes, most, rest);
    for (size_t i = 0; i < static_cast<size_t>(block.count); ++i) {
      const bool apart = std::abs(most[i]) > 1e7f;
      const double logarithm = std::log(rest[i]);
      first[i] = static_cast<double>(most[i]) + (apart ? 0 : logarithm);
      rest[i] = apart ? logarithm : 0;
      far = far || apart;
    }
  }

  /// The logarithm of the probability of a score of position i.
  double of(float score, size_t i) const {
    return (static_cast<double>(score) - first[i]) - rest[i];
  }
  /// The same of a row.
  void of_row(const float* x, int64_t count, float* y) const {
    loops()->subtract(x, count, first.data(), y);
    if (far) loops()->subtract(y, count, rest.data(), y);
  }
};

}  // namespace halfnote::cpu::planes
