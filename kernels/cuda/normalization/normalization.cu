// Softmax, LogSoftmax and their gradients: a block of threads a line, sums in f64 as on the CPU,
// merged in a fixed order.
#include "kernels/cpu/normalization/parts.h"
#include "kernels/cuda/families.h"
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
    const auto body = [lines](const KernelBuffers& buffers) {
      launch(stream_of(buffers), softmax_lines<T, kLog>, line_blocks(lines.count), kLineBlock, 0,
             buffers.in<T>(0), buffers.out<T>(0), lines);
    };
    return make_kernel(body, 0, [](size_t, size_t) { return true; });
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
    const auto body = [lines](const KernelBuffers& buffers) {
      launch(stream_of(buffers), softmax_grad_lines<T, kLog>, line_blocks(lines.count), kLineBlock,
             0, buffers.in<T>(0), buffers.in<T>(1), buffers.out<T>(0), lines);
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
      {"", "LogSoftmax", "own.softmax", prepare_softmax<true>},
      {"", "Softmax", "own.softmax", prepare_softmax<false>},
      {"ai.halfnote", "LogSoftmaxGrad", "own.softmax", prepare_softmax_grad<true>},
      {"ai.halfnote", "SoftmaxGrad", "own.softmax", prepare_softmax_grad<false>},
  };
  rows.insert(rows.end(), lines.begin(), lines.end());
  return rows;
}

}  // namespace halfnote::HN_CUDA
