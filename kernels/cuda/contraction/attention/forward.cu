// Attention in blocks, a block of threads a tile of queries: it walks over tiles of keys with a
// running maximum and a running sum, so that no score goes to memory. Math in f32 (f64 for f64).
#include <limits>

#include "kernels/cpu/reals.h"
#include "kernels/cuda/contraction/attention/tile.h"

namespace halfnote::HN_CUDA {

DeviceAttention PlannedAttention::on_device(const KernelBuffers& buffers) const {
  DeviceAttention made = argument;
  for (size_t t = 0; t < plan.terms.size(); ++t) {
    const std::byte* data = buffers.inputs[plan.terms[t].input];
    if (plan.terms[t].hides()) {
      made.term[t].mask = reinterpret_cast<const bool*>(data);
    } else {
      made.term[t].values = {data, plan.terms[t].dtype};
    }
  }
  if (plan.dropout) {
    made.dropout.seed = buffers.in<int64_t>(plan.dropout->seed);
    made.dropout.step = buffers.in<int64_t>(plan.dropout->step);
  }
  return made;
}

std::string plan_attention_on_device(const KernelCall& call, bool gradient,
                                     PlannedAttention& planned) {
  constexpr int64_t kLeastTile = 16;
  std::string why;
  planned.plan = cpu::attention::plan_attention(call, gradient, &why);
  if (!why.empty()) return why;
  const AttentionPlan& plan = planned.plan;
  const int64_t most = plan.dtype == DType::kF64 ? kMostHead<double> : kMostHead<float>;
  if (std::max(plan.d, plan.e) > most)
    return "heads of more than " + std::to_string(most) + " elements";
  if (plan.terms.size() > kMostTerms) return "more than four terms";
  const int64_t tiles = (std::max(plan.m, plan.n) + kLeastTile - 1) / kLeastTile;
  if (plan.batches * tiles > std::numeric_limits<int32_t>::max()) return "too many blocks";
  std::vector<Shape> strides(kMostTerms, Shape(plan.batch_dims.size(), 0));
  DeviceAttention& p = planned.argument;
  for (size_t t = 0; t < plan.terms.size(); ++t) {
    strides[t] = plan.terms[t].strides;
    p.term[t] = {{}, nullptr, plan.terms[t].hidden, plan.terms[t].row, plan.terms[t].column};
  }
  if (!as_strided(cpu::plan_runs(plan.batch_dims, strides), p.of_batch)) return too_many_dims();
  p.batches = plan.batches;
  p.m = plan.m;
  p.n = plan.n;
  p.d = static_cast<int>(plan.d);
  p.e = static_cast<int>(plan.e);
  p.terms = static_cast<int>(plan.terms.size());
  p.scale = plan.attributes.scale;
  p.causal = plan.attributes.causal;
  p.nan_is_zero = plan.attributes.nan_is_zero;
  p.trans_k = plan.attributes.trans_k;
  p.q = plan.q;
  p.k = plan.k;
  p.v = plan.v;
  p.y = plan.y;
  if (plan.dropout) {
    p.dropout.threshold = plan.dropout->threshold;
    p.dropout.node = plan.dropout->node;
    p.dropout.factor = plan.dropout->factor;
  }
  return {};
}

namespace {

/// Of one of the two rows of a lane: the largest score so far, Σ exp(score − it) over the lane's
/// columns, and whether a dropout kept one of them.
template <class M>
struct RunningRow {
  M most = -static_cast<M>(INFINITY);
  M sum = 0;
  int kept = 0;

  /// What exponents are taken from: rows that are −∞ so far have none.
  __device__ M base() const { return most == -static_cast<M>(INFINITY) ? M(0) : most; }
};

/// Over the four lanes that share a row.
template <class Merge, class A>
__device__ A merge_row(A value) {
  value = Merge::merge(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return Merge::merge(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

struct KeepLarger {
  template <class M>
  __device__ static M merge(M a, M b) {
    return b > a ? b : a;
  }
};

/// Products of one row of a lane in shared memory become exp(score − maximum), dropped where a
/// dropout drops them. Returns what the row's results so far are to be multiplied by.
template <class Shape, class M, class Shared>
__device__ M exponentials(const ScoresOfBatch<M>& of, int64_t query, int64_t key, int half,
                          RunningRow<M>& own, Shared& shared) {
  const bool plain = of.are_plain(query, key, Shape::kTile);
  M most = own.most;
  if (plain) {
    const auto scale = static_cast<M>(of.p.scale);
    for_half<Shape::kKeyBlocks>(half, [&](int, int row, int column) {
      M& number = shared.scores[row * Shape::kScoreLd + column];
      number *= scale;
      most = number > most ? number : most;
    });
  } else {
    for_half<Shape::kKeyBlocks>(half, [&](int, int row, int column) {
      M& number = shared.scores[row * Shape::kScoreLd + column];
      number = of.score(number, query + row, key + column);
      most = number > most ? number : most;
    });
  }
  const M before = own.most;
  own.most = merge_row<KeepLarger>(most);
  const M base = own.base(), shrink = math::exp(before - base);
  own.sum *= shrink;
  if (plain) {
    own.kept = 1;
    for_half<Shape::kKeyBlocks>(half, [&](int, int row, int column) {
      M& number = shared.scores[row * Shape::kScoreLd + column];
      number = math::exp(number - base);
      own.sum += number;
    });
    return shrink;
  }
  const M factor = of.p.drops() ? static_cast<M>(of.p.dropout.factor) : M(1);
  for_half<Shape::kKeyBlocks>(half, [&](int, int row, int column) {
    M& number = shared.scores[row * Shape::kScoreLd + column];
    const bool outside = of.is_outside(query + row, key + column);
    const bool kept = !outside && shared.kept.keeps(of.p, of.batch, query, key, row, column);
    const M exponential = outside ? M(0) : math::exp(number - base);
    own.sum += exponential;
    own.kept |= kept ? 1 : 0;
    number = kept ? exponential * factor : M(0);
  });
  return shrink;
}

/// Y of the tile's rows, and what the gradient needs of them.
template <class Shape, class M>
__device__ void finish(const ScoresOfBatch<M>& of, int64_t query, RunningRow<M> (&rows)[2],
                       M (&sums)[Shape::kSizeBlocks][4], M* most, M* sum) {
  const DeviceAttention& p = of.p;
  const Lane lane;
  M all[2], empty[2];
  bool none[2];
  HN_UNROLL
  for (int r = 0; r < 2; ++r) {
    all[r] = merge_row<AddNumbers>(rows[r].sum);
    const bool any = merge_row<AddNumbers>(rows[r].kept) > 0;
    // A row that is −∞ throughout has no probabilities.
    if (p.n > 0 && rows[r].most == -static_cast<M>(INFINITY)) all[r] = static_cast<M>(NAN);
    none[r] = p.n == 0 || all[r] != all[r];
    empty[r] = any && !p.nan_is_zero ? static_cast<M>(NAN) : M(0);
    const int64_t i = query + row_of(lane, r * 2);
    if (lane.column != 0 || i >= p.m || most == nullptr) continue;
    most[of.batch * p.m + i] = rows[r].most;
    sum[of.batch * p.m + i] = all[r];
  }
  for_numbers(sums, [&](M& value, int at, int, int) {
    const int r = at % 4 / 2;
    value = none[r] ? empty[r] : value / all[r];
  });
}

template <class M, int kSize>
__global__ void __launch_bounds__(TileShape<M, kSize>::kThreads)
    attention_tile(const __grid_constant__ DeviceAttention p, Elements q, Elements k, Elements v,
                   RealOutput y, M* most, M* sum) {
  using Shape = TileShape<M, kSize>;
  using Shared = AttentionShared<M, kSize, 3>;
  HN_DYNAMIC_SHARED(Shared, shared);
  M *queries = shared->tiles[0], *keys = shared->tiles[1], *values = shared->tiles[2];
  // The last tiles first: with a causal mask they have the most keys.
  const int64_t tiles = (p.m + Shape::kTile - 1) / Shape::kTile;
  const int64_t batch = blockIdx.x / tiles;
  const int64_t query = (tiles - 1 - blockIdx.x % tiles) * Shape::kTile;
  const ScoresOfBatch<M> of(p, batch);
  M sums[Shape::kSizeBlocks][4] = {};
  RunningRow<M> rows[2];
  load_rows<Shape>(q, p.q, batch, query, queries);
  const int64_t seen = p.causal && query + Shape::kTile < p.n ? query + Shape::kTile : p.n;
  for (int64_t key = 0; key < seen; key += Shape::kTile) {
    __syncthreads();  // the tiles before are still read
    load_keys<Shape>(p, k, batch, key, keys);
    load_rows<Shape>(v, p.v, batch, key, values);
    if (p.drops()) shared->kept.template draw<Shape::kThreads>(p, batch, query, key);
    __syncthreads();
    M s[Shape::kKeyBlocks][4] = {};
    add_product_of_rows<Shape::kLd>(queries, keys, p.d, s);
    put_numbers<Shape::kScoreLd>(s, shared->scores);  // and each lane goes on with its own
    M shrink[2];
    HN_UNROLL
    for (int half = 0; half < 2; ++half) {
      shrink[half] = exponentials<Shape>(of, query, key, half, rows[half], *shared);
    }
    for_numbers(sums, [&](M& value, int at, int, int) { value *= shrink[at % 4 / 2]; });
    __syncwarp();  // a warp reads its own rows only
    add_product<Shape>(shared->scores, values, p.e, sums);
  }
  finish<Shape>(of, query, rows, sums, most, sum);
  __syncthreads();  // without keys, the queries are still written
  store_rows<Shape>(sums, queries, p.y, batch, query, y);
}

template <class M, int kSize>
Prepared forward_kernel(const PlannedAttention& planned, DType result, bool has_sums) {
  using Shape = TileShape<M, kSize>;
  return make_kernel([=](const KernelBuffers& buffers) {
    const DeviceAttention p = planned.on_device(buffers);
    const int64_t tiles = (p.m + Shape::kTile - 1) / Shape::kTile;
    const auto element = [&](size_t i) { return Elements{buffers.inputs[i], planned.plan.dtype}; };
    launch(stream_of(buffers), attention_tile<M, kSize>, static_cast<unsigned>(tiles * p.batches),
           Shape::kThreads, sizeof(AttentionShared<M, kSize, 3>), p, element(0), element(1),
           element(2), RealOutput{buffers.outputs[0], result},
           has_sums ? buffers.out<M>(1) : nullptr, has_sums ? buffers.out<M>(2) : nullptr);
  });
}

}  // namespace

Prepared prepare_attention(const KernelCall& call) {
  PlannedAttention planned;
  if (std::string why = plan_attention_on_device(call, false, planned); !why.empty())
    return Prepared::no(why);
  if (!call.has_output(0)) return Prepared::no("Y is missing");
  const DType result = call.outputs[0].dtype;
  const bool has_sums = call.has_output(1) && call.has_output(2);
  return cpu::for_math_type(planned.plan.dtype, [&]<class M>() {
    return for_head_size<M>(planned.plan, [&]<int kSize>() {
      return forward_kernel<M, kSize>(planned, result, has_sums);
    });
  });
}

}  // namespace halfnote::HN_CUDA
