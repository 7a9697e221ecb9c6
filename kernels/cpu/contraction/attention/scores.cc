#include "kernels/cpu/contraction/attention/scores.h"

#include <limits>

#include "kernels/cpu/contraction/attention/pack.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu::attention {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

/// A piece of a row of scores: elements [0, count) belong to keys from `key` on.
struct Piece {
  float* scores = nullptr;
  int64_t query = 0, key = 0, count = 0;
};

int64_t index_in(const Term& term, int64_t batch, const Piece& piece) {
  return term.starts[static_cast<size_t>(batch)] + piece.query * term.row + piece.key * term.column;
}

const bool* mask_of(const Term& term, const KernelBuffers& buffers, int64_t batch,
                    const Piece& piece) {
  return reinterpret_cast<const bool*>(buffers.inputs[term.input]) + index_in(term, batch, piece);
}

void hide(const Term& term, const bool* mask, float scale, const Piece& piece) {
  for (int64_t j = 0; j < piece.count; ++j) {
    const float kept = piece.scores[j] * scale;
    piece.scores[j] = mask[j * term.column] ? kept : term.hidden;
  }
}

void add(const Term& term, const KernelBuffers& buffers, int64_t batch, float scale,
         const Piece& piece) {
  std::array<float, kPanel> room;
  const std::byte* from = buffers.inputs[term.input];
  const int64_t at = index_in(term, batch, piece);
  const float* values = room.data();
  if (term.column == 0) {
    load_reals(from, term.dtype, at, 1, room.data());
    std::fill(room.begin() + 1, room.end(), room[0]);
  } else if (term.dtype == DType::kF32) {
    values = reinterpret_cast<const float*>(from) + at;
  } else {
    load_reals(from, term.dtype, at, piece.count, room.data());
  }
  tile_math().add_term(piece.scores, scale, values, piece.count);
}

/// Calls `body` for the pieces of a tile.
template <class Body>
void for_pieces(const AttentionPlan& plan, const TilePlace& place, const ScoreTile& tile,
                const Body& body) {
  for (int64_t p = 0; p < tile.panels; ++p) {
    const int64_t keys = panel_keys(plan, place.key, p);
    for (int64_t row = 0; row < tile.rows; ++row) {
      body(Piece{tile.panel(p) + row * kPanel, place.query + row, place.key + p * kPanel, keys},
           tile.widths[p]);
    }
  }
}

}  // namespace

ScoreTile tile_of(const AttentionPlan& plan, int64_t key, int64_t rows, float* scores) {
  ScoreTile tile{scores, rows, {}, 0};
  for (int64_t at = key; at < plan.n && tile.panels < kPanels; at += kPanel)
    tile.widths[tile.panels++] = panel_width(plan.n - at);
  return tile;
}

float apply_terms(const AttentionPlan& plan, const KernelBuffers& buffers, const TilePlace& place,
                  const ScoreTile& tile) {
  const int64_t last = tile.panels - 1, last_key = place.key + last * kPanel;
  const bool ragged = plan.n - last_key < tile.widths[last];
  const bool causal = plan.attributes.causal && last_key + kPanel > place.query + 1;
  if (plan.terms.empty() && !ragged && !causal) return plan.attributes.scale;
  for_pieces(plan, place, tile, [&](const Piece& piece, int64_t width) {
    float scale = plan.attributes.scale;
    for (const Term& term : plan.terms) {
      if (term.hides()) {
        hide(term, mask_of(term, buffers, place.batch, piece), scale, piece);
      } else {
        add(term, buffers, place.batch, scale, piece);
      }
      scale = 1;
    }
    const int64_t seen = plan.attributes.causal
                             ? std::clamp<int64_t>(piece.query + 1 - piece.key, 0, piece.count)
                             : piece.count;
    std::fill(piece.scores + seen, piece.scores + width, kNone);
  });
  return plan.terms.empty() ? plan.attributes.scale : 1;
}

void draw_tile(const AttentionPlan& plan, const KeepStream& stream, const TilePlace& place,
               const ScoreTile& tile, uint64_t* keep) {
  static_assert(kPanel == 64);
  for (int64_t row = 0; row < tile.rows; ++row) {
    std::array<uint64_t, kPanels> bits;
    keep_bits(stream, plan.element(place.batch, place.query + row, place.key), tile.panels,
              bits.data());
    for (int64_t p = 0; p < tile.panels; ++p)
      keep[p * kQueries + row] = bits[static_cast<size_t>(p)];
  }
}

void differentiate_terms(const AttentionPlan& plan, const KernelBuffers& buffers,
                         const TilePlace& place, const ScoreTile& slopes) {
  const auto hides = [](const Term& term) { return term.hides(); };
  if (plan.differentiated() == nullptr && std::ranges::none_of(plan.terms, hides)) return;
  for_pieces(plan, place, slopes, [&](const Piece& piece, int64_t) {
    for (size_t t = plan.terms.size(); t-- > 0;) {
      const Term& term = plan.terms[t];
      if (term.hides()) {
        const bool* mask = mask_of(term, buffers, place.batch, piece);
        for (int64_t j = 0; j < piece.count; ++j)
          piece.scores[j] = mask[j * term.column] ? piece.scores[j] : 0.0f;
      }
      if (term.gradient == 0) continue;
      float* to = buffers.out<float>(term.gradient) + index_in(term, place.batch, piece);
      for (int64_t j = 0; j < piece.count; ++j) to[j] += piece.scores[j];
    }
  });
}

}  // namespace halfnote::cpu::attention
