// Attention without the matrix of probabilities: for a block of queries the keys pass by in tiles,
// with a running maximum and sum (M. Milakov, N. Gimelshein: Online normalizer calculation for
// softmax, 2018; T. Dao et al.: FlashAttention, 2022). f32 throughout; operands of bf16 are
// multiplied as they are where the CPU can, the probabilities rounded to bf16 before P·V as the
// graph has it. Tiles in which a causal mask hides everything are skipped. Each block of queries is
// computed by one thread: the same bits on any number of them.
#include <limits>

#include "kernels/cpu/contraction/attention/fast.h"

namespace halfnote::cpu::attention {

std::string fast_refusal(const AttentionPlan& plan) {
  if (plan.dtype == DType::kF64) return "elements of type f64";
  if (plan.batches * plan.m * plan.n * plan.d * plan.e == 0) return "a tensor without elements";
  if (!(plan.attributes.scale > 0)) return "a scale that is not positive";
  for (const Term& term : plan.terms) {
    if (term.dtype == DType::kF64) return "a term of type f64";
  }
  return {};
}

namespace {

template <class E>
struct Forward {
  AttentionPlan plan;
  Source<E> q, k, v;
  KeyPanels<E> key_panels, value_panels;
  // In a slot.
  size_t scores = 0, rounded = 0, sums_of_y = 0, most = 0, sums = 0, factors = 0, keep = 0;
  size_t slot_bytes = 0;
  int slots = 1;
  int64_t parts = 1;  // tasks that share the queries of a batch
  DType result = DType::kUndefined;
  bool has_sums = false;

  int64_t y_width() const { return round_up(plan.e, kVector); }
  void run(const KernelBuffers& buffers) const;
  void query_block(const KernelBuffers& buffers, std::byte* slot, const E* queries, TilePlace place,
                   Ahead& ahead) const;
  /// Two a panel of keys and block of queries.
  int64_t calls_of_ahead() const {
    const int64_t blocks = (plan.m + kQueries * parts - 1) / (kQueries * parts);
    return blocks * ((plan.n + kPanel - 1) / kPanel) * (plan.attributes.causal ? 1 : 2);
  }
  void finish(const KernelBuffers& buffers, std::byte* slot, const TilePlace& place,
              int64_t rows) const;
  /// Y of a row whose probabilities are NaN.
  float value_of_nan(const KernelBuffers& buffers, const TilePlace& place, int64_t row) const;
};

template <class E>
Forward<E> make_forward(const KernelCall& call, const AttentionPlan& plan) {
  WorkspacePlan slot;
  Forward<E> f;
  f.plan = plan;
  f.q = source_of<E>(call, 0, plan.q, Source<E>::Use::kMultiplied, slot);
  f.k = source_of<E>(call, 1, plan.k, Source<E>::Use::kPacked, slot);
  f.v = source_of<E>(call, 2, plan.v, Source<E>::Use::kPacked, slot);
  f.key_panels = KeyPanels<E>(KeyPanels<E>::Terms::kColumns, plan.n, plan.d, slot);
  f.value_panels = KeyPanels<E>(KeyPanels<E>::Terms::kKeys, plan.n, plan.e, slot);
  f.scores = slot.add_elements<float>(kPanels * kQueries * kPanel);
  f.rounded = slot.add_elements<E>(kQueries * kPanel);
  f.sums_of_y = slot.add_elements<float>(kQueries * f.y_width());
  f.most = slot.add_elements<float>(kQueries);
  f.sums = slot.add_elements<float>(kQueries * kVector);
  f.factors = slot.add_elements<float>(kQueries);
  if (plan.dropout) f.keep = slot.add_elements<uint64_t>(kPanels * kQueries);
  f.slot_bytes = slot.size();
  const int64_t blocks = (plan.m + kQueries - 1) / kQueries;
  const int64_t share = (plan.threads + plan.batches - 1) / plan.batches;
  f.parts = std::clamp<int64_t>(share, 1, blocks);
  f.slots = static_cast<int>(std::min<int64_t>(plan.threads, plan.batches * f.parts));
  f.result = call.outputs[0].dtype;
  f.has_sums = call.has_output(1) && call.has_output(2);
  return f;
}

template <class E>
void Forward<E>::run(const KernelBuffers& buffers) const {
  const int64_t tasks = plan.batches * parts;
  for_tasks(tasks, slots, slot_bytes, buffers, [&](int64_t task, int64_t next, std::byte* slot) {
    TilePlace place{task / parts, 0, 0};
    Ahead ahead(calls_of_ahead());
    ahead.add(buffers.outputs[0], result, plan.y, place.batch);
    for (const Source<E>* source : {&q, &k, &v}) {
      if (next < tasks && next / parts != place.batch) source->fetch(buffers, next / parts, ahead);
    }
    key_panels.pack(k.read(buffers, place.batch, slot), k.ld(), plan.attributes.trans_k, slot);
    value_panels.pack(v.read(buffers, place.batch, slot), v.ld(), false, slot);
    const E* queries = q.read(buffers, place.batch, slot);
    for (int64_t block = task % parts; block * kQueries < plan.m; block += parts) {
      place.query = block * kQueries;
      query_block(buffers, slot, queries, place, ahead);
    }
  });
}

template <class E>
void Forward<E>::query_block(const KernelBuffers& buffers, std::byte* slot, const E* queries,
                             TilePlace place, Ahead& ahead) const {
  const auto floats = [slot](size_t at) { return reinterpret_cast<float*>(slot + at); };
  const int64_t rows = std::min(kQueries, plan.m - place.query);
  const TileMath& math = tile_math();
  std::fill_n(floats(most), rows, -std::numeric_limits<float>::infinity());
  std::fill_n(floats(sums), rows * kVector, 0.0f);
  bool first = true;
  for (; place.key < plan.n; place.key += kPanels * kPanel) {
    if (plan.attributes.causal && place.key >= place.query + rows) break;
    const ScoreTile tile = tile_of(plan, place.key, rows, floats(scores));
    for (int64_t p = 0; p < tile.panels; ++p) {
      multiply(queries + place.query * q.ld(), q.ld(),
               key_panels.panel(slot, place.key + p * kPanel), tile.widths[p], rows, plan.d,
               tile.panel(p), kPanel, false);
      ahead.some();
    }
    const float scale = apply_terms(plan, buffers, place, tile);
    uint64_t* const bits = plan.dropout ? reinterpret_cast<uint64_t*>(slot + keep) : nullptr;
    if (plan.dropout) draw_tile(plan, plan.dropout->stream(buffers), place, tile, bits);
    math.soften(tile, scale, floats(most), floats(sums), floats(factors), bits);
    if (!first) math.shrink(floats(sums_of_y), y_width(), rows, y_width(), floats(factors));
    for (int64_t p = 0; p < tile.panels; ++p, first = false) {
      const E* weights = nullptr;
      if constexpr (sizeof(E) == sizeof(float)) {
        weights = tile.panel(p);
      } else {
        E* to = reinterpret_cast<E*>(slot + rounded);
        math.round_rows(tile.panel(p), rows, tile.widths[p], to);
        weights = to;
      }
      value_panels.multiply_keys(weights, slot, place.key + p * kPanel, rows, floats(sums_of_y),
                                 y_width(), !first);
      ahead.some();
    }
  }
  finish(buffers, slot, place, rows);
}

template <class E>
float Forward<E>::value_of_nan(const KernelBuffers& buffers, const TilePlace& place,
                               int64_t row) const {
  if (plan.attributes.nan_is_zero) return 0;
  bool kept = !plan.dropout;
  for (int64_t key = 0; key < plan.n && !kept; ++key) {
    uint64_t bits = 0;
    keep_bits(plan.dropout->stream(buffers), plan.element(place.batch, place.query + row, key), 1,
              &bits);
    kept = (bits & 1) != 0;
  }
  return kept ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
}

template <class E>
void Forward<E>::finish(const KernelBuffers& buffers, std::byte* slot, const TilePlace& place,
                        int64_t rows) const {
  const auto floats = [slot](size_t at) { return reinterpret_cast<float*>(slot + at); };
  for (int64_t row = 0; row < rows; ++row) {
    double sum = 0;
    for (int64_t i = 0; i < kVector; ++i)
      sum += static_cast<double>(floats(sums)[row * kVector + i]);
    const int64_t at = place.batch * plan.m + place.query + row;
    // A row without a score above −inf has no softmax: 0/0.
    const bool nan = !(sum > 0);
    if (nan) sum = std::numeric_limits<double>::quiet_NaN();
    float* y = floats(sums_of_y) + row * y_width();
    if (nan) {
      std::fill_n(y, plan.e, value_of_nan(buffers, place, row));
    } else {
      const double kept = plan.dropout ? static_cast<double>(plan.dropout->factor) : 1;
      const auto factor = static_cast<float>(kept / sum);
      for (int64_t e = 0; e < plan.e; ++e) y[e] *= factor;
    }
    store_reals(y, plan.e, result, buffers.outputs[0], plan.y.at(place.batch, place.query + row));
    if (has_sums) {
      buffers.out<float>(1)[at] = floats(most)[row];
      buffers.out<float>(2)[at] = static_cast<float>(sum);
    }
  }
}

template <class E>
Prepared forward_kernel(const KernelCall& call, const AttentionPlan& plan) {
  const Forward<E> forward = make_forward<E>(call, plan);
  return make_kernel([forward](const KernelBuffers& buffers) { forward.run(buffers); },
                     forward.slot_bytes * static_cast<size_t>(forward.slots));
}

}  // namespace

Prepared prepare_fast(const KernelCall& call) {
  std::string why;
  const AttentionPlan plan = plan_attention(call, false, &why);
  if (!call.has_output(0)) why = "Y is missing";
  if (why.empty()) why = fast_refusal(plan);
  if (!why.empty()) return Prepared::no(why);
  const bool pairs = plan.dtype == DType::kBF16 && tile_math().pair_product != nullptr;
  return pairs ? forward_kernel<BFloat16>(call, plan) : forward_kernel<float>(call, plan);
}

}  // namespace halfnote::cpu::attention
