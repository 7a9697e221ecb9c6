// A matrix product on packed panels: C = alpha·op(A)·op(B) + c, f32 sums, for operands of f32, bf16
// and f16, any of them transposed.
//
// The results are cut into one region a thread, a region into blocks of columns, k into blocks. A
// block of B is packed once and stays in the second-level cache; strips of A, one tile high, are
// read as they are or packed while the strip before them is multiplied. Tiles fetch what is packed,
// read and written next. Each result is summed over k in order, whatever the region it falls in, so
// the bits do not depend on the number of threads.
#pragma once

#include <vector>

#include "kernels/cpu/tiled/loops.h"

namespace halfnote::cpu::tiled {

/// Element (i, l) of A is at i·row_step + l·k_step; likewise of B with column_step. One step of
/// each is 1.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_row_step = 0, a_k_step = 0;
  int64_t b_column_step = 0, b_k_step = 0;
};

/// What is added to the product, and where the result goes: rows of `y_step` elements.
struct ProductResult {
  float alpha = 1;
  const std::byte* c = nullptr;
  DType c_type = DType::kUndefined;
  int64_t c_row = 0, c_column = 0;
  std::byte* y = nullptr;
  DType y_type = DType::kUndefined;
  int64_t y_step = 0;
};

class Product {
 public:
  Product(const ProductShape& shape, DType operands, DType result, const Loops& loops, int threads);
  size_t workspace_bytes() const { return regions_.size() * slot_bytes_; }
  /// Is an element of C read before anything is written where the result's lies, and never again?
  bool reads_c_first() const { return shape_.k <= depth_; }
  void run(const std::byte* a, const std::byte* b, const ProductResult& result,
           std::byte* workspace) const;

 private:
  struct Region {
    int64_t row = 0, rows = 0, column = 0, columns = 0;
  };
  struct Task;  // one region of one run

  ProductShape shape_;
  int64_t element_bytes_;
  bool sums_in_result_;  // f32 results take the sums between two blocks of k
  bool left_in_place_;   // tiles read A as it is stored
  const Loops& loops_;
  int64_t depth_ = 0;          // of a block, in elements
  int64_t block_rows_ = 0;     // rows that share one packed block of B
  int64_t block_columns_ = 0;  // of a packed block of B
  std::vector<Region> regions_;
  size_t slot_bytes_ = 0;  // of a region
};

}  // namespace halfnote::cpu::tiled
