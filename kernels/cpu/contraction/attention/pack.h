// Operands of blockwise attention as its products want them (tile_math.h): of E, float or
// BFloat16.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/cpu/contraction/attention/tile_math.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu::attention {

inline constexpr int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }
/// Columns of a packed operand of `columns`: whole vectors.
inline int64_t panel_width(int64_t columns) { return round_up(std::min(columns, kPanel), kVector); }

/// B (k, width) with the term i of column j at from[i·ld + j] for i < terms, j < columns; the rest
/// is 0. `k` is terms, of bf16 the next even number.
template <class E>
void pack_rows(const E* from, int64_t ld, int64_t terms, int64_t columns, int64_t width, E* to) {
  constexpr int64_t kPair = sizeof(float) / sizeof(E);
  for (int64_t i = 0; i < terms; i += kPair) {
    E* line = to + i * width;
    if constexpr (kPair == 1) {
      std::copy_n(from + i * ld, columns, line);
      std::fill(line + columns, line + width, E{});
    } else {
      const E* low = from + i * ld;
      const bool whole = i + 1 < terms;
      for (int64_t j = 0; j < columns; ++j) {
        const uint32_t high = whole ? uint32_t{low[ld + j].bits} << 16 : 0;
        const uint32_t word = high | low[j].bits;
        std::memcpy(static_cast<void*>(line + 2 * j), &word, sizeof word);
      }
      std::fill(line + 2 * columns, line + 2 * width, E{});
    }
  }
}

/// The same with the term i of column j at from[j·ld + i].
template <class E>
void pack_columns(const E* from, int64_t ld, int64_t terms, int64_t columns, int64_t width, E* to) {
  constexpr int64_t kPair = sizeof(float) / sizeof(E);
  const int64_t k = round_up(terms, kPair);
  if (columns < width || k > terms) std::fill_n(to, k * width, E{});
  if (k == terms && ld % kPair == 0) {  // words of 32 bits
    tile_math().transpose(reinterpret_cast<const float*>(from), ld / kPair, columns, k / kPair,
                          reinterpret_cast<float*>(to), width);
    return;
  }
  for (int64_t first = 0; first < columns; first += kVector) {
    const int64_t last = std::min(columns, first + kVector);
    for (int64_t i = 0; i + kPair <= terms; i += kPair) {
      for (int64_t j = first; j < last; ++j)
        std::memcpy(static_cast<void*>(to + i * width + j * kPair), from + j * ld + i,
                    sizeof(float));
    }
  }
  if (k == terms) return;
  for (int64_t j = 0; j < columns; ++j)
    to[(k - kPair) * width + j * kPair] = from[j * ld + k - kPair];
}

/// to[j·ld + i] = from[i·from_ld + j] for i < rows, j < columns; elements of a line of `to` from
/// `rows` on are 0 as far as ld.
template <class E>
void transpose(const E* from, int64_t from_ld, int64_t rows, int64_t columns, E* to, int64_t ld) {
  if constexpr (sizeof(E) == sizeof(float)) {
    tile_math().transpose(from, from_ld, rows, columns, to, ld);
  } else {
    constexpr int64_t kBlock = 16;
    for (int64_t first = 0; first < rows; first += kBlock) {
      const int64_t last = std::min(rows, first + kBlock);
      for (int64_t j = 0; j < columns; ++j) {
        for (int64_t i = first; i < last; ++i) to[j * ld + i] = from[i * from_ld + j];
      }
    }
  }
  for (int64_t j = 0; j < columns; ++j) std::fill(to + j * ld + rows, to + (j + 1) * ld, E{});
}

}  // namespace halfnote::cpu::attention
