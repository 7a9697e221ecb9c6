// RMSNormalization and its gradient: a block of threads a line, sums in f64.
#include "kernels/cuda/normalization/lines.h"
#include "kernels/cuda/normalization/parts.h"

namespace halfnote::HN_CUDA {

namespace {

/// 1 / √(mean of x² + ε) of a line; every thread of the block gets it.
template <class T>
__device__ double inverse_root(const T* line, int64_t length, double epsilon) {
  double squares = 0;
  for (int64_t i = threadIdx.x; i < length; i += kLineBlock) {
    const double value = load_number(line[i]);
    squares += value * value;
  }
  squares = merge_block<AddNumbers, kLineBlock>(squares);
  return 1 / math::sqrt(squares / static_cast<double>(length) + epsilon);
}

/// Y has the type of the scale, which may differ from that of X.
template <class T>
__global__ void __launch_bounds__(kLineBlock)
    rms_lines(const T* x, LineParameter scale, RealOutput y, Lines lines, double epsilon) {
  using M = Math<T>;
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const T* own = x + line * lines.length;
    const M slope = static_cast<M>(inverse_root(own, lines.length, epsilon));
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const M value = load_number(own[i]) * slope * static_cast<M>(scale[i]);
      y.write(line * lines.length + i, value);
    }
  }
}

Prepared prepare_rms_norm(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0)) {
    throw cpu::model_error(call, "X, scale or Y is missing");
  }
  const Lines lines =
      cpu::lines_from(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  if (std::string why = cpu::float_refusal(call); !why.empty()) return Prepared::no(why);
  if (!spans_line(call, 1, lines)) return Prepared::no("a scale that differs from line to line");
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [=, type = call.outputs[0].dtype, scale_type = call.inputs[1].dtype,
         step = int64_t{call.inputs[1].size() == 1 ? 0 : 1}](const KernelBuffers& buffers) {
          launch(stream_of(buffers), rms_lines<T>, line_blocks(lines.count), kLineBlock, 0,
                 buffers.in<T>(0), LineParameter{{buffers.inputs[1], scale_type}, step},
                 RealOutput{buffers.outputs[0], type}, lines, epsilon);
        });
  });
}

template <class T>
__global__ void __launch_bounds__(kLineBlock)
    rms_inverses(const T* x, double* inverses, Lines lines, double epsilon) {
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const double inverse = inverse_root(x + line * lines.length, lines.length, epsilon);
    if (threadIdx.x == 0) inverses[line] = inverse;
  }
}

template <class T>
__global__ void __launch_bounds__(kLineBlock)
    rms_dx(const T* dy, const T* x, RealPointer scale, const double* inverses, T* dx, Lines lines) {
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const int64_t first = line * lines.length;
    const double inverse = inverses[line];
    double product = 0;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      product += load_number(dy[first + i]) * scale[i] * load_number(x[first + i]) * inverse;
    }
    product = merge_block<AddNumbers, kLineBlock>(product) / static_cast<double>(lines.length);
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const double g = load_number(dy[first + i]) * scale[i];
      const double value = inverse * (g - load_number(x[first + i]) * inverse * product);
      dx[first + i] = store_number<T>(static_cast<Math<T>>(value));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kLineBlock)
    rms_column_parts(const T* dy, const T* x, const double* inverses, double* parts, Lines lines,
                     int64_t slice) {
  const int64_t column = int64_t{blockIdx.x} * kLineBlock + threadIdx.x;
  if (column >= lines.length) return;
  const int64_t begin = int64_t{blockIdx.y} * slice;
  const int64_t end = begin + slice < lines.count ? begin + slice : lines.count;
  double scale = 0;
  for (int64_t line = begin; line < end; ++line) {
    const int64_t at = line * lines.length + column;
    scale += static_cast<double>(load_number(dy[at])) * load_number(x[at]) * inverses[line];
  }
  parts[(int64_t{blockIdx.y} * 2) * lines.length + column] = scale;
  parts[(int64_t{blockIdx.y} * 2 + 1) * lines.length + column] = 0;
}

Prepared prepare_rms_grad(const KernelCall& call) {
  Lines lines;
  if (std::string why = cpu::plan_rms_norm_grad(call, lines); !why.empty()) {
    return Prepared::no(why);
  }
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  const int64_t slice = lines_of_slice(lines), slices = (lines.count + slice - 1) / slice;
  return for_float_type(call.inputs[1].dtype, [&]<class T>() {
    const auto body = [=, scale_type = call.inputs[2].dtype, d_scale = type_of(call, 1),
                       has_dx = call.has_output(0)](const KernelBuffers& buffers) {
      Stream& stream = stream_of(buffers);
      const T *dy = buffers.in<T>(0), *x = buffers.in<T>(1);
      auto* inverses = reinterpret_cast<double*>(buffers.workspace);
      double* parts = inverses + lines.count;
      launch(stream, rms_inverses<T>, line_blocks(lines.count), kLineBlock, 0, x, inverses, lines,
             epsilon);
      if (d_scale != DType::kUndefined) {  // first, as dX may lie over dY or X
        launch(stream, rms_column_parts<T>,
               dim3(blocks_for(lines.length, kLineBlock), static_cast<unsigned>(slices)),
               kLineBlock, 0, dy, x, inverses, parts, lines, slice);
        add_slices(stream, parts, slices, lines.length, {buffers.outputs[1], d_scale}, {});
      }
      if (!has_dx) return;
      launch(stream, rms_dx<T>, line_blocks(lines.count), kLineBlock, 0, dy, x,
             RealPointer{buffers.inputs[2], scale_type}, inverses, buffers.out<T>(0), lines);
    };
    const auto workspace =
        static_cast<size_t>(lines.count + 2 * slices * lines.length) * sizeof(double);
    return make_kernel(body, workspace,
                       [](size_t input, size_t output) { return input <= 1 && output == 0; });
  });
}

}  // namespace

std::vector<KernelRow> rms_norm_rows() {
  return {
      {"", "RMSNormalization", "own.rms_norm", prepare_rms_norm},
      {"ai.halfnote", "RMSNormalizationGrad", "own.rms_norm", prepare_rms_grad},
  };
}

}  // namespace halfnote::HN_CUDA
