// What a generated kernel is given. Compiled by nvcc, by NVRTC and for the host.
#pragma once

#include "kernels/cuda/strided.h"

namespace halfnote::chain {

inline constexpr int kMaxInputs = 12;
inline constexpr int kMaxOutputs = 32;
/// Threads of a block, a power of two.
inline constexpr int kThreads = 256, kThreadBits = 8;
static_assert(1 << kThreadBits == kThreads);

struct Arguments {
  const void* in[kMaxInputs] = {};
  void* out[kMaxOutputs] = {};
  /// Elements of an output.
  int64_t count = 0;
  /// The elements as a matrix whose columns are summed, `block_rows` rows at a time, into partial
  /// sums (blocks, columns); no columns where there is no sum.
  int64_t rows = 0, columns = 0, block_rows = 1, blocks = 0;
  /// Or whose rows are summed, by 2^row_bits threads each (up to 32, or kThreads), `piece` elements
  /// of a row at a time, into partial sums (blocks, rows) if there are several.
  int64_t piece = 0;
  int row_bits = 0;
  double* partials = nullptr;
  /// How many times as many elements as an access of 16 bytes holds are computed at once; the rest
  /// goes one by one. 0 where an address is not aligned.
  int64_t groups = 0;
  /// Of the inputs that broadcast, in their order.
  Strided<kMaxInputs> walk;
};

}  // namespace halfnote::chain
