// AttentionGrad in blocks, without atomics: dQ by tiles of queries, dK and dV by tiles of keys, the
// gradient of a term by tiles of scores, each of which computes the scores again. Math in f32 (f64
// for f64).
#include "kernels/cuda/contraction/attention/gradient.h"

#include "kernels/cpu/reals.h"
#include "kernels/cuda/contraction/attention/tile.h"
#include "kernels/cuda/packs.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::attention::Term;

template <class M>
__device__ QueryNumbers<M> numbers_of(const GradientOperands<M>& in, const DeviceAttention& p,
                                      int64_t batch, int64_t query) {
  if (query >= p.m) return {};
  const int64_t at = batch * p.m + query;
  return {in.most[at], in.sum[at], in.delta[at]};
}

/// A bit for each number of a lane in a tile of scores: did a dropout keep it; has it no slope, as
/// it is outside or hidden by a term.
struct ScoreBits {
  uint32_t kept = 0, fixed = 0;

  __device__ bool is_kept(int at) const { return (kept >> at & 1) != 0; }
  __device__ bool is_fixed(int at) const { return (fixed >> at & 1) != 0; }
};

/// A tile of a batch that a gradient walks over: rows are queries, or keys. Terms from `first` on
/// hide what they hide.
template <class M, class Shape, bool kRowsAreKeys, class Shared>
struct TileOfScores {
  const ScoresOfBatch<M>& of;
  Shared& shared;
  int64_t query, key;
  int first = 0;

  /// The products in shared memory become probabilities, each lane's by itself.
  __device__ ScoreBits probabilities() const {
    if (of.are_plain(query, key, Shape::kTile)) return plain_probabilities();
    ScoreBits bits;
    HN_IN_TURN
    for (int half = 0; half < 2; ++half) {
      for_half<Shape::kKeyBlocks>(half, [&](int at, int row, int column) {
        const int i = kRowsAreKeys ? column : row, j = kRowsAreKeys ? row : column;
        M& number = shared.scores[row * Shape::kScoreLd + column];
        const bool outside = of.is_outside(query + i, key + j);
        const bool kept = !outside && shared.kept.keeps(of.p, of.batch, query, key, i, j);
        const bool fixed = outside || of.is_hidden(first, query + i, key + j);
        const QueryNumbers<M>& own = shared.query[i];
        const M score = of.score(number, query + i, key + j);
        number = outside ? M(0) : math::exp(score - own.most) / own.sum;
        bits.kept |= kept ? 1u << at : 0u;
        bits.fixed |= fixed ? 1u << at : 0u;
      });
    }
    return bits;
  }
  /// The same where the scores are the products times the scale, and all of them count.
  __device__ ScoreBits plain_probabilities() const {
    const auto scale = static_cast<M>(of.p.scale);
    HN_IN_TURN
    for (int half = 0; half < 2; ++half) {
      for_half<Shape::kKeyBlocks>(half, [&](int, int row, int column) {
        M& number = shared.scores[row * Shape::kScoreLd + column];
        const QueryNumbers<M>& own = shared.query[kRowsAreKeys ? column : row];
        number = math::exp(number * scale - own.most) / own.sum;
      });
    }
    return {~0u, 0};
  }
  /// What a key's weight in Y is after the dropout.
  __device__ M weight(M probability, bool kept) const {
    const M weight = kept ? probability * factor() : M(0);
    return of.p.nan_is_zero && weight != weight ? M(0) : weight;
  }
  /// The slope of a score, from the product of dY and V.
  __device__ M slope(M probability, M d_weight, const ScoreBits& bits, int at, int row,
                     int column) const {
    const M delta = shared.query[kRowsAreKeys ? column : row].delta;
    const M slope = probability * ((bits.is_kept(at) ? d_weight * factor() : M(0)) - delta);
    return bits.is_fixed(at) ? M(0) : slope;
  }
  __device__ M factor() const { return of.p.drops() ? static_cast<M>(of.p.dropout.factor) : M(1); }
};

/// All threads of a block; a barrier has to follow.
template <class Shape, class M>
__device__ void load_numbers_of_queries(const GradientOperands<M>& in, const DeviceAttention& p,
                                        int64_t batch, int64_t query, QueryNumbers<M>* to) {
  const int at = static_cast<int>(threadIdx.x);
  if (at < Shape::kTile) to[at] = numbers_of(in, p, batch, query + at);
}

/// delta = Σ dY·Y of a query, and its line.
template <class M>
__device__ void write_dot(const GradientOperands<M>& in, int64_t row, M sum) {
  in.delta[row] = sum;
  if constexpr (std::is_same_v<M, float>) {
    if (in.lines == nullptr) return;
    const float most = in.most[row];
    in.lines[row] = {most * kLog2E, 1.0f / in.sum[row], sum, most};
  }
}

/// Eight threads a query, which read 16 bytes at a time.
template <class T>
__global__ void __launch_bounds__(kBlock)
    dots_of_packs(const __grid_constant__ DeviceAttention p,
                  const __grid_constant__ GradientOperands<float> in, Divisor queries) {
  constexpr unsigned kLanes = 8, kRows = kBlock / kLanes;
  constexpr int kPack = 8;
  const unsigned lane = threadIdx.x % kLanes;
  const int64_t rows = p.batches * p.m;
  for (int64_t first = int64_t{blockIdx.x} * kRows; first < rows;
       first += int64_t{gridDim.x} * kRows) {
    const int64_t r = first + threadIdx.x / kLanes;
    float sum = 0;
    if (r < rows) {
      const int64_t batch = queries.quotient(r), at = p.y.at(batch, r - batch * queries.value());
      const T *dy = static_cast<const T*>(in.dy.data) + at,
              *y = static_cast<const T*>(in.y.data) + at;
      for (int e = static_cast<int>(lane) * kPack; e < p.e; e += kLanes * kPack) {
        const auto slopes = load_packed<kPack>(dy + e), results = load_packed<kPack>(y + e);
        HN_UNROLL
        for (int k = 0; k < kPack; ++k)
          sum = multiply_add(load_number(slopes.of[k]), load_number(results.of[k]), sum);
      }
    }
    for (unsigned distance = kLanes / 2; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    if (lane == 0 && r < rows) write_dot(in, r, sum);
  }
}

/// A warp a query.
template <class M>
__global__ void __launch_bounds__(kBlock)
    dots_of_rows(const __grid_constant__ DeviceAttention p, GradientOperands<M> in) {
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
    if (lane.index == 0) write_dot(in, r, sum);
  }
}

template <class M>
void run_dots(Stream& stream, const DeviceAttention& p, const GradientOperands<M>& in) {
  const int64_t rows = p.batches * p.m;
  const auto blocks = [&](int64_t of_block) {
    return static_cast<unsigned>(std::min((rows + of_block - 1) / of_block, kMaxBlocks));
  };
  if constexpr (std::is_same_v<M, float>) {
    const bool in_packs =
        is_16bit_float(in.y.dtype) && p.y.size % 8 == 0 && are_aligned<2>({in.dy.data, in.y.data});
    if (in_packs) {
      const auto kernel = in.y.dtype == DType::kF16 ? dots_of_packs<Half> : dots_of_packs<BFloat16>;
      return launch(stream, kernel, blocks(kBlock / 8), kBlock, 0, p, in, Divisor(p.m));
    }
  }
  launch(stream, dots_of_rows<M>, blocks(kBlock / 32), kBlock, 0, p, in);
}

template <class M, int kSize>
__global__ void __launch_bounds__(TileShape<M, kSize>::kThreads)
    gradient_of_queries(const __grid_constant__ DeviceAttention p, GradientOperands<M> in,
                        RealOutput dq) {
  using Shape = TileShape<M, kSize>;
  using Shared = AttentionShared<M, kSize, 4>;
  HN_DYNAMIC_SHARED(Shared, shared);
  auto& [queries, slopes_of_y, keys, values] = shared->tiles;
  const int64_t tiles = (p.m + Shape::kTile - 1) / Shape::kTile;
  const int64_t batch = blockIdx.x / tiles;
  const int64_t query = (tiles - 1 - blockIdx.x % tiles) * Shape::kTile;
  const ScoresOfBatch<M> of(p, batch);
  M sums[Shape::kSizeBlocks][4] = {};
  load_rows<Shape>(in.q, p.q, batch, query, queries);
  load_rows<Shape>(in.dy, p.y, batch, query, slopes_of_y);
  load_numbers_of_queries<Shape>(in, p, batch, query, shared->query);
  const int64_t seen = p.causal && query + Shape::kTile < p.n ? query + Shape::kTile : p.n;
  for (int64_t key = 0; key < seen; key += Shape::kTile) {
    __syncthreads();  // the tiles before are still read
    load_keys<Shape>(p, in.k, batch, key, keys);
    load_rows<Shape>(in.v, p.v, batch, key, values);
    if (p.drops()) shared->kept.template draw<Shape::kThreads>(p, batch, query, key);
    __syncthreads();
    const TileOfScores<M, Shape, false, Shared> tile{of, *shared, query, key};
    M s[Shape::kKeyBlocks][4] = {}, d_weights[Shape::kKeyBlocks][4] = {};
    add_product_of_rows<Shape::kLd>(queries, keys, p.d, s);
    put_numbers<Shape::kScoreLd>(s, shared->scores);  // and each lane goes on with its own
    const ScoreBits bits = tile.probabilities();
    add_product_of_rows<Shape::kLd>(slopes_of_y, values, p.e, d_weights);
    for_numbers(d_weights, [&](M d_weight, int at, int row, int column) {
      M& number = shared->scores[row * Shape::kScoreLd + column];
      number = tile.slope(number, d_weight, bits, at, row, column) * static_cast<M>(p.scale);
    });
    __syncwarp();  // a warp reads its own rows only
    add_product<Shape>(shared->scores, static_cast<const M*>(keys), p.d, sums);
  }
  __syncthreads();  // without keys, the queries are still written
  store_rows<Shape>(sums, queries, p.q, batch, query, dq);
}

/// Which of the gradients of a tile of keys.
enum class KeyResults { kBoth, kKeys, kValues };

/// The tile of scores with keys as rows: its weights go into dV, its slopes into dK.
template <class M, int kSize, KeyResults kResults>
__global__ void __launch_bounds__(TileShape<M, kSize>::kThreads)
    gradient_of_keys(const __grid_constant__ DeviceAttention p, GradientOperands<M> in,
                     RealOutput dk, RealOutput dv) {
  using Shape = TileShape<M, kSize>;
  using Shared = AttentionShared<M, kSize, 4>;
  HN_DYNAMIC_SHARED(Shared, shared);
  auto& [queries, slopes_of_y, keys, values] = shared->tiles;
  const int64_t tiles = (p.n + Shape::kTile - 1) / Shape::kTile;
  const int64_t first = blockIdx.x / tiles * p.k.group, key = blockIdx.x % tiles * Shape::kTile;
  M of_k[Shape::kSizeBlocks][4] = {}, of_v[Shape::kSizeBlocks][4] = {};
  load_keys<Shape>(p, in.k, first, key, keys);
  load_rows<Shape>(in.v, p.v, first, key, values);
  const int64_t from = p.causal ? key : 0;
  const int64_t steps = from < p.m ? (p.m - from + Shape::kTile - 1) / Shape::kTile : 0;
  for (int64_t step = 0; step < steps * p.k.group; ++step) {  // of all heads that read these keys
    const int64_t batch = first + step / steps, query = from + step % steps * Shape::kTile;
    const ScoresOfBatch<M> of(p, batch);
    __syncthreads();  // the tiles before are still read
    load_rows<Shape>(in.q, p.q, batch, query, queries);
    load_rows<Shape>(in.dy, p.y, batch, query, slopes_of_y);
    load_numbers_of_queries<Shape>(in, p, batch, query, shared->query);
    if (p.drops()) shared->kept.template draw<Shape::kThreads>(p, batch, query, key);
    __syncthreads();
    const TileOfScores<M, Shape, true, Shared> tile{of, *shared, query, key};
    M s[Shape::kKeyBlocks][4] = {};
    add_product_of_rows<Shape::kLd>(keys, queries, p.d, s);
    put_numbers<Shape::kScoreLd>(s, shared->scores);  // and each lane goes on with its own
    const ScoreBits bits = tile.probabilities();
    for_numbers(s, [&](M& probability, int at, int row, int column) {
      M& number = shared->scores[row * Shape::kScoreLd + column];
      probability = number;
      number = tile.weight(probability, bits.is_kept(at));
    });
    __syncwarp();  // a warp reads its own rows only
    if constexpr (kResults != KeyResults::kKeys) {
      add_product<Shape>(shared->scores, static_cast<const M*>(slopes_of_y), p.e, of_v);
    }
    if constexpr (kResults != KeyResults::kValues) {
      M d_weights[Shape::kKeyBlocks][4] = {};
      add_product_of_rows<Shape::kLd>(values, slopes_of_y, p.e, d_weights);
      for_numbers(d_weights, [&](M& d_weight, int at, int row, int column) {
        d_weight = tile.slope(s[at / 4][at % 4], d_weight, bits, at, row, column) *
                   static_cast<M>(p.scale);
      });
      __syncwarp();  // the weights are still read
      put_numbers<Shape::kScoreLd>(d_weights, shared->scores);
      __syncwarp();
      add_product<Shape>(shared->scores, static_cast<const M*>(queries), p.d, of_k);
    }
  }
  __syncthreads();  // without queries, the keys are still written
  if (kResults != KeyResults::kKeys && dv.data != nullptr) {
    store_rows<Shape>(of_v, values, p.v, first, key, dv);
  }
  if (kResults == KeyResults::kValues || dk.data == nullptr) return;
  if (p.trans_k) {
    store_columns<Shape>(of_k, keys, p.k, first, key, dk);
  } else {
    store_rows<Shape>(of_k, keys, p.k, first, key, dk);
  }
}

/// A tile of the gradient of a term: the slopes of all batches that read it, in order.
template <class M, int kSize>
__global__ void __launch_bounds__(TileShape<M, kSize>::kThreads, 1)
    gradient_of_term(const __grid_constant__ DeviceAttention p, GradientOperands<M> in,
                     const __grid_constant__ TermGradient wanted, M* to) {
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
    load_numbers_of_queries<Shape>(in, p, batch, query, shared->query);
    if (p.drops()) shared->kept.template draw<Shape::kThreads>(p, batch, query, key);
    __syncthreads();
    const TileOfScores<M, Shape, false, Shared> tile{of, *shared, query, key, wanted.term};
    M s[Shape::kKeyBlocks][4] = {}, d_weights[Shape::kKeyBlocks][4] = {};
    add_product_of_rows<Shape::kLd>(queries, keys, p.d, s);
    put_numbers<Shape::kScoreLd>(s, shared->scores);  // and each lane goes on with its own
    const ScoreBits bits = tile.probabilities();
    add_product_of_rows<Shape::kLd>(slopes_of_y, values, p.e, d_weights);
    for_numbers(sums, [&](M& sum, int at, int row, int column) {
      sum += tile.slope(shared->scores[row * Shape::kScoreLd + column], d_weights[at / 4][at % 4],
                        bits, at, row, column);
    });
  }
  const ScoresOfBatch<M> of(p, group[0]);
  const DeviceTerm& term = p.term[wanted.term];
  M* first = to + of.start_of(wanted.term);
  put_numbers<Shape::kScoreLd>(sums, shared->scores);
  HN_IN_TURN
  for (int half = 0; half < 2; ++half) {
    for_half<Shape::kKeyBlocks>(half, [&](int, int row, int column) {
      const int64_t i = query + row, j = key + column;
      if (of.is_outside(i, j)) return;
      first[i * term.row + j * term.column] = shared->scores[row * Shape::kScoreLd + column];
    });
  }
}

/// The results of a call: where they are and of which type.
struct GradientResults {
  size_t of_q = 0, of_k = 1, of_v = 2, of_term = 0;
  DType types[3] = {};
  bool on_tensor_cores = false;
  bool has_term = false;
  TermGradient term;

  RealOutput output(const KernelBuffers& buffers, size_t index) const {
    if (types[index] == DType::kUndefined) return {};
    return {buffers.outputs[index], types[index]};
  }
};

/// Math in M.
template <class M, int kSize>
void run_operand_gradients(Stream& stream, const DeviceAttention& p, const GradientOperands<M>& in,
                           const RealOutput& dq, const RealOutput& dk, const RealOutput& dv) {
  using Shape = TileShape<M, kSize>;
  constexpr size_t kShared = sizeof(AttentionShared<M, kSize, 4>);
  const auto blocks = [](int64_t count) { return static_cast<unsigned>(count); };
  const auto tiles = [](int64_t rows) { return (rows + Shape::kTile - 1) / Shape::kTile; };
  const int64_t of_queries = tiles(p.m), of_keys = tiles(p.n);
  if (dq.data != nullptr) {
    launch(stream, gradient_of_queries<M, kSize>, blocks(p.batches * of_queries), Shape::kThreads,
           kShared, p, in, dq);
  }
  const auto launch_keys = [&](auto kernel) {
    launch(stream, kernel, blocks(p.batches / p.k.group * of_keys), Shape::kThreads, kShared, p, in,
           dk, dv);
  };
  if constexpr (Shape::kTwoSums) {
    if (dk.data != nullptr || dv.data != nullptr) {
      launch_keys(gradient_of_keys<M, kSize, KeyResults::kBoth>);
    }
  } else {
    if (dk.data != nullptr) launch_keys(gradient_of_keys<M, kSize, KeyResults::kKeys>);
    if (dv.data != nullptr) launch_keys(gradient_of_keys<M, kSize, KeyResults::kValues>);
  }
}

template <class M, int kSize>
void run_gradients(const DeviceAttention& p, const GradientOperands<M>& in,
                   const GradientResults& results, const KernelBuffers& buffers) {
  using Shape = TileShape<M, kSize>;
  Stream& stream = stream_of(buffers);
  const RealOutput dq = results.output(buffers, results.of_q),
                   dk = results.output(buffers, results.of_k),
                   dv = results.output(buffers, results.of_v);
  run_dots(stream, p, in);
  bool on_tensor_cores = false;
  if constexpr (std::is_same_v<M, float>) {
    on_tensor_cores = results.on_tensor_cores;
    if (on_tensor_cores) tensor_gradients(stream, p, in, dq, dk, dv);
  }
  if (!on_tensor_cores) run_operand_gradients<M, kSize>(stream, p, in, dq, dk, dv);
  if (!results.has_term) return;
  const auto tiles = [](int64_t rows) {
    return static_cast<unsigned>((rows + Shape::kTile - 1) / Shape::kTile);
  };
  launch(stream, gradient_of_term<M, kSize>,
         dim3(static_cast<unsigned>(results.term.groups.count) * tiles(p.m), tiles(p.n)),
         Shape::kThreads, sizeof(AttentionShared<M, kSize, 4>), p, in, results.term,
         buffers.out<M>(results.of_term));
}

template <class M, int kSize>
Prepared gradient_kernel(const PlannedAttention& planned, const GradientResults& results) {
  const AttentionPlan& plan = planned.plan;
  const auto rows = plan.batches * plan.m;
  cpu::WorkspacePlan workspace;
  const size_t delta = workspace.add_elements<M>(rows);
  const bool lies = results.on_tensor_cores, drops = lies && plan.dropout.has_value();
  const size_t lines = workspace.add_elements<QueryLine>(lies ? rows : 0);
  const size_t kept = workspace.add_elements<uint2>(
      drops ? plan.batches * kept_blocks(plan.n) * kept_rows(plan.m) : 0);
  const bool by_key =
      lies && !plan.terms.empty() &&
      std::ranges::all_of(plan.terms, [](const Term& term) { return term.row == 0; });
  const size_t keys =
      workspace.add_elements<KeyLine>(by_key ? plan.batches * key_lines(plan.n) : 0);
  const auto body = [=](const KernelBuffers& buffers) {
    using namespace cpu::attention;
    const auto element = [&](size_t i) { return Elements{buffers.inputs[i], planned.plan.dtype}; };
    const GradientOperands<M> in = {element(kGradY),
                                    element(kGradQ),
                                    element(kGradK),
                                    element(kGradV),
                                    element(kGradResult),
                                    buffers.in<M>(kGradMost),
                                    buffers.in<M>(kGradSum),
                                    cpu::part<M>(buffers, delta),
                                    lies ? cpu::part<QueryLine>(buffers, lines) : nullptr,
                                    drops ? cpu::part<uint2>(buffers, kept) : nullptr,
                                    by_key ? cpu::part<KeyLine>(buffers, keys) : nullptr};
    run_gradients<M, kSize>(planned.on_device(buffers), in, results, buffers);
  };
  return make_kernel(body, workspace.size());
}

}  // namespace

std::string plan_term_gradient(const AttentionPlan& plan, TermGradient& made) {
  const cpu::attention::Term* wanted = plan.differentiated();
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
  results.on_tensor_cores = fits_tensor_cores(plan);
  if (const Term* wanted = plan.differentiated()) {
    constexpr int64_t kMostOfGrid = 65535;
    if (plan.n > kMostOfGrid * 16) return Prepared::no("too many keys for the gradient of a term");
    results.has_term = true;
    results.of_term = wanted->gradient;
    if (std::string why = plan_term_gradient(plan, results.term); !why.empty())
      return Prepared::no(why);
  }
  return cpu::for_math_type(plan.dtype, [&]<class M>() {
    return for_head_size<M>(
        plan, [&]<int kSize>() { return gradient_kernel<M, kSize>(planned, results); });
  });
}

}  // namespace halfnote::HN_CUDA
