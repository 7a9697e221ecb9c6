// AttentionGrad without the matrix of probabilities (T. Dao: FlashAttention-2, 2023). For a tile of
// keys the blocks of queries pass by; with the maximum and the sum of the forward each tile stands
// alone:
//
//   P = exp(Q·Kᵀ·scale − MAX)/SUM    dS = P∘(dY·Vᵀ − δ), δ = rowsum(dY∘Y)
//   dVᵀ += dYᵀ·P    dKᵀ += Qᵀ·dS·scale    dQ += dS·K·scale
//
// With a dropout D of the probabilities dV reads D(P), and dS = P∘(D(dY·Vᵀ) − δ): its bits are
// drawn again, tile by tile.
//
// dK and dV are summed transposed: there P and dS are the packed operand as they lie in the tile.
// Sums are f32 in a fixed order, a batch is computed by one thread: the same bits on any number of
// them. P and dS are rounded to bf16 before bf16 products, as the graph has it.
#include <cmath>

#include "kernels/cpu/contraction/attention/fast.h"

namespace halfnote::cpu::attention {
namespace {

/// A result of all batches: its type, undefined if nobody asks for it.
struct Result {
  DType dtype = DType::kUndefined;
  size_t output = 0;
  RowLayout layout;

  void fetch(const KernelBuffers& buffers, int64_t batch, Ahead& ahead) const {
    if (dtype != DType::kUndefined) ahead.add(buffers.outputs[output], dtype, layout, batch);
  }

  void store(const KernelBuffers& buffers, const float* from, int64_t count, int64_t at) const {
    if (dtype != DType::kUndefined) store_reals(from, count, dtype, buffers.outputs[output], at);
  }
  /// Rows that follow one another at `from`, to a batch's rows from `first` on.
  void store_rows(const KernelBuffers& buffers, const float* from, int64_t rows, int64_t batch,
                  int64_t first) const {
    for (int64_t row = 0; row < rows; ++row)
      store(buffers, from + row * layout.size, layout.size, layout.at(batch, first + row));
  }
};

template <class E>
struct Gradient {
  AttentionPlan plan;
  Source<E> q, k, v, dy;
  KeyPanels<E> scores_of_key, slopes_of_value, queries_of_key;
  // In a slot.
  size_t scores = 0, slopes = 0, rounded = 0, pairs = 0;
  size_t q_columns = 0, dy_columns = 0;  // Qᵀ and dYᵀ
  size_t keep = 0, deltas = 0, lines = 0, dq_sums = 0, dk_sums = 0, dv_sums = 0;
  size_t slot_bytes = 0;
  int slots = 1;
  Result dq, dk, dv;
  int64_t term_size = 0;

  int64_t q_width() const { return round_up(plan.d, kVector); }
  int64_t columns_ld() const { return round_up(plan.m, 2); }
  void run(const KernelBuffers& buffers) const;
  void fetch(const KernelBuffers& buffers, int64_t b, Ahead& ahead) const;
  void batch(const KernelBuffers& buffers, std::byte* slot, int64_t b, Ahead& ahead) const;
  /// Four a panel of keys and block of queries.
  int64_t calls_of_ahead() const {
    const int64_t tiles = (plan.n + kPanel - 1) / kPanel * ((plan.m + kQueries - 1) / kQueries);
    return tiles * (plan.attributes.causal ? 2 : 4);
  }
  void find_deltas(const KernelBuffers& buffers, std::byte* slot, int64_t b) const;
  void tile(const KernelBuffers& buffers, std::byte* slot, const TilePlace& place, const E* queries,
            const E* grads, bool first, Ahead& ahead) const;
  void add_products(std::byte* slot, const TilePlace& place, const ScoreTile& weights,
                    const ScoreTile& tile_slopes, bool first, Ahead& ahead) const;
  void store_keys(const KernelBuffers& buffers, std::byte* slot, const TilePlace& place) const;
  void store_queries(const KernelBuffers& buffers, std::byte* slot, int64_t b) const;
};

float* floats(std::byte* slot, size_t at) { return reinterpret_cast<float*>(slot + at); }

/// The gradient of an operand (Q, K, V) of the plan.
Result result_of(const KernelCall& call, const AttentionPlan& plan, size_t operand) {
  const RowLayout* layouts[] = {&plan.q, &plan.k, &plan.v};
  const size_t output = plan.gradient_of(operand);
  return {call.has_output(output) ? call.outputs[output].dtype : DType::kUndefined, output,
          *layouts[operand]};
}

template <class E>
Gradient<E> make_gradient(const KernelCall& call, const AttentionPlan& plan) {
  using Terms = typename KeyPanels<E>::Terms;
  WorkspacePlan slot;
  Gradient<E> g;
  g.plan = plan;
  g.q = source_of<E>(call, kGradQ, plan.q, Source<E>::Use::kMultiplied, slot);
  g.k = source_of<E>(call, kGradK, plan.k, Source<E>::Use::kPacked, slot);
  g.v = source_of<E>(call, kGradV, plan.v, Source<E>::Use::kPacked, slot);
  g.dy = source_of<E>(call, kGradY, plan.y, Source<E>::Use::kMultiplied, slot);
  g.scores_of_key = KeyPanels<E>(Terms::kColumns, plan.n, plan.d, slot);
  g.slopes_of_value = KeyPanels<E>(Terms::kColumns, plan.n, plan.e, slot);
  g.queries_of_key = KeyPanels<E>(Terms::kKeys, plan.n, plan.d, slot);
  g.scores = slot.add_elements<float>(kPanels * kQueries * kPanel);
  g.slopes = slot.add_elements<float>(kPanels * kQueries * kPanel);
  g.rounded = slot.add_elements<E>(kQueries * kPanel);
  g.pairs = slot.add_elements<E>(kQueries * kPanel);
  g.q_columns = slot.add_elements<E>(plan.d * g.columns_ld());
  g.dy_columns = slot.add_elements<E>(plan.e * g.columns_ld());
  if (plan.dropout) g.keep = slot.add_elements<uint64_t>(kPanels * kQueries);
  g.deltas = slot.add_elements<float>(plan.m);
  g.lines = slot.add_elements<float>(std::max(2 * plan.e, kPanel * std::max(plan.d, plan.e)));
  g.dq_sums = slot.add_elements<float>(plan.m * g.q_width());
  g.dk_sums = slot.add_elements<float>(kPanels * plan.d * kPanel);
  g.dv_sums = slot.add_elements<float>(kPanels * plan.e * kPanel);
  g.slot_bytes = slot.size();
  const auto groups = static_cast<int64_t>(plan.groups.size());
  g.slots = static_cast<int>(std::min<int64_t>(plan.threads, groups));
  g.dq = result_of(call, plan, 0);
  g.dk = result_of(call, plan, 1);
  g.dv = result_of(call, plan, 2);
  if (const Term* term = plan.differentiated()) g.term_size = call.outputs[term->gradient].size();
  return g;
}

template <class E>
void Gradient<E>::run(const KernelBuffers& buffers) const {
  if (const Term* term = plan.differentiated())
    std::fill_n(buffers.out<float>(term->gradient), term_size, 0.0f);
  const auto groups = static_cast<int64_t>(plan.groups.size());
  for_tasks(groups, slots, slot_bytes, buffers, [&](int64_t group, int64_t next, std::byte* slot) {
    const std::vector<int64_t>& members = plan.groups[static_cast<size_t>(group)];
    for (size_t i = 0; i < members.size(); ++i) {
      Ahead ahead(calls_of_ahead());
      for (const Result* made : {&dv, &dk, &dq}) made->fetch(buffers, members[i], ahead);
      const bool last = i + 1 == members.size();
      if (!last) fetch(buffers, members[i + 1], ahead);
      if (last && next < groups) fetch(buffers, plan.groups[static_cast<size_t>(next)][0], ahead);
      batch(buffers, slot, members[i], ahead);
    }
  });
}

template <class E>
void Gradient<E>::fetch(const KernelBuffers& buffers, int64_t b, Ahead& ahead) const {
  for (const Source<E>* source : {&k, &q, &dy, &v}) source->fetch(buffers, b, ahead);
  ahead.add(buffers.inputs[kGradResult], plan.dtype, plan.y, b);
}

template <class E>
void Gradient<E>::batch(const KernelBuffers& buffers, std::byte* slot, int64_t b,
                        Ahead& ahead) const {
  const bool trans_k = plan.attributes.trans_k;
  const E *keys = k.read(buffers, b, slot), *queries = q.read(buffers, b, slot),
          *grads = dy.read(buffers, b, slot);
  scores_of_key.pack(keys, k.ld(), trans_k, slot);
  queries_of_key.pack(keys, k.ld(), trans_k, slot);
  slopes_of_value.pack(v.read(buffers, b, slot), v.ld(), false, slot);
  const auto elements = [slot](size_t at) { return reinterpret_cast<E*>(slot + at); };
  transpose(queries, q.ld(), plan.m, plan.d, elements(q_columns), columns_ld());
  transpose(grads, dy.ld(), plan.m, plan.e, elements(dy_columns), columns_ld());
  find_deltas(buffers, slot, b);
  std::fill_n(floats(slot, dq_sums), plan.m * q_width(), 0.0f);
  TilePlace place{b, 0, 0};
  for (; place.key < plan.n; place.key += kPanels * kPanel) {
    const int64_t first = plan.attributes.causal ? place.key / kQueries * kQueries : 0;
    if (first >= plan.m) {
      std::fill_n(floats(slot, dk_sums), kPanels * plan.d * kPanel, 0.0f);
      std::fill_n(floats(slot, dv_sums), kPanels * plan.e * kPanel, 0.0f);
    }
    for (place.query = first; place.query < plan.m; place.query += kQueries)
      tile(buffers, slot, place, queries, grads, place.query == first, ahead);
    store_keys(buffers, slot, place);
  }
  store_queries(buffers, slot, b);
}

template <class E>
void Gradient<E>::find_deltas(const KernelBuffers& buffers, std::byte* slot, int64_t b) const {
  float *grad = floats(slot, lines), *result = grad + plan.e;
  for (int64_t row = 0; row < plan.m; ++row) {
    const int64_t at = plan.y.at(b, row);
    load_reals(buffers.inputs[kGradY], plan.dtype, at, plan.e, grad);
    load_reals(buffers.inputs[kGradResult], plan.dtype, at, plan.e, result);
    floats(slot, deltas)[row] = static_cast<float>(tile_math().dot(grad, result, plan.e));
  }
}

/// P that is NaN counts as 0 in dV; dS keeps it.
void drop_nan(const ScoreTile& tile) {
  for (int64_t p = 0; p < tile.panels; ++p) {
    float* panel = tile.panel(p);
    for (int64_t i = 0; i < tile.rows * kPanel; ++i)
      panel[i] = std::isnan(panel[i]) ? 0.0f : panel[i];
  }
}

/// Keys behind the last have no slopes: the 0/0 of a query that sees no key would spread to the key
/// that they are multiplied in a pair with.
void clear_padding(const ScoreTile& tile, int64_t keys) {
  for (int64_t p = 0; p < tile.panels; ++p) {
    const int64_t there = std::clamp<int64_t>(keys - p * kPanel, 0, tile.widths[p]);
    if (there == tile.widths[p]) continue;
    for (int64_t row = 0; row < tile.rows; ++row)
      std::fill(tile.panel(p) + row * kPanel + there, tile.panel(p) + row * kPanel + tile.widths[p],
                0.0f);
  }
}

template <class E>
void Gradient<E>::tile(const KernelBuffers& buffers, std::byte* slot, const TilePlace& place,
                       const E* queries, const E* grads, bool first, Ahead& ahead) const {
  const int64_t rows = std::min(kQueries, plan.m - place.query);
  const ScoreTile weights = tile_of(plan, place.key, rows, floats(slot, scores));
  const ScoreTile tile_slopes = tile_of(plan, place.key, rows, floats(slot, slopes));
  for (int64_t p = 0; p < weights.panels; ++p) {
    const int64_t key = place.key + p * kPanel;
    multiply(queries + place.query * q.ld(), q.ld(), scores_of_key.panel(slot, key),
             weights.widths[p], rows, plan.d, weights.panel(p), kPanel, false);
    ahead.some();
    multiply(grads + place.query * dy.ld(), dy.ld(), slopes_of_value.panel(slot, key),
             weights.widths[p], rows, plan.e, tile_slopes.panel(p), kPanel, false);
  }
  const float scale = apply_terms(plan, buffers, place, weights);
  const int64_t row = place.batch * plan.m + place.query;
  uint64_t* const bits = plan.dropout ? reinterpret_cast<uint64_t*>(slot + keep) : nullptr;
  if (plan.dropout) draw_tile(plan, plan.dropout->stream(buffers), place, weights, bits);
  tile_math().differentiate(weights, tile_slopes.scores, scale, buffers.in<float>(kGradMost) + row,
                            buffers.in<float>(kGradSum) + row, floats(slot, deltas) + place.query,
                            bits, plan.dropout ? plan.dropout->factor : 1);
  if (plan.attributes.nan_is_zero) drop_nan(weights);
  differentiate_terms(plan, buffers, place, tile_slopes);
  clear_padding(tile_slopes, plan.n - place.key);
  add_products(slot, place, weights, tile_slopes, first, ahead);
}

template <class E>
void Gradient<E>::add_products(std::byte* slot, const TilePlace& place, const ScoreTile& weights,
                               const ScoreTile& tile_slopes, bool first, Ahead& ahead) const {
  const auto elements = [slot](size_t at) { return reinterpret_cast<E*>(slot + at); };
  const int64_t rows = weights.rows;
  // P or dS as a packed operand.
  const auto packed = [&](const ScoreTile& from, int64_t p) -> const E* {
    if constexpr (sizeof(E) == sizeof(float)) {
      // Panels have lines kPanel apart; a narrower one is closed up.
      float* panel = from.panel(p);
      for (int64_t row = 1; from.widths[p] < kPanel && row < rows; ++row)
        std::copy_n(panel + row * kPanel, from.widths[p], panel + row * from.widths[p]);
      return panel;
    } else {
      tile_math().round_pairs(from.panel(p), rows, from.widths[p],
                              reinterpret_cast<uint32_t*>(elements(pairs)));
      return elements(pairs);
    }
  };
  for (int64_t p = 0; p < weights.panels; ++p) {
    const int64_t key = place.key + p * kPanel, width = weights.widths[p];
    const E* lines_of_slopes = nullptr;
    if constexpr (sizeof(E) == sizeof(float)) {
      lines_of_slopes = tile_slopes.panel(p);
    } else {
      tile_math().round_rows(tile_slopes.panel(p), rows, width, elements(rounded));
      lines_of_slopes = elements(rounded);
    }
    queries_of_key.multiply_keys(lines_of_slopes, slot, key, rows,
                                 floats(slot, dq_sums) + place.query * q_width(), q_width(), true);
    ahead.some();
    multiply<E>(elements(dy_columns) + place.query, columns_ld(), packed(weights, p), width, plan.e,
                rows, floats(slot, dv_sums) + p * plan.e * kPanel, kPanel, !first);
    ahead.some();
    multiply<E>(elements(q_columns) + place.query, columns_ld(), packed(tile_slopes, p), width,
                plan.d, rows, floats(slot, dk_sums) + p * plan.d * kPanel, kPanel, !first);
    ahead.some();
  }
}

template <class E>
void Gradient<E>::store_keys(const KernelBuffers& buffers, std::byte* slot,
                             const TilePlace& place) const {
  float* by_key = floats(slot, lines);
  for (int64_t p = 0; p < kPanels; ++p) {
    const int64_t key = place.key + p * kPanel, keys = std::min(kPanel, plan.n - key);
    if (keys <= 0) break;
    const float* dv_panel = floats(slot, dv_sums) + p * plan.e * kPanel;
    transpose(dv_panel, kPanel, plan.e, keys, by_key, plan.e);
    dv.store_rows(buffers, by_key, keys, place.batch, key);
    float* dk_panel = floats(slot, dk_sums) + p * plan.d * kPanel;
    for (int64_t i = 0; i < plan.d * kPanel; ++i) dk_panel[i] *= plan.attributes.scale;
    if (plan.attributes.trans_k) {
      for (int64_t d = 0; d < plan.d; ++d)
        dk.store(buffers, dk_panel + d * kPanel, keys, plan.k.at(place.batch, d) + key);
      continue;
    }
    transpose(dk_panel, kPanel, plan.d, keys, by_key, plan.d);
    dk.store_rows(buffers, by_key, keys, place.batch, key);
  }
}

template <class E>
void Gradient<E>::store_queries(const KernelBuffers& buffers, std::byte* slot, int64_t b) const {
  for (int64_t row = 0; row < plan.m; ++row) {
    float* line = floats(slot, dq_sums) + row * q_width();
    for (int64_t i = 0; i < plan.d; ++i) line[i] *= plan.attributes.scale;
    dq.store(buffers, line, plan.d, plan.q.at(b, row));
  }
}

template <class E>
Prepared gradient_kernel(const KernelCall& call, const AttentionPlan& plan) {
  const Gradient<E> gradient = make_gradient<E>(call, plan);
  return make_kernel([gradient](const KernelBuffers& buffers) { gradient.run(buffers); },
                     gradient.slot_bytes * static_cast<size_t>(gradient.slots));
}

}  // namespace

Prepared prepare_fast_gradient(const KernelCall& call) {
  std::string why;
  const AttentionPlan plan = plan_attention(call, true, &why);
  if (why.empty() && plan.k.group > 1) why = "K and V are read by groups of heads";
  if (why.empty()) why = fast_refusal(plan);
  if (!why.empty()) return Prepared::no(why);
  const bool pairs = plan.dtype == DType::kBF16 && tile_math().pair_product != nullptr;
  return pairs ? gradient_kernel<BFloat16>(call, plan) : gradient_kernel<float>(call, plan);
}

}  // namespace halfnote::cpu::attention
