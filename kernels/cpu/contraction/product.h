// The reference product of two row-major matrices: tiles of 4 rows by 128 columns, each element
// summed over k in order. A tile's sums do not depend on how rows are spread over threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

namespace halfnote::cpu {

inline constexpr int64_t kTileRows = 4;
inline constexpr int64_t kTileColumns = 128;

/// Rows [begin, end) of A·B, where A is (m, k) and B is (k, n). Calls `emit(row, column, count,
/// sums)` for each finished piece of a row. Signed integers wrap around.
template <class M, class Emit>
void multiply_rows(const M* a, const M* b, int64_t begin, int64_t end, int64_t n, int64_t k,
                   Emit&& emit) {
  using Tile = std::array<std::array<M, kTileColumns>, kTileRows>;
  for (int64_t column = 0; column < n; column += kTileColumns) {
    const int64_t columns = std::min(kTileColumns, n - column);
    for (int64_t row = begin; row < end; row += kTileRows) {
      const int64_t rows = std::min(kTileRows, end - row);
      Tile sums{};
      for (int64_t i = 0; i < k; ++i) {
        const M* line = b + i * n + column;
        for (int64_t r = 0; r < rows; ++r) {
          const M factor = a[(row + r) * k + i];
          M* sum = sums[static_cast<size_t>(r)].data();
          for (int64_t j = 0; j < columns; ++j) sum[j] += factor * line[j];
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        emit(row + r, column, columns, sums[static_cast<size_t>(r)].data());
      }
    }
  }
}

}  // namespace halfnote::cpu
