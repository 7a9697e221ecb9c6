// ArgMax, ArgMin and TopK. Lines whose elements are adjacent get a block each; lines that lie side
// by side, and short ones, a thread each. Both look through a line once for each element that they
// pick: where these are many, all lines are sorted together.
#include "kernels/cpu/reduction/along.h"

#include "kernels/cuda/elements.h"
#include "kernels/cuda/movement/sort.h"
#include "kernels/cuda/reduction/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::Along;
using math::Order;

constexpr unsigned kLineWarps = kAlongBlock / 32;

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
    int64_t best = first(threadIdx.x, kAlongBlock, previous);
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
__global__ void __launch_bounds__(kAlongBlock) pick_by_blocks(Picks<X> picks) {
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
    launch(stream, pick_by_blocks<X>, line_blocks(picks.along), kAlongBlock, 0, picks);
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

/// Elements as whole numbers in their order: keys of a sort.
struct OrderedKeys {
  int bits = 32, drop = 0;  // of a key; bits of an f32 that its 16-bit type leaves 0
  int64_t least = 0;        // of an integer type
  Order order;

  OrderedKeys(DType dtype, const Order& of_elements) : order(of_elements) {
    constexpr int kOfF32 = 32, kMantissa = 23;
    if (!is_float(dtype)) {
      bits = dtype == DType::kBool ? 1 : 8 * static_cast<int>(size_of(dtype));
      const bool wide = bits == 64;  // of u64 with its sign bit flipped
      if (wide || !(is_unsigned(dtype) || dtype == DType::kBool))
        least = std::numeric_limits<int64_t>::min() >> (64 - bits);
      return;
    }
    if (dtype == DType::kF16) drop = kMantissa - 10;
    if (dtype == DType::kBF16) drop = kMantissa - 7;
    bits = dtype == DType::kF64 ? 64 : kOfF32 - drop;
  }
  __device__ uint64_t all_bits() const {
    return bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  }
  __device__ uint64_t of(float value) const { return of_float<uint32_t>(value); }
  __device__ uint64_t of(double value) const { return of_float<uint64_t>(value); }
  __device__ uint64_t of(int64_t value) const {
    return turned(static_cast<uint64_t>(value) - static_cast<uint64_t>(least));
  }

 private:
  __device__ uint64_t turned(uint64_t key) const { return order.largest ? all_bits() - key : key; }
  template <class U, class M>
  __device__ uint64_t of_float(M value) const {
    if (value != value) return order.nan_first ? 0 : all_bits();
    if (value == 0) value = 0;  // of either sign
    constexpr U kSign = U{1} << (8 * sizeof(U) - 1);
    U pattern;
    memcpy(&pattern, &value, sizeof(value));
    pattern = (pattern & kSign) != 0 ? ~pattern : pattern | kSign;
    return turned(pattern >> drop);
  }
};

/// A word of the key of the elements at `positions`, counted line by line. Behind the words of the
/// element's own comes its line, which counts most.
template <class X>
struct WriteWord {
  X x;
  Along along;
  OrderedKeys keys;
  Divisor dim;
  bool is_line;
  int shift;
  const uint32_t* positions;  // null: i
  uint32_t* to;
  __device__ void operator()(int64_t i) const {
    const int64_t position = positions == nullptr ? i : positions[i];
    const int64_t line = dim.quotient(position);
    if (is_line) {
      to[i] = static_cast<uint32_t>(line);
      return;
    }
    const int64_t at = along.start(line) + (position - line * dim.value()) * along.inner;
    to[i] = static_cast<uint32_t>(keys.of(x[at]) >> shift);
  }
};

template <class X>
struct TakeSorted {
  Picks<X> picks;
  const uint32_t* positions;
  Divisor count;  // of a line's
  __device__ void operator()(int64_t i) const {
    const int64_t line = count.quotient(i), rank = i - line * count.value();
    const int64_t begin = line * picks.along.dim;
    picks.write(line, rank, positions[begin + rank] - begin);
  }
};

PositionSort sort_of(const Along& along, const OrderedKeys& keys) {
  std::vector<int> bits = {std::min(keys.bits, 32)};
  if (keys.bits > 32) bits.push_back(keys.bits - 32);
  if (along.lines() > 1) bits.push_back(PositionSort::bits_below(along.lines()));
  return {along.lines() * along.dim, std::move(bits)};
}

/// Is it sooner done to sort all lines? By what a GPU as an H100 is thought to take, in µs: nothing
/// of it was measured.
bool sorts(const cpu::TopKPlan& plan, const PositionSort& sort) {
  constexpr double kLaunch = 2.5, kBytes = 2e6, kMoved = 24;  // bytes: an element in a launch
  constexpr double kLook = 0.05, kBlockLook = 0.2, kBlockPick = 1;
  // More room than this has to be worth it: picking takes none.
  constexpr int64_t kRoom = int64_t{2} << 30;
  constexpr double kWorth = 100;
  const int64_t lines = plan.along.lines(), count = lines * plan.along.dim;
  if (count == 0 || plan.picked.dim == 0 || count >= int64_t{1} << 32) return false;
  const auto waves = [&](int64_t at_once) {
    return static_cast<double>((lines + at_once - 1) / at_once);
  };
  const auto dim = static_cast<double>(plan.along.dim);
  const double by_blocks =
      waves(kMultiprocessors * 8) * (kBlockPick + dim / kAlongBlock * kBlockLook);
  const double by_threads = waves(kMultiprocessors * 2048) * dim * kLook;
  const double pick = wants_blocks(plan.along) ? by_blocks : by_threads;
  const double sorting = static_cast<double>(sort.launches()) *
                         (kLaunch + static_cast<double>(count) * kMoved / 3 / kBytes);
  const double worth = static_cast<int64_t>(sort.workspace_bytes()) > kRoom ? kWorth : 1;
  return pick * static_cast<double>(plan.picked.dim) > worth * sorting;
}

template <class X>
Prepared sorting_kernel(const cpu::TopKPlan& plan, DType dtype, const PositionSort& sort) {
  const OrderedKeys keys(dtype, plan.order);
  const auto body = [=](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const Along& along = plan.along;
    const X x = X::of(buffers.inputs[0], dtype, Use::kOrder);
    const size_t of_element = keys.bits > 32 ? 2 : 1;
    const auto write = [&](size_t word, const uint32_t* positions, uint32_t* to) {
      for_each(stream, along.lines() * along.dim,
               WriteWord<X>{x, along, keys, Divisor(along.dim), word == of_element,
                            32 * static_cast<int>(word), positions, to});
    };
    const SortedPositions sorted = sort.sort(stream, buffers.workspace, write);
    const Picks<X> picks{
        x, along, plan.picked, plan.order, buffers.out<std::byte>(0), buffers.out<int64_t>(1)};
    for_each(stream, along.lines() * plan.picked.dim,
             TakeSorted<X>{picks, sorted.positions, Divisor(plan.picked.dim)});
  };
  return make_kernel(body, sort.workspace_bytes());
}

Prepared prepare_top_k(const KernelCall& call) {
  cpu::TopKPlan plan;
  if (std::string why = cpu::plan_top_k(call, plan); !why.empty()) return Prepared::no(why);
  if (call.has_output(1) && call.outputs[1].dtype != DType::kI64) {
    return Prepared::no("wrong type of the indices");
  }
  const DType dtype = call.inputs[0].dtype;
  return for_elements(dtype, [&]<class X>() {
    const PositionSort sort = sort_of(plan.along, OrderedKeys(dtype, plan.order));
    if (sorts(plan, sort)) return sorting_kernel<X>(plan, dtype, sort);
    return make_kernel([plan, dtype](const KernelBuffers& buffers) {
      run_picks(stream_of(buffers),
                Picks<X>{X::of(buffers.inputs[0], dtype, Use::kOrder), plan.along, plan.picked,
                         plan.order, buffers.out<std::byte>(0), buffers.out<int64_t>(1)});
    });
  });
}

}  // namespace

std::vector<KernelRow> along_rows() {
  return {
      {"", "ArgMax", "own.along", prepare_arg<true>},
      {"", "ArgMin", "own.along", prepare_arg<false>},
      {"", "TopK", "own.along", prepare_top_k},
  };
}

}  // namespace halfnote::HN_CUDA
