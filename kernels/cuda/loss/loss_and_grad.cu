// SoftmaxCrossEntropyLossWithGradient: the loss and, from the same scores, its gradient, a block a
// position. A line that fits into shared memory is read once from memory, a longer one twice: for
// the logarithm of Σ exp(x), and for the gradient. No probability goes to memory.
#include "kernels/cuda/loss/parts.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::part;

constexpr unsigned kBothBlock = 256;
/// Of a line; two blocks of them fit on an H100, one on every GPU.
constexpr int64_t kMostShared = 98 * 1024 + 512;

/// V elements that are read or written at once.
template <class T, int V>
struct alignas(V * sizeof(T) < 16 ? V * sizeof(T) : 16) Pack {
  T values[V];
};

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
    Pack<U, V> pack;
    for (int k = 0; k < V; ++k) pack.values[k] = store_number<U>(static_cast<Math<U>>(values[k]));
    *reinterpret_cast<Pack<U, V>*>(to + at) = pack;
  }
};

/// Calls `body(i, values)` for V elements from i on, for all of a line whose elements are `stride`
/// apart (1 if V > 1). Each block's threads take them by turns.
template <int V, class T, class Body>
__device__ void walk_line(const T* x, int64_t length, int64_t stride, const Body& body) {
  const int64_t packs = length / V;
  HN_UNROLL_BY_4
  for (int64_t p = threadIdx.x; p < packs; p += kBothBlock) {
    Math<T> values[V];
    if constexpr (V == 1) {
      values[0] = load_number(x[p * stride]);
    } else {
      const auto pack = *reinterpret_cast<const Pack<T, V>*>(x + p * V);
      for (int k = 0; k < V; ++k) values[k] = load_number(pack.values[k]);
    }
    body(p * V, values);
  }
  if constexpr (V > 1) {
    const int64_t i = packs * V + threadIdx.x;
    if (i >= length) return;
    const Math<T> value[1] = {load_number(x[i])};
    body(i, value);
  }
}

/// The largest number that a thread has seen and Σ exp(x − it).
template <class M>
struct RunningSum {
  M most = -INFINITY;
  double sum = 0;

  __device__ void add(M value) {
    if (value > most) {
      sum = sum * static_cast<double>(math::exp(most - value)) + 1;
      most = value;
    } else if (value != -static_cast<M>(INFINITY)) {  // nor is a NaN
      sum += static_cast<double>(math::exp(value - most));
    }
  }
  /// The logarithm of the sum over the block.
  __device__ double log_of_block() const {
    const M largest = merge_block<KeepLargerScore, kBothBlock>(most);
    // An infinity makes NaN of the sum here, as it does where each element is subtracted from it.
    const double own = sum * static_cast<double>(math::exp(most - largest));
    return static_cast<double>(largest) + math::log(merge_block<AddNumbers, kBothBlock>(own));
  }
};

/// One position: `shared` keeps the line, or is null if it has to be read again.
template <int V, class T, class To>
__device__ void both_of_line(const DeviceLoss& loss, const DeviceUpstream& upstream, const T* x,
                             int64_t position, const To& to, T* shared, double* losses) {
  const Lines& lines = loss.lines;
  const int64_t label = loss.labels.raw(position), start = loss.start(position);
  // Before the gradient, which may lie over the scores, is written.
  const double score = loss.inside(label) ? load_number(x[label * lines.stride]) : 0;
  RunningSum<Math<T>> running;
  walk_line<V>(x, lines.length, lines.stride, [&](int64_t i, const auto& values) {
    int64_t at = i;
    for (const Math<T> value : values) {
      running.add(value);
      if (shared != nullptr) shared[at++] = store_number<T>(value);
    }
  });
  const double log_sum = running.log_of_block();  // and a barrier: `shared` is whole
  const double factor = upstream.at(loss, position);
  if (threadIdx.x == 0) {
    losses[position] = loss.inside(label) ? loss.weights[position] * (log_sum - score) : 0;
  }
  const auto write = [&](int64_t i, const auto& values) {
    constexpr int kCount = sizeof(values) / sizeof(Math<T>);
    Math<T> slopes[kCount];
    for (int k = 0; k < kCount; ++k) {
      const auto log_prob = static_cast<Math<T>>(values[k] - log_sum);
      const double probability = math::exp(log_prob);
      slopes[k] = static_cast<Math<T>>((i + k == label ? probability - 1 : probability) * factor);
    }
    to.template write<kCount>(start + i * lines.stride, slopes);
  };
  if (shared != nullptr) {
    walk_line<V>(static_cast<const T*>(shared), lines.length, int64_t{1}, write);
  } else {
    walk_line<V>(x, lines.length, lines.stride, write);
  }
}

template <class T, class To>
__device__ void zero_line(const DeviceLoss& loss, int64_t position, const To& to) {
  const Math<T> zero[1] = {0};
  const int64_t start = loss.start(position);
  for (int64_t i = threadIdx.x; i < loss.lines.length; i += kBothBlock) {
    to.template write<1>(start + i * loss.lines.stride, zero);
  }
}

template <class T, class To>
__global__ void __launch_bounds__(kBothBlock)
    both_lines(DeviceLoss loss, DeviceUpstream upstream, const T* scores, To to, bool in_shared,
               double* losses) {
  HN_DYNAMIC_SHARED(T, room);
  T* shared = in_shared ? room : nullptr;
  constexpr int kPack = 16 / sizeof(T);
  for (int64_t position = blockIdx.x; position < loss.lines.count; position += gridDim.x) {
    if (!loss.counts(loss.labels.raw(position))) {
      zero_line<T>(loss, position, to);
      if (threadIdx.x == 0) losses[position] = 0;
      continue;
    }
    const int64_t start = loss.start(position);
    __syncthreads();  // the line before is still read
    if (loss.lines.stride == 1 && start % kPack == 0) {
      both_of_line<kPack>(loss, upstream, scores + start, position, to, shared, losses);
    } else {
      both_of_line<1>(loss, upstream, scores + start, position, to, shared, losses);
    }
  }
}

struct BothCall {
  PlannedLoss planned;
  cpu::LossAndGradPlan plan;
  DType type;

  template <class T, class To>
  void run(const KernelBuffers& buffers, const To& to) const {
    const DeviceLoss loss = planned.on_device(buffers);
    planned.weigh(buffers, loss);
    auto* losses = part<double>(buffers, plan.losses_offset);
    const int64_t blocks = std::min<int64_t>(loss.lines.count, kMaxBlocks);
    const int64_t bytes = loss.lines.length * static_cast<int64_t>(sizeof(T));
    const bool in_shared = bytes <= kMostShared;
    launch(stream_of(buffers), both_lines<T, To>, static_cast<unsigned>(blocks), kBothBlock,
           in_shared ? static_cast<size_t>(bytes) : 0, loss, on_device(plan.upstream, buffers),
           buffers.in<T>(0), to, in_shared, losses);
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
          both.run<T>(buffers, TypedGradient<U>{buffers.out<U>(1)});
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
        both.run<T>(buffers, AnyGradient{{buffers.outputs[1], gradient}});
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
