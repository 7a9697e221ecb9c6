// Softmax, LogSoftmax and their gradients; Hardmax. Lines along the last axis of up to 8192
// elements are kept in registers (held.h), with sums in f32, in f64 for f64; others are read
// several times by a block of threads a line, with sums in f64 as on the CPU. All are merged in a
// fixed order.
#include "kernels/cpu/normalization/parts.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/normalization/held.h"
#include "kernels/cuda/normalization/lines.h"
#include "kernels/cuda/normalization/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::Lines;
using cpu::model_error;

struct KeepLarger {
  template <class A>
  __device__ static A merge(A a, A b) {
    return a > b ? a : b;  // NaN is in the sum anyway
  }
};

template <class T, bool kLog, int V, unsigned kLanes>
__global__ void __launch_bounds__(kHeldBlock) softmax_held(const T* x, T* y, Lines lines) {
  using M = Math<T>;
  constexpr int kPacks = kHeld<M> / V;
  constexpr int64_t kGroups = kHeldBlock / kLanes;
  for (int64_t line = blockIdx.x * kGroups + threadIdx.x / kLanes; line < lines.count;
       line += gridDim.x * kGroups) {
    const int64_t first = line * lines.length;
    Packed<T, V> own[kPacks];
    M largest = -INFINITY, sum = 0;
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int i) {
      own[k] = load_packed<V>(x + first + i);
      HN_UNROLL
      for (int v = 0; v < V; ++v) largest = KeepLarger::merge(load_number(own[k].of[v]), largest);
    });
    largest = merge_line<KeepLarger, kLanes>(largest);
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int) {
      HN_UNROLL
      for (int v = 0; v < V; ++v) sum += math::exp(load_number(own[k].of[v]) - largest);
    });
    sum = sum_of_line<kLanes>(sum);
    const M log_sum = math::log(sum);
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int i) {
      M to[V];
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        const M value = load_number(own[k].of[v]) - largest;
        to[v] = kLog ? value - log_sum : math::exp(value) / sum;
      }
      store_packed(y + first + i, pack_of<T>(to));
    });
  }
}

template <class T, bool kLog, int V, unsigned kLanes>
__global__ void __launch_bounds__(kHeldBlock)
    softmax_grad_held(const T* dy, const T* y, T* dx, Lines lines) {
  using M = Math<T>;
  constexpr int kPacks = kHeld<M> / V;
  constexpr int64_t kGroups = kHeldBlock / kLanes;
  for (int64_t line = blockIdx.x * kGroups + threadIdx.x / kLanes; line < lines.count;
       line += gridDim.x * kGroups) {
    const int64_t first = line * lines.length;
    Packed<T, V> own_dy[kPacks], own_y[kPacks];
    M total = 0;
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int i) {
      own_dy[k] = load_packed<V>(dy + first + i);
      own_y[k] = load_packed<V>(y + first + i);
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        const M g = load_number(own_dy[k].of[v]);
        total += kLog ? g : g * load_number(own_y[k].of[v]);
      }
    });
    total = sum_of_line<kLanes>(total);
    for_packs<V, kPacks, kLanes>(lines.length, [&](int k, int i) {
      M to[V];
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        const M g = load_number(own_dy[k].of[v]), of_y = load_number(own_y[k].of[v]);
        to[v] = kLog ? g - math::exp(of_y) * total : of_y * (g - total);
      }
      store_packed(dx + first + i, pack_of<T>(to));
    });
  }
}

/// Do lines lie together, and fit into the registers of a block?
template <class T>
bool held_softmax(const Lines& lines) {
  return lines.stride == 1 && lines.length <= kBlockLine<Math<T>>;
}

/// Calls `body.template operator()<V, kLanes>()`, as for_held().
template <class T, size_t N, class Body>
void for_held_lines(const HeldLines& held, const Lines& lines,
                    const std::array<const void*, N>& addresses, const Body& body) {
  const bool whole = lines.length % (16 / static_cast<int64_t>(sizeof(T))) == 0;
  for_held<T>(held, whole && are_aligned<N>(addresses), body);
}

template <class T, bool kLog>
__global__ void __launch_bounds__(kLineBlock) softmax_lines(const T* x, T* y, Lines lines) {
  using M = Math<T>;
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const int64_t start = line / lines.stride * lines.length * lines.stride + line % lines.stride;
    M largest = -INFINITY;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const M value = load_number(x[start + i * lines.stride]);
      largest = value > largest ? value : largest;
    }
    largest = merge_block<KeepLarger, kLineBlock>(largest);
    double sum = 0;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      sum += math::exp(load_number(x[start + i * lines.stride]) - largest);
    }
    sum = merge_block<AddNumbers, kLineBlock>(sum);
    const M divisor = static_cast<M>(sum), log_sum = static_cast<M>(math::log(sum));
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const int64_t at = start + i * lines.stride;
      const M value = load_number(x[at]) - largest;
      y[at] = store_number<T>(kLog ? value - log_sum : math::exp(value) / divisor);
    }
  }
}

template <class T, bool kLog>
__global__ void __launch_bounds__(kLineBlock)
    softmax_grad_lines(const T* dy, const T* y, T* dx, Lines lines) {
  using M = Math<T>;
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const int64_t start = line / lines.stride * lines.length * lines.stride + line % lines.stride;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const int64_t at = start + i * lines.stride;
      const double g = load_number(dy[at]);
      sum += kLog ? g : g * load_number(y[at]);
    }
    const M total = static_cast<M>(merge_block<AddNumbers, kLineBlock>(sum));
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const int64_t at = start + i * lines.stride;
      const M g = load_number(dy[at]), of_y = load_number(y[at]);
      dx[at] = store_number<T>(kLog ? g - math::exp(of_y) * total : of_y * (g - total));
    }
  }
}

template <bool kLog>
Prepared prepare_softmax(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) throw model_error(call, "X or Y is missing");
  if (call.outputs[0].dtype != call.inputs[0].dtype)
    return Prepared::no("X and Y of different types");
  const Lines lines =
      cpu::lines_along(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const HeldLines held = HeldLines::plan<Math<T>>(lines, 0);
    const auto body = [lines, held](const KernelBuffers& buffers) {
      const T* x = buffers.in<T>(0);
      T* y = buffers.out<T>(0);
      if (!held_softmax<T>(lines)) {
        launch(stream_of(buffers), softmax_lines<T, kLog>, line_blocks(lines.count), kLineBlock, 0,
               x, y, lines);
        return;
      }
      for_held_lines<T, 2>(held, lines, {x, y}, [&]<int V, unsigned kLanes>() {
        launch(stream_of(buffers), softmax_held<T, kLog, V, kLanes>,
               static_cast<unsigned>(held.blocks), kHeldBlock, 0, x, y, lines);
      });
    };
    return make_kernel(body, 0, [](size_t, size_t) { return true; });
  });
}

/// 1 at the first maximum of a line, 0 elsewhere; a block a line. NaN is larger than nothing.
template <class M>
__global__ void __launch_bounds__(kLineBlock)
    hardmax_lines(RealPointer x, RealOutput y, Lines lines) {
  HN_SHARED(M[kLineBlock], values);
  HN_SHARED(int64_t[kLineBlock], places);
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const int64_t start = line / lines.stride * lines.length * lines.stride + line % lines.stride;
    const M first = x.load<M>(start);
    M most = first;
    int64_t best = 0;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const M value = x.load<M>(start + i * lines.stride);
      if (value > most) {
        most = value;
        best = i;
      }
    }
    values[threadIdx.x] = most;
    places[threadIdx.x] = best;
    __syncthreads();
    for (unsigned t = 0; t < kLineBlock; ++t) {
      if (values[t] > most || (values[t] == most && places[t] < best)) {
        most = values[t];
        best = places[t];
      }
    }
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      y.write(start + i * lines.stride, M(i == best ? 1 : 0));
    }
    __syncthreads();  // the shared values are written anew
  }
}

Prepared prepare_hardmax(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) throw model_error(call, "X or Y is missing");
  const DType dtype = call.inputs[0].dtype;
  if (call.outputs[0].dtype != dtype) return Prepared::no("X and Y of different types");
  const Lines lines =
      cpu::lines_along(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  return cpu::for_math_type(dtype, [&]<class M>() {
    const auto body = [lines, dtype](const KernelBuffers& buffers) {
      if (lines.length == 0) return;
      launch(stream_of(buffers), hardmax_lines<M>, line_blocks(lines.count), kLineBlock, 0,
             RealPointer{buffers.inputs[0], dtype}, RealOutput{buffers.outputs[0], dtype}, lines);
    };
    return make_kernel(body);
  });
}

template <bool kLog>
Prepared prepare_softmax_grad(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0)) {
    throw model_error(call, "an operand is missing");
  }
  cpu::require_size(call, 0, call.inputs[1].size());
  const DType type = call.inputs[0].dtype;
  if (call.inputs[1].dtype != type || call.outputs[0].dtype != type) {
    return Prepared::no("operands of different types");
  }
  const Lines lines =
      cpu::lines_along(call.inputs[1].shape, attributes_of(call).get_int("axis", -1));
  return for_float_type(type, [&]<class T>() {
    const HeldLines held = HeldLines::plan<Math<T>>(lines, 0);
    const auto body = [lines, held](const KernelBuffers& buffers) {
      const T *dy = buffers.in<T>(0), *y = buffers.in<T>(1);
      T* dx = buffers.out<T>(0);
      if (!held_softmax<T>(lines)) {
        launch(stream_of(buffers), softmax_grad_lines<T, kLog>, line_blocks(lines.count),
               kLineBlock, 0, dy, y, dx, lines);
        return;
      }
      for_held_lines<T, 3>(held, lines, {dy, y, dx}, [&]<int V, unsigned kLanes>() {
        launch(stream_of(buffers), softmax_grad_held<T, kLog, V, kLanes>,
               static_cast<unsigned>(held.blocks), kHeldBlock, 0, dy, y, dx, lines);
      });
    };
    return make_kernel(body, 0, [](size_t, size_t) { return true; });
  });
}

}  // namespace

std::vector<KernelRow> normalization_kernels() {
  std::vector<KernelRow> rows = batch_norm_rows();
  for (const std::vector<KernelRow>& more :
       {group_norm_rows(), layer_norm_rows(), local_norm_rows(), rms_norm_rows()}) {
    rows.insert(rows.end(), more.begin(), more.end());
  }
  const std::vector<KernelRow> lines = {
      {"", "Hardmax", "own.hardmax", prepare_hardmax},
      {"", "LogSoftmax", "own.softmax", prepare_softmax<true>},
      {"", "Softmax", "own.softmax", prepare_softmax<false>},
      {"ai.halfnote", "LogSoftmaxGrad", "own.softmax", prepare_softmax_grad<true>},
      {"ai.halfnote", "SoftmaxGrad", "own.softmax", prepare_softmax_grad<false>},
  };
  rows.insert(rows.end(), lines.begin(), lines.end());
  return rows;
}

}  // namespace halfnote::HN_CUDA
