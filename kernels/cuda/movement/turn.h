// Stacks of matrices whose rows become columns, moved bit by bit.
#pragma once

#include <cstdint>

#include "kernels/cuda/cuda.h"
#include "kernels/device.h"

namespace halfnote::HN_CUDA {

struct TurnedMatrices {
  int64_t matrices = 0, rows = 0, columns = 0;  // rows and columns of what is read
};

/// Are tiles worth it: no matrix so narrow that they would be mostly empty, and few enough for a
/// grid?
bool turns_in_tiles(const TurnedMatrices& m);
/// (matrices, rows, columns) to (matrices, columns, rows), elements of 1, 2, 4 or 8 bytes: through
/// tiles in shared memory, both sides by 16 bytes where sizes and addresses allow it.
void turn_matrices(Stream& stream, size_t element_bytes, const TurnedMatrices& m, const void* from,
                   void* to);

}  // namespace halfnote::HN_CUDA
