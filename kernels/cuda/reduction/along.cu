// Ops along one axis: ArgMax, ArgMin, CumSum, TopK. Lines whose elements are adjacent get a block
// each; lines that lie side by side, and short ones, a thread each. Running sums of a block are
// taken tile by tile, in an order that depends on the shape alone.
#include "kernels/cpu/reduction/along.h"

#include "kernels/cuda/elements.h"
#include "kernels/cuda/reduction/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/math/binary.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::Along;
using math::Order;

constexpr unsigned kLineBlock = 128;
constexpr unsigned kLineWarps = kLineBlock / 32;
constexpr int64_t kShortLine = 64;

/// Is a line worth a block?
bool wants_blocks(const Along& along) { return along.inner == 1 && along.dim > kShortLine; }

unsigned line_blocks(const Along& along) {
  return static_cast<unsigned>(std::min<int64_t>(along.lines(), kMaxBlocks));
}

/// Elements of a line, and the order in which they are picked; index -1 is no element.
template <class X>
struct OrderedLine {
  X x;
  int64_t start, dim, stride;
  Order order;

  __device__ bool before(int64_t a, int64_t b) const {
    if (a < 0 || b < 0) return a >= 0;
    return order.before(x[start + a * stride], a, x[start + b * stride], b);
  }
  /// The first of the elements begin, begin + step, … that come after element `previous`.
  __device__ int64_t first(int64_t begin, int64_t step, int64_t previous) const {
    int64_t best = -1;
    for (int64_t i = begin; i < dim; i += step) {
      if ((previous < 0 || before(previous, i)) && before(i, best)) best = i;
    }
    return best;
  }
  /// The same over all elements, by all threads of a block; each gets the result.
  __device__ int64_t first_of_block(int64_t previous) const {
    HN_SHARED(int64_t[kLineWarps], of_warps);
    int64_t best = first(threadIdx.x, kLineBlock, previous);
    for (int distance = 16; distance > 0; distance /= 2) {
      const int64_t other = __shfl_xor_sync(0xffffffffu, best, distance);
      if (before(other, best)) best = other;
    }
    __syncthreads();  // of_warps may still be read for the last result
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = best;
    __syncthreads();
    best = of_warps[0];
    for (unsigned w = 1; w < kLineWarps; ++w) {
      if (before(of_warps[w], best)) best = of_warps[w];
    }
    return best;
  }
};

/// The first `picked.dim` elements of each line in the order, and their indices; either may be
/// null.
template <class X>
struct Picks {
  X x;
  Along along, picked;
  Order order;
  void* values;
  int64_t* indices;

  __device__ OrderedLine<X> line(int64_t at) const {
    return {x, along.start(at), along.dim, along.inner, order};
  }
  __device__ void write(int64_t line_at, int64_t rank, int64_t index) const {
    const int64_t to = picked.start(line_at) + rank * picked.inner;
    if (values != nullptr) x.copy(along.start(line_at) + index * along.inner, values, to);
    if (indices != nullptr) indices[to] = index;
  }
  /// A line by one thread.
  __device__ void operator()(int64_t at) const {
    int64_t index = -1;
    for (int64_t rank = 0; rank < picked.dim; ++rank) {
      index = line(at).first(0, 1, index);
      write(at, rank, index);
    }
  }
};

template <class X>
__global__ void __launch_bounds__(kLineBlock) pick_by_blocks(Picks<X> picks) {
  for (int64_t at = blockIdx.x; at < picks.along.lines(); at += gridDim.x) {
    int64_t index = -1;
    for (int64_t rank = 0; rank < picks.picked.dim; ++rank) {
      index = picks.line(at).first_of_block(index);
      if (threadIdx.x == 0) picks.write(at, rank, index);
    }
  }
}

template <class X>
void run_picks(Stream& stream, const Picks<X>& picks) {
  if (wants_blocks(picks.along)) {
    launch(stream, pick_by_blocks<X>, line_blocks(picks.along), kLineBlock, 0, picks);
  } else {
    for_each(stream, picks.along.lines(), picks);
  }
}

template <bool kLargest>
Prepared prepare_arg(const KernelCall& call) {
  cpu::ArgPlan plan;
  if (std::string why = cpu::plan_arg(call, kLargest, plan); !why.empty()) {
    return Prepared::no(why);
  }
  const DType dtype = call.inputs[0].dtype;
  return for_elements(dtype, [&]<class X>() {
    return make_kernel([plan, dtype](const KernelBuffers& buffers) {
      const Along picked{plan.along.outer, 1, plan.along.inner};
      run_picks(stream_of(buffers),
                Picks<X>{X::of(buffers.inputs[0], dtype, Use::kOrder), plan.along, picked,
                         plan.order, nullptr, buffers.out<int64_t>(0)});
    });
  });
}

Prepared prepare_top_k(const KernelCall& call) {
  cpu::TopKPlan plan;
  if (std::string why = cpu::plan_top_k(call, plan); !why.empty()) return Prepared::no(why);
  if (call.has_output(1) && call.outputs[1].dtype != DType::kI64) {
    return Prepared::no("wrong type of the indices");
  }
  const DType dtype = call.inputs[0].dtype;
  return for_elements(dtype, [&]<class X>() {
    return make_kernel([plan, dtype](const KernelBuffers& buffers) {
      run_picks(stream_of(buffers),
                Picks<X>{X::of(buffers.inputs[0], dtype, Use::kOrder), plan.along, plan.picked,
                         plan.order, buffers.out<std::byte>(0), buffers.out<int64_t>(1)});
    });
  });
}

/// Sums in f64; those of integers wrap around.
template <class X>
struct RunningSums {
  using A = typename X::Sum;
  X x;
  void* y;  // may be where x is
  Along along;
  bool exclusive, reverse;

  __device__ int64_t place(int64_t line, int64_t i) const {
    return along.start(line) + (reverse ? along.dim - 1 - i : i) * along.inner;
  }
  __device__ A read(int64_t at) const { return static_cast<A>(x[at]); }
  __device__ void write(int64_t at, A sum) const {
    x.write(y, at, static_cast<typename X::M>(sum));
  }
  /// A line by one thread.
  __device__ void operator()(int64_t line) const {
    A sum = 0;
    for (int64_t i = 0; i < along.dim; ++i) {
      const int64_t at = place(line, i);
      const A next = math::Add::value(sum, read(at));
      write(at, exclusive ? sum : next);
      sum = next;
    }
  }
};

/// The sum of the values of all threads before this one; `total` becomes that of all threads.
template <class A>
__device__ A sum_before(A value, A& total) {
  HN_SHARED(A[kLineWarps], of_warps);
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  A inclusive = value;
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const A other = __shfl_up_sync(0xffffffffu, inclusive, distance);
    if (lane >= distance) inclusive = math::Add::value(other, inclusive);
  }
  A before = __shfl_up_sync(0xffffffffu, inclusive, 1);
  if (lane == 0) before = 0;
  __syncthreads();  // of_warps may still be read for the last tile
  if (lane == 31) of_warps[warp] = inclusive;
  __syncthreads();
  A of_earlier = 0;
  total = 0;
  for (unsigned w = 0; w < kLineWarps; ++w) {
    if (w == warp) of_earlier = total;
    total = math::Add::value(total, of_warps[w]);
  }
  return math::Add::value(of_earlier, before);
}

template <class X>
__global__ void __launch_bounds__(kLineBlock) sum_by_blocks(RunningSums<X> sums) {
  using A = typename X::Sum;
  for (int64_t line = blockIdx.x; line < sums.along.lines(); line += gridDim.x) {
    A of_tiles = 0;
    for (int64_t tile = 0; tile < sums.along.dim; tile += kLineBlock) {
      const int64_t i = tile + threadIdx.x;
      const bool inside = i < sums.along.dim;
      const int64_t at = inside ? sums.place(line, i) : 0;
      const A value = inside ? sums.read(at) : A(0);
      A of_tile;
      const A before = math::Add::value(of_tiles, sum_before(value, of_tile));
      if (inside) sums.write(at, sums.exclusive ? before : math::Add::value(before, value));
      of_tiles = math::Add::value(of_tiles, of_tile);
    }
  }
}

Prepared prepare_cum_sum(const KernelCall& call) {
  cpu::CumSumPlan plan;
  if (std::string why = cpu::plan_cum_sum(call, plan); !why.empty()) return Prepared::no(why);
  const DType dtype = call.inputs[0].dtype;
  if (dtype == DType::kBool) return Prepared::no("not for bool");
  return for_elements(dtype, [&]<class X>() {
    const auto body = [plan, dtype](const KernelBuffers& buffers) {
      const RunningSums<X> sums{X::of(buffers.inputs[0], dtype, Use::kSum), buffers.outputs[0],
                                plan.along, plan.exclusive, plan.reverse};
      if (wants_blocks(plan.along)) {
        launch(stream_of(buffers), sum_by_blocks<X>, line_blocks(plan.along), kLineBlock, 0, sums);
      } else {
        for_each(stream_of(buffers), plan.along.lines(), sums);
      }
    };
    return make_kernel(body, 0, [](size_t input, size_t) { return input == 0; });
  });
}

}  // namespace

std::vector<KernelRow> along_rows() {
  return {
      {"", "ArgMax", "own.along", prepare_arg<true>},
      {"", "ArgMin", "own.along", prepare_arg<false>},
      {"", "CumSum", "own.along", prepare_cum_sum},
      {"", "TopK", "own.along", prepare_top_k},
  };
}

}  // namespace halfnote::HN_CUDA
