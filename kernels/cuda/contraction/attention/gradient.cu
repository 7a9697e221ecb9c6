// AttentionGrad in blocks, without atomics: dQ by tiles of queries, dK and dV by tiles of keys, the
// gradient of a term by tiles of scores, each of which computes the scores again. Math in f32 (f64
// for f64).
#include "kernels/cpu/reals.h"
#include "kernels/cuda/contraction/attention/tile.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::attention::Term;

/// What AttentionGrad reads.
template <class M>
struct GradientOperands {
  Elements dy, q, k, v, y;
  const M *most, *sum;
  M* delta;  // (batches, M), of the workspace
};

template <class M>
__device__ QueryNumbers<M> numbers_of(const GradientOperands<M>& in, const DeviceAttention& p,
                                      int64_t batch, int64_t query) {
  if (query >= p.m) return {};
  const int64_t at = batch * p.m + query;
  return {in.most[at], in.sum[at], in.delta[at]};
}

/// What a key's weight in Y is after the dropout, and the slope of its score.
template <class M>
struct ScoreGradient {
  M weight = 0, slope = 0;
};

/// Of query i and key j, from the product of both and that of dY and V. Hidden by a term from
/// `first` on, a score has no slope.
template <class M>
__device__ ScoreGradient<M> gradient_of_score(const ScoresOfBatch<M>& of, M product, M d_weight,
                                              int64_t i, int64_t j, bool kept,
                                              const QueryNumbers<M>& query, int first) {
  const DeviceAttention& p = of.p;
  if (of.is_outside(i, j)) return {};
  const M probability = math::exp(of.score(product, i, j) - query.most) / query.sum;
  const M factor = !kept ? M(0) : p.drops() ? static_cast<M>(p.dropout.factor) : M(1);
  ScoreGradient<M> made;
  made.weight = kept ? probability * factor : M(0);
  if (p.nan_is_zero && made.weight != made.weight) made.weight = 0;
  const M slope = probability * ((kept ? d_weight * factor : M(0)) - query.delta);
  made.slope = of.is_hidden(first, i, j) ? M(0) : slope;
  return made;
}

/// delta = Σ dY·Y, a warp a query.
template <class M>
__global__ void __launch_bounds__(kBlock) dots_of_rows(DeviceAttention p, GradientOperands<M> in) {
  constexpr int64_t kWarps = kBlock / 32;
  const Lane lane;
  const int64_t rows = p.batches * p.m;
  for (int64_t r = blockIdx.x * kWarps + lane.warp; r < rows; r += gridDim.x * kWarps) {
    const int64_t at = p.y.at(r / p.m, r % p.m);
    M sum = 0;
    for (int e = lane.index; e < p.e; e += 32) {
      sum = multiply_add(in.dy.template load<M>(at + e), in.y.template load<M>(at + e), sum);
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    }
    if (lane.index == 0) in.delta[r] = sum;
  }
}

template <class M, int kSize>
__global__ void __launch_bounds__(TileShape<M, kSize>::kThreads)
    gradient_of_queries(DeviceAttention p, GradientOperands<M> in, RealOutput dq) {
  using Shape = TileShape<M, kSize>;
  using Shared = AttentionShared<M, kSize, 4>;
  HN_DYNAMIC_SHARED(Shared, shared);
  auto& [queries, slopes_of_y, keys, values] = shared->tiles;
  const int64_t tiles = (p.m + Shape::kTile - 1) / Shape::kTile;
  const int64_t batch = blockIdx.x / tiles;
  const int64_t query = (tiles - 1 - blockIdx.x % tiles) * Shape::kTile;
  const ScoresOfBatch<M> of(p, batch);
  const Lane lane;
  const int first = lane.warp * 16 + lane.row;
  const QueryNumbers<M> own[2] = {numbers_of(in, p, batch, query + first),
                                  numbers_of(in, p, batch, query + first + 8)};
  M sums[Shape::kSizeBlocks][4] = {};
  load_rows<Shape>(in.q, p.q, batch, query, queries);
  load_rows<Shape>(in.dy, p.y, batch, query, slopes_of_y);
  const int64_t seen = p.causal && query + Shape::kTile < p.n ? query + Shape::kTile : p.n;
  for (int64_t key = 0; key < seen; key += Shape::kTile) {
    __syncthreads();  // the tiles before are still read
    load_keys<Shape>(p, in.k, batch, key, keys);
    load_rows<Shape>(in.v, p.v, batch, key, values);
    if (p.drops()) shared->kept.template draw<Shape::kThreads>(p, batch, query, key);
    __syncthreads();
    M s[Shape::kKeyBlocks][4] = {}, d_weights[Shape::kKeyBlocks][4] = {};
    add_product_of_rows<Shape::kLd>(queries, keys, p.d, s);
    add_product_of_rows<Shape::kLd>(slopes_of_y, values, p.e, d_weights);
    for_places<Shape::kKeyBlocks>([&](int block, int k, int row, int column) {
      const bool kept = shared->kept.keeps(p, batch, query, key, row, column);
      const M slope = gradient_of_score(of, s[block][k], d_weights[block][k], query + row,
                                        key + column, kept, own[k / 2], 0)
                          .slope;
      shared->scores[row * Shape::kScoreLd + column] = slope * static_cast<M>(p.scale);
    });
    __syncwarp();  // a warp reads its own rows only
    add_product<Shape>(shared->scores, static_cast<const M*>(keys), p.d, sums);
  }
  store_rows(sums, p.q, batch, query, dq);
}

/// The tile of scores with keys as rows: its weights go into dV, its slopes into dK.
template <class M, int kSize>
__global__ void __launch_bounds__(TileShape<M, kSize>::kThreads)
    gradient_of_keys(DeviceAttention p, GradientOperands<M> in, RealOutput dk, RealOutput dv) {
  using Shape = TileShape<M, kSize>;
  using Shared = AttentionShared<M, kSize, 4>;
  HN_DYNAMIC_SHARED(Shared, shared);
  auto& [queries, slopes_of_y, keys, values] = shared->tiles;
  const int64_t tiles = (p.n + Shape::kTile - 1) / Shape::kTile;
  const int64_t batch = blockIdx.x / tiles, key = blockIdx.x % tiles * Shape::kTile;
  const ScoresOfBatch<M> of(p, batch);
  M of_k[Shape::kSizeBlocks][4] = {}, of_v[Shape::kSizeBlocks][4] = {};
  load_keys<Shape>(p, in.k, batch, key, keys);
  load_rows<Shape>(in.v, p.v, batch, key, values);
  for (int64_t query = p.causal ? key : 0; query < p.m; query += Shape::kTile) {
    __syncthreads();  // the tiles before are still read
    load_rows<Shape>(in.q, p.q, batch, query, queries);
    load_rows<Shape>(in.dy, p.y, batch, query, slopes_of_y);
    if (threadIdx.x < Shape::kTile) {
      shared->query[threadIdx.x] = numbers_of(in, p, batch, query + threadIdx.x);
    }
    if (p.drops()) shared->kept.template draw<Shape::kThreads>(p, batch, query, key);
    __syncthreads();
    M s[Shape::kKeyBlocks][4] = {}, d_weights[Shape::kKeyBlocks][4] = {};
    add_product_of_rows<Shape::kLd>(keys, queries, p.d, s);
    add_product_of_rows<Shape::kLd>(values, slopes_of_y, p.e, d_weights);
    for_places<Shape::kKeyBlocks>([&](int block, int k, int row, int column) {
      const bool kept = shared->kept.keeps(p, batch, query, key, column, row);
      const ScoreGradient<M> made =
          gradient_of_score(of, s[block][k], d_weights[block][k], query + column, key + row, kept,
                            shared->query[column], 0);
      shared->scores[row * Shape::kScoreLd + column] = made.weight;
      s[block][k] = made.slope * static_cast<M>(p.scale);
    });
    __syncwarp();  // a warp reads its own rows only
    add_product<Shape>(shared->scores, static_cast<const M*>(slopes_of_y), p.e, of_v);
    __syncwarp();
    for_numbers(s, [&](M slope, int row, int column) {
      shared->scores[row * Shape::kScoreLd + column] = slope;
    });
    __syncwarp();
    add_product<Shape>(shared->scores, static_cast<const M*>(queries), p.d, of_k);
  }
  if (dv.data != nullptr) store_rows(of_v, p.v, batch, key, dv);
  if (dk.data == nullptr) return;
  if (p.trans_k) {
    store_columns(of_k, p.k, batch, key, dk);
  } else {
    store_rows(of_k, p.k, batch, key, dk);
  }
}

/// A term whose gradient is asked for, and the batches that it is broadcast to.
struct TermGradient {
  int term = 0;
  Strided<1> groups, members;  // the first batch of a group; batches from there
};

/// A tile of the gradient of a term: the slopes of all batches that read it, in order.
template <class M, int kSize>
__global__ void __launch_bounds__(TileShape<M, kSize>::kThreads)
    gradient_of_term(DeviceAttention p, GradientOperands<M> in, TermGradient wanted, M* to) {
  using Shape = TileShape<M, kSize>;
  using Shared = AttentionShared<M, kSize, 4>;
  HN_DYNAMIC_SHARED(Shared, shared);
  auto& [queries, slopes_of_y, keys, values] = shared->tiles;
  const int64_t tiles = (p.m + Shape::kTile - 1) / Shape::kTile;
  const int64_t key = int64_t{blockIdx.y} * Shape::kTile;
  const int64_t query = blockIdx.x % tiles * Shape::kTile;
  int64_t group[1], member[1];
  wanted.groups.offsets(blockIdx.x / tiles, group);
  M sums[Shape::kKeyBlocks][4] = {};
  for (int64_t index = 0; index < wanted.members.count; ++index) {
    wanted.members.offsets(index, member);
    const int64_t batch = group[0] + member[0];
    const ScoresOfBatch<M> of(p, batch);
    __syncthreads();  // the tiles before are still read
    load_rows<Shape>(in.q, p.q, batch, query, queries);
    load_rows<Shape>(in.dy, p.y, batch, query, slopes_of_y);
    load_keys<Shape>(p, in.k, batch, key, keys);
    load_rows<Shape>(in.v, p.v, batch, key, values);
    if (threadIdx.x < Shape::kTile) {
      shared->query[threadIdx.x] = numbers_of(in, p, batch, query + threadIdx.x);
    }
    if (p.drops()) shared->kept.template draw<Shape::kThreads>(p, batch, query, key);
    __syncthreads();
    M s[Shape::kKeyBlocks][4] = {}, d_weights[Shape::kKeyBlocks][4] = {};
    add_product_of_rows<Shape::kLd>(queries, keys, p.d, s);
    add_product_of_rows<Shape::kLd>(slopes_of_y, values, p.e, d_weights);
    for_places<Shape::kKeyBlocks>([&](int block, int k, int row, int column) {
      const bool kept = shared->kept.keeps(p, batch, query, key, row, column);
      sums[block][k] += gradient_of_score(of, s[block][k], d_weights[block][k], query + row,
                                          key + column, kept, shared->query[row], wanted.term)
                            .slope;
    });
  }
  const ScoresOfBatch<M> of(p, group[0]);
  for_numbers(sums, [&](M value, int row, int column) {
    const int64_t i = query + row, j = key + column;
    if (!of.is_outside(i, j)) to[of.place(wanted.term, i, j)] = value;
  });
}

/// The results of a call: where they are and of which type.
struct GradientResults {
  size_t of_q = 0, of_k = 1, of_v = 2, of_term = 0;
  DType types[3] = {};
  bool has_term = false;
  TermGradient term;

  RealOutput output(const KernelBuffers& buffers, size_t index) const {
    if (types[index] == DType::kUndefined) return {};
    return {buffers.outputs[index], types[index]};
  }
};

/// Splits the batches by whether the term differs between them.
std::string plan_term_gradient(const AttentionPlan& plan, TermGradient& made) {
  const Term* wanted = plan.differentiated();
  made.term = static_cast<int>(wanted - plan.terms.data());
  Shape groups, members, of_groups, of_members;
  int64_t step = 1;
  for (size_t d = plan.batch_dims.size(); d-- > 0; step *= plan.batch_dims[d]) {
    const bool shared = wanted->strides[d] == 0;
    (shared ? members : groups).insert((shared ? members : groups).begin(), plan.batch_dims[d]);
    (shared ? of_members : of_groups).insert((shared ? of_members : of_groups).begin(), step);
  }
  const bool fits = as_strided(cpu::plan_runs(groups, {of_groups}), made.groups) &&
                    as_strided(cpu::plan_runs(members, {of_members}), made.members);
  return fits ? std::string() : too_many_dims();
}

template <class M, int kSize>
void run_gradients(const DeviceAttention& p, const GradientOperands<M>& in,
                   const GradientResults& results, const KernelBuffers& buffers) {
  using Shape = TileShape<M, kSize>;
  constexpr size_t kShared = sizeof(AttentionShared<M, kSize, 4>);
  constexpr int64_t kTile = Shape::kTile;
  Stream& stream = stream_of(buffers);
  const auto blocks = [](int64_t count) { return static_cast<unsigned>(count); };
  const int64_t of_queries = (p.m + kTile - 1) / kTile, of_keys = (p.n + kTile - 1) / kTile;
  const RealOutput dq = results.output(buffers, results.of_q),
                   dk = results.output(buffers, results.of_k),
                   dv = results.output(buffers, results.of_v);
  const int64_t dots = (p.batches * p.m + kBlock / 32 - 1) / (kBlock / 32);
  launch(stream, dots_of_rows<M>, blocks(std::min(dots, kMaxBlocks)), kBlock, 0, p, in);
  if (dq.data != nullptr) {
    launch(stream, gradient_of_queries<M, kSize>, blocks(p.batches * of_queries), Shape::kThreads,
           kShared, p, in, dq);
  }
  if (dk.data != nullptr || dv.data != nullptr) {
    launch(stream, gradient_of_keys<M, kSize>, blocks(p.batches * of_keys), Shape::kThreads,
           kShared, p, in, dk, dv);
  }
  if (!results.has_term) return;
  launch(stream, gradient_of_term<M, kSize>,
         dim3(blocks(results.term.groups.count * of_queries), blocks(of_keys)), Shape::kThreads,
         kShared, p, in, results.term, buffers.out<M>(results.of_term));
}

template <class M, int kSize>
Prepared gradient_kernel(const PlannedAttention& planned, const GradientResults& results) {
  const auto body = [=](const KernelBuffers& buffers) {
    using namespace cpu::attention;
    const auto element = [&](size_t i) { return Elements{buffers.inputs[i], planned.plan.dtype}; };
    const GradientOperands<M> in = {
        element(kGradY),         element(kGradQ),
        element(kGradK),         element(kGradV),
        element(kGradResult),    buffers.in<M>(kGradMost),
        buffers.in<M>(kGradSum), reinterpret_cast<M*>(buffers.workspace)};
    run_gradients<M, kSize>(planned.on_device(buffers), in, results, buffers);
  };
  return make_kernel(body, static_cast<size_t>(planned.plan.batches * planned.plan.m) * sizeof(M));
}

}  // namespace

Prepared prepare_attention_gradient(const KernelCall& call) {
  PlannedAttention planned;
  if (std::string why = plan_attention_on_device(call, true, planned); !why.empty())
    return Prepared::no(why);
  const AttentionPlan& plan = planned.plan;
  GradientResults results;
  results.of_q = plan.gradient_of(0);
  results.of_k = plan.gradient_of(1);
  results.of_v = plan.gradient_of(2);
  for (size_t i = 0; i < 3 && i < call.outputs.size(); ++i)
    results.types[i] = call.outputs[i].dtype;
  if (const Term* wanted = plan.differentiated()) {
    constexpr int64_t kMostRows = 65535;  // of a grid
    if (plan.n > kMostRows * 16) return Prepared::no("too many keys for the gradient of a term");
    results.has_term = true;
    results.of_term = wanted->gradient;
    if (std::string why = plan_term_gradient(plan, results.term); !why.empty())
      return Prepared::no(why);
  }
  return cpu::for_math_type(plan.dtype, [&]<class M>() {
    return for_head_size(plan,
                         [&]<int kSize>() { return gradient_kernel<M, kSize>(planned, results); });
  });
}

}  // namespace halfnote::HN_CUDA
