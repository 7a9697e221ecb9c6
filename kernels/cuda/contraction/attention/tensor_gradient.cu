// dQ by tiles of queries, dK and dV by tiles of keys, without atomics, on tensor cores: for what
// the library has no gradient of. P and the slopes of the scores are rounded to 16 bits before they
// are multiplied, as the library's are.
#include "kernels/cuda/contraction/attention/gradient.h"
#include "kernels/cuda/contraction/attention/tensor_tile.h"

namespace halfnote::HN_CUDA {

namespace {

template <class T>
struct TensorOperands {
  TensorOperand<T> q, k, v, dy;
};

template <class Shape, class T, bool kRowsAreKeys>
struct TensorShared {
  static constexpr int kQueries = kRowsAreKeys ? Shape::kColumns : Shape::kRows;
  static constexpr int kKeys = kRowsAreKeys ? Shape::kRows : Shape::kColumns;

  alignas(16) T rows[2][Shape::kRows * Shape::kLd];
  alignas(16) T columns[2][2][Shape::kColumns * Shape::kLd];  // by turns, as all below
  alignas(16) float scores[Shape::kRows * Shape::kScoreLd];
  QueryLine lines[2][kQueries];
  alignas(16) uint2 kept[2][kQueries];
  alignas(16) KeyLine keys[2][kKeys];

  /// Results in f32 take the place of the rows.
  __device__ float* results() {
    static_assert(sizeof(rows) >= sizeof(float) * Shape::kRows * StoredRows<Shape>::kLd);
    return reinterpret_cast<float*>(&rows);
  }
};

/// The bits of 32 keys of a query, of a block of keys.
struct DrawKeptBits {
  DeviceAttention p;
  uint2* to;
  Divisor rows, blocks;  // kept_rows() and kept_blocks()

  __device__ void operator()(int64_t at) const {
    const int64_t line = at / 2, own = rows.quotient(line), query = line - own * rows.value();
    const int64_t batch = blocks.quotient(own), block = own - batch * blocks.value();
    uint64_t bits = 0;
    if (query < p.m) {
      const auto seed = static_cast<uint64_t>(*p.dropout.seed);
      const auto step = static_cast<uint64_t>(*p.dropout.step);
      const uint64_t first = element_of(p, batch, query, block * kKeptKeys + at % 2 * 32);
      const int before = static_cast<int>(first % 4);  // four elements have one draw
      for (int drawn = 0; drawn < before + 32; drawn += 4) {
        const uint64_t group = first / 4 + static_cast<uint64_t>(drawn / 4);
        bits |= uint64_t{kept_of_four(p.dropout, seed, step, group)} << drawn;
      }
      bits >>= before;
    }
    reinterpret_cast<uint32_t*>(to)[at] = static_cast<uint32_t>(bits);
  }
};

/// The line of each key, behind the last one too.
struct FindKeyLines {
  DeviceAttention p;
  KeyLine* to;
  Divisor keys;  // key_lines()

  __device__ void operator()(int64_t at) const {
    const int64_t batch = keys.quotient(at), key = at - batch * keys.value();
    const ScoresOfBatch<float> of(p, batch);
    KeyLine line;
    HN_UNROLL
    for (int t = 0; t < kMostTerms; ++t) {
      if (t >= p.terms || key >= p.n) break;
      const DeviceTerm& term = p.term[t];
      const int64_t place = of.place(t, 0, key);
      if (term.mask == nullptr) {
        line.addend += term.values.template load<float>(place);
      } else if (!term.mask[place]) {
        line = {0, term.hidden};
      }
    }
    to[at] = line;
  }
};

/// The scores of 64 rows and 32 columns of a batch, and the slopes of Y's weights, become the
/// weights and the slopes of the scores, without the dropout's factor and the scale of their own.
template <class Shape, class T, bool kRowsAreKeys>
struct TensorScores {
  using Shared = TensorShared<Shape, T, kRowsAreKeys>;
  using Numbers = float[Shape::kColumnBlocks][4];
  const DeviceAttention& p;
  bool has_key_lines;
  Shared& shared;
  int64_t batch, row, column;
  int turn;

  __device__ int64_t query() const { return kRowsAreKeys ? column : row; }
  __device__ int64_t key() const { return kRowsAreKeys ? row : column; }
  __device__ const QueryLine& line(int r, int c) const {
    return kRowsAreKeys ? shared.lines[turn][c] : shared.lines[0][r];
  }
  __device__ float factor() const { return p.drops() ? p.dropout.factor : 1.0f; }
  /// P, which may be NaN, as the weight of a value.
  __device__ float weight(float probability, bool kept) const {
    const float weight = kept ? probability : 0.0f;
    return p.nan_is_zero && weight != weight ? 0.0f : weight;
  }
  /// A bit for each key of a query in the tile, from the one that `first` says on.
  __device__ uint32_t kept_from(int query_in_tile, int first) const {
    if (!p.drops()) return ~0u;
    const uint2 both = shared.kept[turn][query_in_tile];
    const bool second = kRowsAreKeys ? first >= 32 : (column & 32) != 0;
    return (second ? both.y : both.x) >> first % 32;
  }

  __device__ void finish(Numbers& scores, Numbers& slopes) const {
    const bool above = p.causal && key() + Shared::kKeys - 1 > query();
    const bool whole = key() + Shared::kKeys <= p.n && query() + Shared::kQueries <= p.m;
    if (p.terms == 0 && whole && !above) {
      finish_by_lines<false>(scores, slopes);
    } else if (p.terms == 0 || has_key_lines) {
      finish_by_lines<true>(scores, slopes);
    } else {
      finish_one_by_one(scores, slopes);
    }
  }

  /// Where the tile ends, and where the causal mask cuts it.
  struct Edges {
    int queries, keys;  // of the tile that there are
    int above;          // key j of query i is hidden if j − i is larger
  };
  __device__ Edges edges() const {
    constexpr int64_t kFar = 64;
    const auto near = [](int64_t n) {
      return static_cast<int>(n < -kFar ? -kFar : n < kFar ? n : kFar);
    };
    return {near(p.m - query()), near(p.n - key()),
            p.causal ? near(query() - key()) : static_cast<int>(kFar)};
  }

  template <bool kEdges>
  __device__ float probability(float product, const QueryLine& own, const Edges& end, int i, int j,
                               const KeyLine& of_key) const {
    if constexpr (!kEdges) {
      return fast_exp2(multiply_add(product, p.scale * kLog2E, -own.scaled)) * own.inverse;
    }
    float score = multiply_add(product * p.scale, of_key.factor, of_key.addend);
    if (of_key.factor == 0) score = of_key.addend;  // whatever the product is
    if (j - i > end.above) score = -INFINITY;
    const bool outside = i >= end.queries || j >= end.keys;
    const float likely = fast_exp2((score - own.most) * kLog2E) * own.inverse;
    return outside ? 0.0f : likely;
  }

  /// All numbers in registers. Outside of kEdges no score is outside, or more than a product.
  template <bool kEdges>
  __device__ void finish_by_lines(Numbers& scores, Numbers& slopes) const {
    const Lane lane;
    const Edges end = edges();
    const float up = factor();
    const int first = lane.warp * 16 + lane.row;
    const uint32_t of_rows[2] = {kRowsAreKeys ? 0 : kept_from(first, lane.column),
                                 kRowsAreKeys ? 0 : kept_from(first + 8, lane.column)};
    HN_UNROLL
    for (int block = 0; block < Shape::kColumnBlocks; ++block) {
      HN_UNROLL
      for (int second = 0; second < 2; ++second) {
        const int c = column_of(lane, block, second);
        const uint32_t of_column = kRowsAreKeys ? kept_from(c, first) : 0;
        HN_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int k = half * 2 + second, r = first + half * 8;
          const QueryLine& own = line(r, c);
          const bool kept = kRowsAreKeys ? (of_column >> half * 8 & 1) != 0
                                         : (of_rows[half] >> (block * 8 + second) & 1) != 0;
          const int i = kRowsAreKeys ? c : r, j = kRowsAreKeys ? r : c;
          const KeyLine of_key = kEdges && has_key_lines ? shared.keys[turn][j] : KeyLine{};
          const float likely = probability<kEdges>(scores[block][k], own, end, i, j, of_key);
          float slope =
              likely * (kept ? multiply_add(slopes[block][k], up, -own.delta) : -own.delta);
          if (of_key.factor == 0) slope = 0;
          slopes[block][k] = slope;
          scores[block][k] = weight(likely, kept);
        }
      }
    }
  }

  /// Where terms differ from query to query: a loop, by way of shared memory, as it is long.
  __device__ void finish_one_by_one(Numbers& scores, Numbers& slopes) const {
    const ScoresOfBatch<float> of(p, batch);
    put_numbers<Shape::kScoreLd>(scores, shared.scores);  // and each lane goes on with its own
    uint32_t kept_bits = 0, fixed_bits = 0;
    HN_IN_TURN
    for (int half = 0; half < 2; ++half) {
      for_half<Shape::kColumnBlocks>(half, [&](int at, int r, int c) {
        float& number = shared.scores[r * Shape::kScoreLd + c];
        const int i = kRowsAreKeys ? c : r, j = kRowsAreKeys ? r : c;
        const bool outside = of.is_outside(query() + i, key() + j);
        const bool fixed = outside || of.is_hidden(0, query() + i, key() + j);
        const QueryLine& own = line(r, c);
        const float score = of.score(number, query() + i, key() + j);
        number = outside ? 0.0f : fast_exp2((score - own.most) * kLog2E) * own.inverse;
        kept_bits |= !outside && (kept_from(i, j) & 1) != 0 ? 1u << at : 0u;
        fixed_bits |= fixed ? 1u << at : 0u;
      });
    }
    const float up = factor();
    for_numbers(scores, [&](float& score, int at, int r, int c) {
      const float likely = shared.scores[r * Shape::kScoreLd + c];
      const bool kept = (kept_bits >> at & 1) != 0, fixed = (fixed_bits >> at & 1) != 0;
      const float delta = line(r, c).delta;
      float& slope = slopes[at / 4][at % 4];
      slope = fixed ? 0.0f : likely * (kept ? multiply_add(slope, up, -delta) : -delta);
      score = weight(likely, kept);
    });
  }
};

/// The columns of a block's turns, of one batch, or of all that read its keys; where the batch
/// begins in both operands.
struct Columns {
  int64_t batch, at, from, end;
  int64_t begin[2];
};

/// What a block multiplies: of its rows, and of its columns. Scores are the products of the first
/// ones, slopes of weights those of the second.
template <class Shape, class T, bool kRowsAreKeys>
struct TensorTurns {
  using Shared = TensorShared<Shape, T, kRowsAreKeys>;
  const DeviceAttention& p;
  const TensorOperands<T>& operands;
  const GradientOperands<float>& in;
  Shared& shared;
  int64_t row;

  __device__ const TensorOperand<T>& of_rows(int i) const {
    if constexpr (kRowsAreKeys) return i == 0 ? operands.k : operands.v;
    return i == 0 ? operands.q : operands.dy;
  }
  __device__ const TensorOperand<T>& of_columns(int i) const {
    if constexpr (kRowsAreKeys) return i == 0 ? operands.q : operands.dy;
    return i == 0 ? operands.k : operands.v;
  }
  __device__ void bring_first(int64_t batch) const {
    for (int i = 0; i < 2; ++i) {
      bring_rows<Shape, Shape::kRows>(of_rows(i), of_rows(i).layout.at(batch, 0), row,
                                      shared.rows[i]);
    }
    if (!kRowsAreKeys) bring_lines(batch, row, shared.lines[0]);
    end_copy_group();
  }
  __device__ void begin(Columns& columns) const {
    for (int i = 0; i < 2; ++i) columns.begin[i] = of_columns(i).layout.at(columns.batch, 0);
  }
  __device__ void advance(Columns& columns) const {
    columns.at += Shape::kColumns;
    if (columns.at < columns.end) return;
    columns.at = columns.from;
    ++columns.batch;
    begin(columns);
  }
  /// Of queries behind the last one P is 0.
  __device__ void bring_lines(int64_t batch, int64_t query, QueryLine* to) const {
    const int at = static_cast<int>(threadIdx.x);
    if (at >= Shared::kQueries) return;
    if (query + at < p.m) {
      copy_ahead(to + at, in.lines + batch * p.m + query + at);
    } else {
      to[at] = {};
    }
  }
  __device__ void bring_kept(int64_t batch, int64_t query, int64_t key, uint2* to) const {
    const int64_t queries = kept_rows(p.m);
    const int at = static_cast<int>(threadIdx.x) * 2;  // 16 bytes
    if (at >= Shared::kQueries || query + at >= queries) return;
    const int64_t block = batch * kept_blocks(p.n) + key / kKeptKeys;
    copy_ahead(to + at, in.kept + block * queries + query + at);
  }
  __device__ void bring_keys(int64_t batch, int64_t key, KeyLine* to) const {
    const int at = static_cast<int>(threadIdx.x) * 2;  // 16 bytes
    if (at < Shared::kKeys) copy_ahead(to + at, in.keys + batch * key_lines(p.n) + key + at);
  }
  /// A barrier has to come before it is read.
  __device__ void bring(const Columns& columns, int turn) const {
    for (int i = 0; i < 2; ++i) {
      bring_rows<Shape, Shape::kColumns>(of_columns(i), columns.begin[i], columns.at,
                                         shared.columns[turn][i]);
    }
    const int64_t query = kRowsAreKeys ? columns.at : row, key = kRowsAreKeys ? row : columns.at;
    if (kRowsAreKeys) bring_lines(columns.batch, query, shared.lines[turn]);
    if (p.drops()) bring_kept(columns.batch, query, key, shared.kept[turn]);
    if (in.keys != nullptr) bring_keys(columns.batch, key, shared.keys[turn]);
    end_copy_group();
  }

  /// `use(weights, slopes, turn)` with the numbers of each turn.
  template <class Use>
  __device__ void for_each(Columns columns, int64_t turns, const Use& use) const {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    begin(columns);
    if (turns > 0) bring(columns, 0);
    for (int64_t t = 0; t < turns; ++t) {
      const int turn = static_cast<int>(t % 2);
      const int64_t batch = columns.batch, at = columns.at;
      wait_for_copies<0>();
      __syncthreads();  // the copies of all are there, and the turn before has been used
      if (t + 1 < turns) {
        advance(columns);
        bring(columns, 1 - turn);
      }
      __syncwarp();
      float scores[Shape::kColumnBlocks][4] = {}, slopes[Shape::kColumnBlocks][4] = {};
      const int first = warp * 16 * Shape::kLd;
      add_scores<Shape>(shared.rows[0] + first, shared.columns[turn][0], p.d, scores);
      add_scores<Shape>(shared.rows[1] + first, shared.columns[turn][1], p.e, slopes);
      const TensorScores<Shape, T, kRowsAreKeys> tile{
          p, in.keys != nullptr, shared, batch, row, at, turn};
      tile.finish(scores, slopes);
      __syncwarp();
      use(scores, slopes, turn);
    }
    wait_for_copies<0>();
    __syncthreads();  // the rows give way to results
  }
};

template <int kBlocks>
__device__ void scale_sums(float (&sums)[kBlocks][4], float scale) {
  for_numbers(sums, [&](float& sum, int, int, int) { sum *= scale; });
}

template <class T, int kSize>
__global__ void __launch_bounds__(TensorShape<kSize>::kThreads, TensorShape<kSize>::kBlocks)
    tensor_gradient_of_queries(const __grid_constant__ DeviceAttention p,
                               const __grid_constant__ TensorOperands<T> operands,
                               const __grid_constant__ GradientOperands<float> in, RealOutput dq) {
  using Shape = TensorShape<kSize>;
  using Shared = TensorShared<Shape, T, false>;
  HN_DYNAMIC_SHARED(Shared, shared);
  // The last tiles first: with a causal mask they have the most keys.
  const int64_t tiles = (p.m + Shape::kRows - 1) / Shape::kRows, batch = blockIdx.x / tiles;
  const int64_t query = (tiles - 1 - blockIdx.x % tiles) * Shape::kRows;
  const TensorTurns<Shape, T, false> turns{p, operands, in, *shared, query};
  float sums[Shape::kSizeBlocks][4] = {};
  turns.bring_first(batch);
  const int64_t seen = p.causal && query + Shape::kRows < p.n ? query + Shape::kRows : p.n;
  turns.for_each({batch, 0, 0, seen, {}}, (seen + Shape::kColumns - 1) / Shape::kColumns,
                 [&](const auto&, const auto& slopes, int turn) {
                   add_rows_by<Shape>(slopes, shared->columns[turn][0], p.d, sums);
                 });
  scale_sums(sums, p.scale);
  store_rows<StoredRows<Shape>>(sums, shared->results(), p.q, batch, query, dq);
}

template <class T, int kSize>
__global__ void __launch_bounds__(TensorShape<kSize>::kThreads, TensorShape<kSize>::kBlocks)
    tensor_gradient_of_keys(const __grid_constant__ DeviceAttention p,
                            const __grid_constant__ TensorOperands<T> operands,
                            const __grid_constant__ GradientOperands<float> in, RealOutput dk,
                            RealOutput dv) {
  using Shape = TensorShape<kSize>;
  using Shared = TensorShared<Shape, T, true>;
  HN_DYNAMIC_SHARED(Shared, shared);
  const int64_t tiles = (p.n + Shape::kRows - 1) / Shape::kRows;
  const int64_t first = blockIdx.x / tiles * p.k.group, key = blockIdx.x % tiles * Shape::kRows;
  const TensorTurns<Shape, T, true> turns{p, operands, in, *shared, key};
  float of_k[Shape::kSizeBlocks][4] = {}, of_v[Shape::kSizeBlocks][4] = {};
  turns.bring_first(first);
  const int64_t from = p.causal ? key : 0;
  const int64_t of_batch = from < p.m ? (p.m - from + Shape::kColumns - 1) / Shape::kColumns : 0;
  turns.for_each({first, from, from, p.m, {}}, of_batch * p.k.group,  // of all that read these keys
                 [&](const auto& weights, const auto& slopes, int turn) {
                   add_rows_by<Shape>(weights, shared->columns[turn][1], p.e, of_v);
                   add_rows_by<Shape>(slopes, shared->columns[turn][0], p.d, of_k);
                 });
  float* results = shared->results();
  if (dv.data != nullptr) {
    scale_sums(of_v, p.drops() ? p.dropout.factor : 1.0f);
    store_rows<StoredRows<Shape>>(of_v, results, p.v, first, key, dv);
    __syncwarp();
  }
  if (dk.data == nullptr) return;
  scale_sums(of_k, p.scale);
  if (p.trans_k) {
    store_columns<StoredRows<Shape>>(of_k, results, p.k, first, key, dk);
  } else {
    store_rows<StoredRows<Shape>>(of_k, results, p.k, first, key, dk);
  }
}

template <class T>
TensorOperand<T> operand_of(const Elements& elements, const RowLayout& layout, bool turned) {
  TensorOperand<T> operand{static_cast<const T*>(elements.data), layout, turned, false};
  operand.by_packs = !turned && layout.size % 8 == 0 && are_aligned<1>({elements.data});
  return operand;
}

template <class T, int kSize>
void run_tensor_gradients(Stream& stream, const DeviceAttention& p,
                          const GradientOperands<float>& in, const RealOutput& dq,
                          const RealOutput& dk, const RealOutput& dv) {
  using Shape = TensorShape<kSize>;
  const TensorOperands<T> operands = {
      operand_of<T>(in.q, p.q, false), operand_of<T>(in.k, p.k, p.trans_k),
      operand_of<T>(in.v, p.v, false), operand_of<T>(in.dy, p.y, false)};
  const auto blocks = [](int64_t batches, int64_t rows) {
    return static_cast<unsigned>(batches * ((rows + Shape::kRows - 1) / Shape::kRows));
  };
  if (dq.data != nullptr) {
    launch(stream, tensor_gradient_of_queries<T, kSize>, blocks(p.batches, p.m), Shape::kThreads,
           sizeof(TensorShared<Shape, T, false>), p, operands, in, dq);
  }
  if (dk.data == nullptr && dv.data == nullptr) return;
  launch(stream, tensor_gradient_of_keys<T, kSize>, blocks(p.batches / p.k.group, p.n),
         Shape::kThreads, sizeof(TensorShared<Shape, T, true>), p, operands, in, dk, dv);
}

}  // namespace

void tensor_gradients(Stream& stream, const DeviceAttention& p, const GradientOperands<float>& in,
                      const RealOutput& dq, const RealOutput& dk, const RealOutput& dv) {
  if (in.kept != nullptr) {
    const int64_t rows = kept_rows(p.m), blocks = kept_blocks(p.n);
    for_each(stream, p.batches * blocks * rows * 2,
             DrawKeptBits{p, in.kept, Divisor(rows), Divisor(blocks)});
  }
  if (in.keys != nullptr) {
    const int64_t keys = key_lines(p.n);
    for_each(stream, p.batches * keys, FindKeyLines{p, in.keys, Divisor(keys)});
  }
  const auto run = [&]<class T>() {
    std::max(p.d, p.e) <= 64 ? run_tensor_gradients<T, 64>(stream, p, in, dq, dk, dv)
                             : run_tensor_gradients<T, 128>(stream, p, in, dq, dk, dv);
  };
  in.q.dtype == DType::kF16 ? run.template operator()<Half>() : run.template operator()<BFloat16>();
}

}  // namespace halfnote::HN_CUDA
