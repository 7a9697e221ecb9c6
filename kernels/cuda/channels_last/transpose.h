// Transpositions that convert, add and fill on the way: of what a convolution or a Cast reads in
// one layout and writes in another.
#pragma once

#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// (batches, rows, columns) to (batches, columns, rows), between float types up to f32; plus a bias
/// for each column. Lines of either side may be longer than what is copied: those that are read
/// are skipped over, those that are written get zeros, and so do all batches from `filled` on.
struct Transposition {
  RealPointer from;
  RealOutput to;
  RealPointer bias;
  int64_t batches = 0, rows = 0, columns = 0;
  int64_t from_line = 0, to_line = 0;  // of columns and of rows, with what is added
  int64_t filled = 0;

  __device__ float load(int64_t batch, int64_t row, int64_t column) const {
    if (batch >= filled || row >= rows) return 0;
    return from.load<float>((batch * rows + row) * from_line + column);
  }
};

void transpose(Stream& stream, const Transposition& p);

}  // namespace halfnote::HN_CUDA
