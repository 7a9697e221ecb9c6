// SoftmaxCrossEntropyLossWithGradient: the loss and, from the same scores, its gradient, a block a
// position. A line that fits into shared memory is read once from memory, a longer one twice: for
// the logarithm of Σ exp(x), and for the gradient. No probability goes to memory. Padding behind
// the classes (attribute `classes`) is not read, and gets the gradient 0. Where classes are
// innermost, elements go in packs of 16 bytes from the first aligned one on.
#include "kernels/cuda/loss/parts.h"
#include "kernels/cuda/packs.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::LogSumExp;
using cpu::part;

/// Threads of a block, for short lines and for long ones.
constexpr unsigned kShortBlock = 256, kLongBlock = 512;
constexpr int64_t kLongLine = 4096;
/// Of a block's shared memory that holds no part of a line.
constexpr int64_t kOwnShared = 512;

/// exp(x + more). For 16-bit scores it is the hardware's own, wrong by 2 + 1.2·|x| ulp of f32:
/// probabilities that 16 bits tell from 0 beside the largest are within 2^-18. `more` is small.
template <class T>
__device__ __forceinline__ Math<T> exp_for(Math<T> x, Math<T> more = 0) {
  if constexpr (sizeof(T) == 2) {
    constexpr float kLog2OfE = 1.4426950408889634f;
    return fast_exp2(fmaf(x, kLog2OfE, more * kLog2OfE));
  } else {
    return math::exp(x + more);
  }
}

/// A gradient of any type.
struct AnyGradient {
  RealOutput to;
  template <int V, class M>
  __device__ void write(int64_t at, const M (&values)[V]) const {
    for (int k = 0; k < V; ++k) to.write(at + k, static_cast<double>(values[k]));
  }
};

template <class U>
struct TypedGradient {
  U* to;
  template <int V, class M>
  __device__ void write(int64_t at, const M (&values)[V]) const {
    Math<U> numbers[V];
    HN_UNROLL
    for (int k = 0; k < V; ++k) numbers[k] = static_cast<Math<U>>(values[k]);
    store_packed(to + at, pack_of<U>(numbers));
  }
};

/// Elements of a line that lie side by side: those in front of the first pack, packs, and the rest.
template <int V>
struct InPacks {
  int64_t head, packs, length;

  /// `start`: place of the line's first element, of which each Vth is aligned.
  __device__ InPacks(int64_t start, int64_t elements) : length(elements) {
    const int64_t gap = (V - start % V) % V;
    head = gap < length ? gap : length;
    packs = (length - head) / V;
  }
  __device__ int64_t pack(int64_t p) const { return head + p * V; }
  /// Of the elements outside of packs, fewer than 2·V, that of a thread; `length` if it has none.
  __device__ int64_t single() const {
    const int64_t t = threadIdx.x;
    const int64_t i = t < head ? t : t + packs * V;
    return i < length ? i : length;
  }
};

/// Calls `body(i, pack)` for the packs and single elements of a line, the block's threads by turns;
/// what a thread takes it takes in every walk. Loads of several packs are under way at once.
template <int V, unsigned kThreads, class T, class Body>
__device__ __forceinline__ void walk_line(const T* x, const InPacks<V>& line, const Body& body) {
  constexpr int kAhead = 4;
  for (int64_t first = threadIdx.x; first < line.packs; first += kAhead * int64_t{kThreads}) {
    Packed<T, V> own[kAhead];
    HN_UNROLL
    for (int j = 0; j < kAhead; ++j) {
      const int64_t p = first + j * int64_t{kThreads};
      if (p < line.packs) own[j] = load_packed<V>(x + line.pack(p));
    }
    HN_UNROLL
    for (int j = 0; j < kAhead; ++j) {
      const int64_t p = first + j * int64_t{kThreads};
      if (p < line.packs) body(line.pack(p), own[j]);
    }
  }
  if constexpr (V > 1) {
    if (const int64_t i = line.single(); i < line.length) body(i, load_packed<1>(x + i));
  }
}

/// The largest number that a thread has seen and Σ exp(x − it).
template <class T>
struct RunningSum {
  using M = Math<T>;
  M most = -static_cast<M>(INFINITY);
  double sum = 0;

  /// The sum over a pack is in M, sums of packs are in f64.
  template <int V>
  __device__ __forceinline__ void add(const Packed<T, V>& pack) {
    M values[V], largest = most;
    HN_UNROLL
    for (int k = 0; k < V; ++k) {
      values[k] = load_number(pack.of[k]);
      largest = fmax(largest, values[k]);  // a NaN is in the sum
    }
    if (largest > most) {
      sum *= static_cast<double>(exp_for<T>(most - largest));
      most = largest;
    }
    // As long as all are −∞ there is nothing to subtract.
    const M base = most == -static_cast<M>(INFINITY) ? M(0) : most;
    M of_pack = 0;
    HN_UNROLL
    for (int k = 0; k < V; ++k) of_pack += exp_for<T>(values[k] - base);
    sum += static_cast<double>(of_pack);
  }
  /// The logarithm of the sum over the block.
  template <unsigned kThreads>
  __device__ LogSumExp log_of_block() const {
    const M largest = merge_block<KeepLargerScore, kThreads>(most);
    // An infinity makes NaN of the sum here, as it does where each element is subtracted from it.
    const double own = sum * static_cast<double>(math::exp(most - largest));
    return {static_cast<double>(largest), math::log(merge_block<AddNumbers, kThreads>(own))};
  }
};

/// The gradient of a position: (probability − is it the label?) · factor.
template <class T>
struct Slopes {
  using M = Math<T>;
  M high, low;  // the logarithm of the sum, its rest in f32
  M factor;

  __device__ Slopes(const LogSumExp& log_sum, double of_all)
      : high(static_cast<M>(log_sum.most + log_sum.rest)),
        low(static_cast<M>((log_sum.most - static_cast<double>(high)) + log_sum.rest)),
        factor(static_cast<M>(of_all)) {}

  /// Of another element than the label.
  __device__ __forceinline__ M of(M score) const { return exp_for<T>(score - high, -low) * factor; }
  __device__ __forceinline__ M of_label(M score) const {
    return (exp_for<T>(score - high, -low) - M(1)) * factor;
  }
};

/// What is done for one position.
struct OneLine {
  int64_t position, start, label;
  double* losses;

  /// The loss, and what the gradient is made of.
  template <class T>
  __device__ Slopes<T> finish(const DeviceLoss& loss, const DeviceUpstream& upstream, double score,
                              const LogSumExp& log_sum) const {
    if (threadIdx.x == 0) {
      losses[position] =
          loss.inside(label) ? loss.weights[position] * ((log_sum.most - score) + log_sum.rest) : 0;
    }
    return {log_sum, upstream.at(loss, position)};
  }
};

/// Classes innermost: `shared` keeps the line, or is null if it has to be read again.
template <int V, unsigned kThreads, class T, class To>
__device__ void both_of_line(const DeviceLoss& loss, const DeviceUpstream& upstream, const T* x,
                             const OneLine& own, const To& to, T* shared) {
  const InPacks<V> line(own.start, loss.lines.length);
  // Before the gradient, which may lie over the scores, is written.
  const Math<T> score = loss.inside(own.label) ? load_number(x[own.label]) : 0;
  T* const kept = shared == nullptr ? nullptr : shared + own.start % V;  // aligned as the line is
  RunningSum<T> running;
  __syncthreads();  // the line before may still be read, from places that are other threads' now
  walk_line<V, kThreads>(x, line, [&](int64_t i, const auto& pack) {
    running.add(pack);
    if (kept != nullptr) store_packed(kept + i, pack);
  });
  const LogSumExp log_sum = running.template log_of_block<kThreads>();
  const Slopes<T> slopes = own.template finish<T>(loss, upstream, score, log_sum);
  bool has_label = false;
  const auto write = [&](int64_t i, const auto& pack) {
    constexpr int kCount = sizeof(pack) / sizeof(T);
    Math<T> values[kCount];
    HN_UNROLL
    for (int k = 0; k < kCount; ++k) values[k] = slopes.of(load_number(pack.of[k]));
    to.write(own.start + i, values);
    has_label = has_label || (own.label >= i && own.label < i + kCount);
  };
  walk_line<V, kThreads>(kept == nullptr ? x : static_cast<const T*>(kept), line, write);
  if (has_label) {
    const Math<T> value[1] = {slopes.of_label(score)};
    to.write(own.start + own.label, value);
  }
}

/// Classes that lie apart.
template <unsigned kThreads, class T, class To>
__device__ void both_apart(const DeviceLoss& loss, const DeviceUpstream& upstream, const T* x,
                           const OneLine& own, const To& to, T* shared) {
  const Lines& lines = loss.lines;
  const Math<T> score = loss.inside(own.label) ? load_number(x[own.label * lines.stride]) : 0;
  RunningSum<T> running;
  HN_UNROLL_BY_4
  for (int64_t i = threadIdx.x; i < lines.length; i += kThreads) {
    const Packed<T, 1> element = {x[i * lines.stride]};
    running.add(element);
    if (shared != nullptr) store_packed(shared + i, element);
  }
  const LogSumExp log_sum = running.template log_of_block<kThreads>();
  const Slopes<T> slopes = own.template finish<T>(loss, upstream, score, log_sum);
  HN_UNROLL_BY_4
  for (int64_t i = threadIdx.x; i < lines.length; i += kThreads) {
    const Math<T> own_score = load_number(shared != nullptr ? shared[i] : x[i * lines.stride]);
    const Math<T> value[1] = {i == own.label ? slopes.of_label(own_score) : slopes.of(own_score)};
    to.write(own.start + i * lines.stride, value);
  }
}

/// From element `first` of a line on, with the padding behind it.
template <int V, unsigned kThreads, class M, class To>
__device__ void zero_line(const DeviceLoss& loss, int64_t start, int64_t first, const To& to) {
  const M zero[1] = {0};
  const int64_t stride = loss.lines.stride;
  const int64_t count = loss.lines.length + loss.lines.padding - first;
  start += first * stride;
  const M zeros[V] = {};
  const InPacks<V> line(V == 1 ? 0 : start, count);
  for (int64_t p = threadIdx.x; p < line.packs; p += kThreads)
    to.write(start + line.pack(p) * stride, zeros);
  if constexpr (V > 1) {
    if (const int64_t i = line.single(); i < count) to.write(start + i, zero);
  }
}

/// V: elements at once where classes are innermost; 1 if they are not, or not aligned.
template <int V, unsigned kThreads, class T, class To>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 8 ? 1 : 1024 / kThreads)
    both_lines(DeviceLoss loss, DeviceUpstream upstream, const T* scores, To to, bool in_shared,
               double* losses) {
  HN_DYNAMIC_SHARED(T, room);
  T* shared = in_shared ? room : nullptr;
  for (int64_t position = blockIdx.x; position < loss.lines.count; position += gridDim.x) {
    const int64_t label = loss.labels.raw(position), start = loss.start(position);
    const bool counts = loss.counts(label);
    zero_line<V, kThreads, Math<T>>(loss, start, counts ? loss.lines.length : 0, to);
    if (!counts) {
      if (threadIdx.x == 0) losses[position] = 0;
      continue;
    }
    const OneLine own = {position, start, label, losses};
    if (loss.lines.stride == 1) {
      both_of_line<V, kThreads>(loss, upstream, scores + start, own, to, shared);
    } else {
      both_apart<kThreads>(loss, upstream, scores + start, own, to, shared);
    }
  }
}

struct BothCall {
  PlannedLoss planned;
  cpu::LossAndGradPlan plan;
  DType type;

  /// `to` starts at `address`.
  template <class T, class To>
  void run(const KernelBuffers& buffers, const To& to, const void* address) const {
    constexpr int kPack = 16 / sizeof(T);
    const bool in_packs =
        planned.plan.lines.stride == 1 && are_aligned<2>({buffers.inputs[0], address});
    const bool is_long = planned.plan.lines.length >= kLongLine;
    if (in_packs) {
      is_long ? run_as<kPack, kLongBlock, T>(buffers, to)
              : run_as<kPack, kShortBlock, T>(buffers, to);
    } else {
      is_long ? run_as<1, kLongBlock, T>(buffers, to) : run_as<1, kShortBlock, T>(buffers, to);
    }
  }

  template <int V, unsigned kThreads, class T, class To>
  void run_as(const KernelBuffers& buffers, const To& to) const {
    const DeviceLoss loss = planned.on_device(buffers);
    planned.weigh(buffers, loss);
    auto* losses = part<double>(buffers, plan.losses_offset);
    const int64_t blocks = std::min<int64_t>(loss.lines.count, kMaxBlocks);
    const int64_t bytes = (loss.lines.length + V - 1) * static_cast<int64_t>(sizeof(T));
    const bool in_shared = bytes <= most_shared(stream_of(buffers)) - kOwnShared;
    launch(stream_of(buffers), both_lines<V, kThreads, T, To>, static_cast<unsigned>(blocks),
           kThreads, in_shared ? static_cast<size_t>(bytes) : 0, loss,
           on_device(plan.upstream, buffers), buffers.in<T>(0), to, in_shared, losses);
    planned.reduce(buffers, loss, losses, type);
  }
};

/// The scores' type and the types that the gradient often has beside it; others are written by
/// element.
template <class T>
Prepared both_kernel(const KernelCall& call, const BothCall& both, size_t workspace) {
  const DType gradient = call.outputs[1].dtype;
  const auto typed = [&]<class U>() {
    return make_kernel(
        [both](const KernelBuffers& buffers) {
          both.run<T>(buffers, TypedGradient<U>{buffers.out<U>(1)}, buffers.outputs[1]);
        },
        workspace,
        [](size_t input, size_t output) {
          return input == 0 && output == 1 && sizeof(T) == sizeof(U);
        });
  };
  if (gradient == dtype_of<T>()) return typed.template operator()<T>();
  if constexpr (std::is_same_v<T, float>) {
    if (gradient == DType::kBF16) return typed.template operator()<BFloat16>();
    if (gradient == DType::kF16) return typed.template operator()<Half>();
  }
  return make_kernel(
      [both, gradient](const KernelBuffers& buffers) {
        both.run<T>(buffers, AnyGradient{{buffers.outputs[1], gradient}}, nullptr);
      },
      workspace);
}

Prepared prepare_both(const KernelCall& call) {
  cpu::WorkspacePlan workspace;
  BothCall both;
  both.plan = cpu::plan_loss_and_grad(call, workspace);
  if (std::string why = cpu::loss_and_grad_refusal(call, both.plan.loss); !why.empty())
    return Prepared::no(why);
  both.planned = {both.plan.loss, workspace.add_elements<double>(1)};
  both.type = call.outputs[0].dtype;
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return both_kernel<T>(call, both, workspace.size()); });
}

}  // namespace

std::vector<KernelRow> loss_and_grad_rows() {
  return {
      {"ai.halfnote", "SoftmaxCrossEntropyLossWithGradient", "own.cross_entropy", prepare_both}};
}

}  // namespace halfnote::HN_CUDA
