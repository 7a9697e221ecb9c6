// Softmax, LogSoftmax, LayerNormalization and their gradients: a block of threads a line, sums in
// f64 as on the CPU, merged in a fixed order.
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

template <class T>
__global__ void __launch_bounds__(kLineBlock)
    layer_norm_lines(const T* x, LineParameter scale, LineParameter bias, T* y, RealOutput mean_out,
                     RealOutput inv_std_out, Lines lines, double epsilon) {
  using M = Math<T>;
  const double count = static_cast<double>(lines.length);
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const T* own = x + line * lines.length;
    double sum = 0, squares = 0;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) sum += load_number(own[i]);
    const double mean = merge_block<AddNumbers, kLineBlock>(sum) / count;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const double distance = load_number(own[i]) - mean;
      squares += distance * distance;
    }
    const double variance = merge_block<AddNumbers, kLineBlock>(squares) / count;
    const double inv_std = 1 / math::sqrt(variance + epsilon);
    if (threadIdx.x == 0) {
      if (mean_out.data != nullptr) mean_out.write(line, mean);
      if (inv_std_out.data != nullptr) inv_std_out.write(line, inv_std);
    }
    const M center = static_cast<M>(mean), slope = static_cast<M>(inv_std);
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      M value = (load_number(own[i]) - center) * slope;
      value *= static_cast<M>(scale[i]);
      if (bias.values.data != nullptr) value += static_cast<M>(bias[i]);
      y[line * lines.length + i] = store_number<T>(value);
    }
  }
}

Prepared prepare_layer_norm(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0)) {
    throw model_error(call, "X, scale or Y is missing");
  }
  const Lines lines =
      cpu::lines_from(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  if (std::string why = cpu::float_refusal(call); !why.empty()) return Prepared::no(why);
  if (call.outputs[0].dtype != call.inputs[0].dtype)
    return Prepared::no("X and Y of different types");
  if (!spans_line(call, 1, lines) || (call.has_input(2) && !spans_line(call, 2, lines))) {
    return Prepared::no("a scale or bias that differs from line to line");
  }
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const auto step = [&](size_t input) -> int64_t {
      return call.has_input(input) && call.inputs[input].size() != 1 ? 1 : 0;
    };
    const auto body =
        [=, scale_step = step(1), bias_step = step(2), scale_type = call.inputs[1].dtype,
         bias_type = call.has_input(2) ? call.inputs[2].dtype : DType::kUndefined,
         mean_type = type_of(call, 1), inv_type = type_of(call, 2)](const KernelBuffers& buffers) {
          const LineParameter scale{{buffers.inputs[1], scale_type}, scale_step};
          const LineParameter bias{{buffers.in<std::byte>(2), bias_type}, bias_step};
          launch(stream_of(buffers), layer_norm_lines<T>, line_blocks(lines.count), kLineBlock, 0,
                 buffers.in<T>(0), scale, bias, buffers.out<T>(0),
                 RealOutput{buffers.out<std::byte>(1), mean_type},
                 RealOutput{buffers.out<std::byte>(2), inv_type}, lines, epsilon);
        };
    return make_kernel(body);
  });
}

template <class T>
__global__ void __launch_bounds__(kLineBlock)
    layer_norm_dx(const T* dy, const T* x, RealPointer scale, RealPointer means,
                  RealPointer inv_stds, T* dx, Lines lines) {
  const double count = static_cast<double>(lines.length);
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const int64_t first = line * lines.length;
    const double mean = means[line], inv_std = inv_stds[line];
    double sum = 0, product = 0;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const double g = load_number(dy[first + i]) * scale[i];
      sum += g;
      product += g * ((load_number(x[first + i]) - mean) * inv_std);
    }
    sum = merge_block<AddNumbers, kLineBlock>(sum) / count;
    product = merge_block<AddNumbers, kLineBlock>(product) / count;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const double g = load_number(dy[first + i]) * scale[i];
      const double hat = (load_number(x[first + i]) - mean) * inv_std;
      dx[first + i] = store_number<T>(static_cast<Math<T>>(inv_std * (g - sum - hat * product)));
    }
  }
}

/// dScale and dB have one element a column: rows are cut into slices, a thread sums a column of
/// one, and a second kernel adds the slices in order.
template <class T>
__global__ void __launch_bounds__(kLineBlock)
    layer_norm_column_parts(const T* dy, const T* x, RealPointer means, RealPointer inv_stds,
                            double* parts, Lines lines, int64_t slice) {
  const int64_t column = int64_t{blockIdx.x} * kLineBlock + threadIdx.x;
  if (column >= lines.length) return;
  const int64_t begin = int64_t{blockIdx.y} * slice;
  const int64_t end = begin + slice < lines.count ? begin + slice : lines.count;
  double scale = 0, bias = 0;
  for (int64_t line = begin; line < end; ++line) {
    const double g = load_number(dy[line * lines.length + column]);
    bias += g;
    scale += g * ((load_number(x[line * lines.length + column]) - means[line]) * inv_stds[line]);
  }
  parts[(int64_t{blockIdx.y} * 2) * lines.length + column] = scale;
  parts[(int64_t{blockIdx.y} * 2 + 1) * lines.length + column] = bias;
}

struct LayerGradTypes {
  DType scale, mean, inv_std, d_scale, d_bias;
  bool has_dx;
};

template <class T>
Prepared layer_grad_kernel(const Lines& lines, const LayerGradTypes& types) {
  const int64_t slice = lines_of_slice(lines), grid_y = (lines.count + slice - 1) / slice;
  const auto body = [=](const KernelBuffers& buffers) {
    const T *dy = buffers.in<T>(0), *x = buffers.in<T>(1);
    const RealPointer mean{buffers.inputs[3], types.mean};
    const RealPointer inv_std{buffers.inputs[4], types.inv_std};
    auto* parts = reinterpret_cast<double*>(buffers.workspace);
    // First, as dX may lie over dY or X.
    launch(stream_of(buffers), layer_norm_column_parts<T>,
           dim3(blocks_for(lines.length, kLineBlock), static_cast<unsigned>(grid_y)), kLineBlock, 0,
           dy, x, mean, inv_std, parts, lines, slice);
    for_each(stream_of(buffers), lines.length,
             AddSlices{parts,
                       grid_y,
                       lines.length,
                       {buffers.out<std::byte>(1), types.d_scale},
                       {buffers.out<std::byte>(2), types.d_bias}});
    if (!types.has_dx) return;
    launch(stream_of(buffers), layer_norm_dx<T>, line_blocks(lines.count), kLineBlock, 0, dy, x,
           RealPointer{buffers.inputs[2], types.scale}, mean, inv_std, buffers.out<T>(0), lines);
  };
  const auto workspace = static_cast<size_t>(2 * grid_y * lines.length) * sizeof(double);
  return make_kernel(body, workspace,
                     [](size_t input, size_t output) { return input <= 1 && output == 0; });
}

Prepared prepare_layer_grad(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1)) throw model_error(call, "dY or X is missing");
  const Lines lines =
      cpu::lines_from(call.inputs[1].shape, attributes_of(call).get_int("axis", -1));
  cpu::require_size(call, 0, call.inputs[1].size());
  cpu::require_size(call, 2, lines.length);
  cpu::require_size(call, 3, lines.count);
  cpu::require_size(call, 4, lines.count);
  if (std::string why = cpu::float_refusal(call); !why.empty()) return Prepared::no(why);
  const DType type = call.inputs[0].dtype;
  const bool has_dx = call.has_output(0);
  if (call.inputs[1].dtype != type || (has_dx && call.outputs[0].dtype != type)) {
    return Prepared::no("dY, X and dX of different types");
  }
  const LayerGradTypes types = {call.inputs[2].dtype, call.inputs[3].dtype, call.inputs[4].dtype,
                                type_of(call, 1),     type_of(call, 2),     has_dx};
  return for_float_type(type, [&]<class T>() { return layer_grad_kernel<T>(lines, types); });
}

}  // namespace

std::vector<KernelRow> normalization_kernels() {
  std::vector<KernelRow> rows = batch_norm_rows();
  for (const std::vector<KernelRow>& more : {group_norm_rows(), rms_norm_rows()}) {
    rows.insert(rows.end(), more.begin(), more.end());
  }
  const std::vector<KernelRow> lines = {
      {"", "LayerNormalization", "own.layer_norm", prepare_layer_norm},
      {"", "LogSoftmax", "own.softmax", prepare_softmax<true>},
      {"", "Softmax", "own.softmax", prepare_softmax<false>},
      {"ai.halfnote", "LayerNormalizationGrad", "own.layer_norm", prepare_layer_grad},
      {"ai.halfnote", "LogSoftmaxGrad", "own.softmax", prepare_softmax_grad<true>},
      {"ai.halfnote", "SoftmaxGrad", "own.softmax", prepare_softmax_grad<false>},
  };
  rows.insert(rows.end(), lines.begin(), lines.end());
  return rows;
}

}  // namespace halfnote::HN_CUDA
