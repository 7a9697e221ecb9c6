// The inner loops of blockwise attention on tiles that stay in the caches: products with a packed
// operand, the running softmax of a tile, and its gradient. Compiled for the baseline, AVX2 and
// AVX-512, and with products of bf16 pairs where the CPU has them.
//
// A packed operand B of a product A·B is (k, width): a row for each of the k terms, at most kPanel
// columns, a whole number of vectors. Of bf16 it is (k / 2, width) pairs: terms 2i and 2i + 1 of a
// column in one word. A tile of scores is kPanels such panels of (kQueries, kPanel), f32.
#pragma once

#include <cstdint>

#include "base/float16.h"

namespace halfnote::cpu::attention {

/// Columns of a panel; a narrower one has a whole number of kVector.
inline constexpr int64_t kPanel = 64, kVector = 16;
/// Rows of a tile, and the panels in it: kPanels·kPanel keys.
inline constexpr int64_t kQueries = 128, kPanels = 2;

/// A tile of scores: rows × (the columns of all panels). Columns behind the keys hold −inf.
struct ScoreTile {
  float* scores = nullptr;  // panel p begins at p·kQueries·kPanel, its rows are kPanel apart
  int64_t rows = 0;
  int64_t widths[kPanels] = {};
  int64_t panels = 0;

  float* panel(int64_t p) const { return scores + p * kQueries * kPanel; }
};

struct TileMath {
  const char* name;

  /// C (rows, width) = A·B, or C + A·B; sums in f32 in the order of k. A has rows `lda` apart.
  void (*product)(const float* a, int64_t lda, const float* b, int64_t width, int64_t rows,
                  int64_t k, float* c, int64_t ldc, bool add);
  /// The same of bf16; k is even. Null where the CPU has no such product.
  void (*pair_product)(const BFloat16* a, int64_t lda, const uint32_t* b, int64_t width,
                       int64_t rows, int64_t k, float* c, int64_t ldc, bool add);

  /// The running softmax: scores s become exp(s·scale − m) with m the largest so far of the row,
  /// which `most` holds; `sums` (kVector partial sums a row) are scaled down and added to, and
  /// `factors` tells by how much earlier results of the row shrink. A row without any score above
  /// −inf keeps m = −inf and zeros. `keep` (null: all; else laid out as draw_tile() does) says
  /// which are left in the tile, while the sums are of all.
  void (*soften)(const ScoreTile& tile, float scale, float* most, float* sums, float* factors,
                 const uint64_t* keep);
  /// Rows of C (rows, width) times their factor.
  void (*shrink)(float* c, int64_t ldc, int64_t rows, int64_t width, const float* factors);
  /// Scores become probabilities p = exp(s·scale − most)/sum, `slopes` (dP, laid out as the
  /// scores) become dS = p·(dP − delta). With `keep` (as above) dP counts `factor` times where it
  /// is kept, else 0, and so does p behind it.
  void (*differentiate)(const ScoreTile& tile, float* slopes, float scale, const float* most,
                        const float* sums, const float* deltas, const uint64_t* keep, float factor);
  /// s = s·scale + term over a piece of a row, and the sum of a·b.
  void (*add_term)(float* s, float scale, const float* term, int64_t n);
  double (*dot)(const float* a, const float* b, int64_t n);
  /// to[j·ld + i] = from[i·from_ld + j] for i < rows, j < columns; only moves words of 32 bits.
  void (*transpose)(const float* from, int64_t from_ld, int64_t rows, int64_t columns, float* to,
                    int64_t ld);

  /// A panel (rows, width) with lines kPanel apart as bf16 rows with lines kPanel apart, and as
  /// pairs of rows (a missing last row counts as 0). Null as pair_product.
  void (*round_rows)(const float* from, int64_t rows, int64_t width, BFloat16* to);
  void (*round_pairs)(const float* from, int64_t rows, int64_t width, uint32_t* to);
};

/// The loops for this CPU.
const TileMath& tile_math();

extern const TileMath kBaselineTiles;
/// Only on x86-64.
extern const TileMath kAvx2Tiles, kAvx512Tiles;
/// Adds the products of bf16 pairs to the loops for AVX-512. Only on x86-64.
void add_pair_loops(TileMath& math);

}  // namespace halfnote::cpu::attention
