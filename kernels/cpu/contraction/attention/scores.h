// The terms of a tile of scores, and their gradients.
#pragma once

#include "kernels/cpu/contraction/attention/plan.h"
#include "kernels/cpu/contraction/attention/tile_math.h"

namespace halfnote::cpu::attention {

/// Which scores a tile holds: queries from `query` on, keys from `key` on.
struct TilePlace {
  int64_t batch = 0, query = 0, key = 0;
};

/// The keys of panel p of a tile.
inline int64_t panel_keys(const AttentionPlan& plan, int64_t first_key, int64_t p) {
  return std::min(kPanel, plan.n - first_key - p * kPanel);
}
/// A tile of `rows` queries from key `key` on, over `scores`.
ScoreTile tile_of(const AttentionPlan& plan, int64_t key, int64_t rows, float* scores);

/// Applies terms and causal mask to products of queries and keys, and hides the columns behind the
/// keys. Gives the scale that is still to be applied: 1 where it had to come before a term.
float apply_terms(const AttentionPlan& plan, const KernelBuffers& buffers, const TilePlace& place,
                  const ScoreTile& tile);

/// The bits of P that the dropout keeps: of query r and panel p at keep[p·kQueries + r].
void draw_tile(const AttentionPlan& plan, const KeepStream& stream, const TilePlace& place,
               const ScoreTile& tile, uint64_t* keep);

/// dS through the terms, backwards: 0 where a term hid the score; added to the gradient of the
/// differentiated term.
void differentiate_terms(const AttentionPlan& plan, const KernelBuffers& buffers,
                         const TilePlace& place, const ScoreTile& slopes);

}  // namespace halfnote::cpu::attention
