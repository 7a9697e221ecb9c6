// dQ by tiles of queries, dK and dV by tiles of keys, without atomics, on tensor cores: for what
// the library has no gradient of. P and the slopes of the scores are rounded to 16 bits before they
// are multiplied, as the library's are.
#include "kernels/cuda/contraction/attention/gradient.h"
#include "kernels/cuda/contraction/attention/tensor_tile.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr float kLog2E = 1.44269504088896340736f;

/// Of a query: P = 2^(score·log2(e) − most) · inverse, and Σ dY·Y. Behind the last one P is 0.
struct alignas(16) QueryLine {
  float most = 0, inverse = 0, delta = 0;
};

template <class T>
struct TensorOperands {
  TensorOperand<T> q, k, v, dy;
};

template <class Shape, class T, bool kRowsAreKeys>
struct TensorShared {
  static constexpr int kQueries = kRowsAreKeys ? Shape::kColumns : Shape::kRows;
  static constexpr int kKeys = kRowsAreKeys ? Shape::kRows : Shape::kColumns;
  using Kept = KeptTile<kQueries, kKeys>;

  alignas(16) T rows[2][Shape::kRows * Shape::kLd];
  alignas(16) T columns[2][2][Shape::kColumns * Shape::kLd];  // by turns
  alignas(16) float scores[Shape::kRows * Shape::kScoreLd];
  QueryLine lines[2][kQueries];
  Kept kept[2];

  /// Results in f32 take the place of the rows.
  __device__ float* results() {
    static_assert(sizeof(rows) >= sizeof(float) * Shape::kRows * StoredRows<Shape>::kLd);
    return reinterpret_cast<float*>(&rows);
  }
};

/// All threads of a block; a barrier has to follow.
template <int kCount, int kThreads>
__device__ void bring_lines(const DeviceAttention& p, const GradientOperands<float>& in,
                            int64_t batch, int64_t query, QueryLine* to) {
  for (int at = static_cast<int>(threadIdx.x); at < kCount; at += kThreads) {
    QueryLine line;
    if (query + at < p.m) {
      const int64_t row = batch * p.m + query + at;
      line.most = in.most[row] * kLog2E;
      line.inverse = 1.0f / in.sum[row];
      line.delta = in.delta[row];
    }
    to[at] = line;
  }
}

/// The scores of 64 rows and 32 columns of a batch, and the slopes of Y's weights, become the
/// weights and the slopes of the scores (without the scale).
template <class Shape, class T, bool kRowsAreKeys>
struct TensorScores {
  using Shared = TensorShared<Shape, T, kRowsAreKeys>;
  using Numbers = float[Shape::kColumnBlocks][4];
  const DeviceAttention& p;
  Shared& shared;
  int64_t batch, row, column;
  int turn;

  __device__ int64_t query() const { return kRowsAreKeys ? column : row; }
  __device__ int64_t key() const { return kRowsAreKeys ? row : column; }
  __device__ const QueryLine& line(int row_in_tile, int column_in_tile) const {
    return kRowsAreKeys ? shared.lines[turn][column_in_tile] : shared.lines[0][row_in_tile];
  }
  /// No score is outside, or more than a product.
  __device__ bool is_plain() const {
    const bool above = p.causal && key() + Shared::kKeys - 1 > query();
    return p.terms == 0 && key() + Shared::kKeys <= p.n && !above;
  }
  __device__ float factor() const { return p.drops() ? p.dropout.factor : 1.0f; }
  /// P, which may be NaN, as the weight of a value.
  __device__ float weight(float probability, bool kept) const {
    const float weight = kept ? probability * factor() : 0.0f;
    return p.nan_is_zero && weight != weight ? 0.0f : weight;
  }
  /// The kept bits of a lane's numbers in a row of the tile, from its column of the first block on.
  __device__ uint32_t kept_of_row(const Lane& lane, int half) const {
    if (!p.drops()) return ~0u;
    return shared.kept[turn].word(lane.warp * 16 + lane.row + half * 8, 0) >> lane.column;
  }
  /// … in a column of the tile, from its row in the upper half of the warp's on.
  __device__ uint32_t kept_of_column(const Lane& lane, int column_in_tile) const {
    if (!p.drops()) return ~0u;
    const int first = lane.warp * 16 + lane.row;
    return shared.kept[turn].word(column_in_tile, lane.warp / 2) >> first % 32;
  }

  __device__ void finish_plain(Numbers& scores, Numbers& slopes) const {
    const Lane lane;
    const float scale = p.scale * kLog2E, up = factor();
    const uint32_t of_rows[2] = {kRowsAreKeys ? 0 : kept_of_row(lane, 0),
                                 kRowsAreKeys ? 0 : kept_of_row(lane, 1)};
    HN_UNROLL
    for (int block = 0; block < Shape::kColumnBlocks; ++block) {
      HN_UNROLL
      for (int k = 0; k < 4; ++k) {
        const int c = column_of(lane, block, k);
        const QueryLine& own = line(row_of(lane, k), c);
        const bool kept = kRowsAreKeys ? (kept_of_column(lane, c) >> k / 2 * 8 & 1) != 0
                                       : (of_rows[k / 2] >> (block * 8 + k % 2) & 1) != 0;
        const float probability =
            fast_exp2(multiply_add(scores[block][k], scale, -own.most)) * own.inverse;
        slopes[block][k] = probability * ((kept ? slopes[block][k] * up : 0.0f) - own.delta);
        scores[block][k] = weight(probability, kept);
      }
    }
  }

  /// With terms, a causal mask and edges: a loop, by way of shared memory, as it is long.
  __device__ void finish(Numbers& scores, Numbers& slopes) const {
    const ScoresOfBatch<float> of(p, batch);
    put_numbers<Shape::kScoreLd>(scores, shared.scores);  // and each lane goes on with its own
    uint32_t kept_bits = 0, fixed_bits = 0;
    HN_IN_TURN
    for (int half = 0; half < 2; ++half) {
      for_half<Shape::kColumnBlocks>(half, [&](int at, int r, int c) {
        float& number = shared.scores[r * Shape::kScoreLd + c];
        const int i = kRowsAreKeys ? c : r, j = kRowsAreKeys ? r : c;
        const bool outside =
            of.is_outside(query() + i, key() + j) || (p.causal && key() + j > query() + i);
        const bool fixed = outside || of.is_hidden(0, query() + i, key() + j);
        const QueryLine& own = line(r, c);
        const float score = of.score(number, query() + i, key() + j);
        number = outside ? 0.0f : fast_exp2(multiply_add(score, kLog2E, -own.most)) * own.inverse;
        kept_bits |= !outside && shared.kept[turn].keeps(p, i, j) ? 1u << at : 0u;
        fixed_bits |= fixed ? 1u << at : 0u;
      });
    }
    const float up = factor();
    for_numbers(scores, [&](float& score, int at, int r, int c) {
      const float probability = shared.scores[r * Shape::kScoreLd + c];
      const bool kept = (kept_bits >> at & 1) != 0, fixed = (fixed_bits >> at & 1) != 0;
      float& slope = slopes[at / 4][at % 4];
      slope = fixed ? 0.0f : probability * ((kept ? slope * up : 0.0f) - line(r, c).delta);
      score = weight(probability, kept);
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
    end_copy_group();
    if (!kRowsAreKeys)
      bring_lines<Shared::kQueries, Shape::kThreads>(p, in, batch, row, shared.lines[0]);
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
  /// A barrier has to come before it is read.
  __device__ void bring(const Columns& columns, int turn) const {
    for (int i = 0; i < 2; ++i) {
      bring_rows<Shape, Shape::kColumns>(of_columns(i), columns.begin[i], columns.at,
                                         shared.columns[turn][i]);
    }
    end_copy_group();
    if (kRowsAreKeys) {
      bring_lines<Shared::kQueries, Shape::kThreads>(p, in, columns.batch, columns.at,
                                                     shared.lines[turn]);
    }
    if (!p.drops()) return;
    shared.kept[turn].template draw<Shape::kThreads>(
        p, columns.batch, kRowsAreKeys ? columns.at : row, kRowsAreKeys ? row : columns.at);
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
      float scores[Shape::kColumnBlocks][4] = {}, slopes[Shape::kColumnBlocks][4] = {};
      const int first = warp * 16 * Shape::kLd;
      add_scores<Shape>(shared.rows[0] + first, shared.columns[turn][0], p.d, scores);
      add_scores<Shape>(shared.rows[1] + first, shared.columns[turn][1], p.e, slopes);
      const TensorScores<Shape, T, kRowsAreKeys> tile{p, shared, batch, row, at, turn};
      if (tile.is_plain()) {
        tile.finish_plain(scores, slopes);
      } else {
        tile.finish(scores, slopes);
      }
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
  turns.for_each({first, from, from, p.m, {}},
                 of_batch * p.k.group,  // all heads that read these keys
                 [&](const auto& weights, const auto& slopes, int turn) {
                   add_rows_by<Shape>(weights, shared->columns[turn][1], p.e, of_v);
                   add_rows_by<Shape>(slopes, shared->columns[turn][0], p.d, of_k);
                 });
  float* results = shared->results();
  if (dv.data != nullptr) {
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
  const auto run = [&]<class T>() {
    std::max(p.d, p.e) <= 64 ? run_tensor_gradients<T, 64>(stream, p, in, dq, dk, dv)
                             : run_tensor_gradients<T, 128>(stream, p, in, dq, dk, dv);
  };
  in.q.dtype == DType::kF16 ? run.template operator()<Half>() : run.template operator()<BFloat16>();
}

}  // namespace halfnote::HN_CUDA
