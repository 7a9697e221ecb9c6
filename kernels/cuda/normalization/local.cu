// LRN, an element a thread; LpNormalization, a block a line; MeanVarianceNormalization, a block a
// group of elements that share mean and variance. Sums are in f64, merged in a fixed order.
#include "kernels/cpu/normalization/parts.h"
#include "kernels/cpu/runs.h"
#include "kernels/cuda/normalization/lines.h"
#include "kernels/cuda/normalization/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

void require_local(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) throw cpu::model_error(call, "X or Y is missing");
}

std::string unlike_types(const KernelCall& call) {
  return call.inputs[0].dtype == call.outputs[0].dtype ? "" : "X and Y of different types";
}

/// y = x / (bias + alpha / size · Σ x²)^beta over `size` channels around each.
template <class T>
struct LocalResponse {
  Divisor plane, channels;
  int64_t size;
  double alpha, beta, bias;  // alpha is divided by the size
  const T* x;
  T* y;
  __device__ void operator()(int64_t at) const {
    const int64_t block = plane.quotient(at);
    const int64_t c = block - channels.quotient(block) * channels.value();
    const int64_t least = c - (size - 1) / 2, most = c + size / 2;
    const int64_t first = least > 0 ? least : 0;
    const int64_t behind = most + 1 < channels.value() ? most + 1 : channels.value();
    double sum = 0;
    for (int64_t k = first; k < behind; ++k) {
      const double value = load_number(x[at + (k - c) * plane.value()]);
      sum += value * value;
    }
    const double value = load_number(x[at]) / math::pow(bias + alpha * sum, beta);
    y[at] = store_number<T>(static_cast<Math<T>>(value));
  }
};

Prepared prepare_lrn(const KernelCall& call) {
  require_local(call);
  if (std::string why = unlike_types(call); !why.empty()) return Prepared::no(why);
  const Shape& shape = call.inputs[0].shape;
  const int64_t size = attributes_of(call).get_int("size", 0);
  if (shape.size() < 2) throw cpu::model_error(call, "X has no channels");
  if (size < 1) throw cpu::model_error(call, "size is missing or not positive");
  const double alpha = attributes_of(call).get_float("alpha", 1e-4f) / static_cast<double>(size);
  const double beta = attributes_of(call).get_float("beta", 0.75f);
  const double bias = attributes_of(call).get_float("bias", 1);
  const int64_t plane = element_count(std::span<const int64_t>(shape).subspan(2));
  const int64_t channels = shape[1], count = call.outputs[0].size();
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([=](const KernelBuffers& buffers) {
      if (count == 0) return;
      for_each(stream_of(buffers), count,
               LocalResponse<T>{Divisor(plane), Divisor(channels), size, alpha, beta, bias,
                                buffers.in<T>(0), buffers.out<T>(0)});
    });
  });
}

/// Where the norm is 0 the result is 0.
template <class T>
__global__ void __launch_bounds__(kLineBlock)
    lp_lines(const T* x, T* y, Lines lines, bool squares) {
  for (int64_t line = blockIdx.x; line < lines.count; line += gridDim.x) {
    const int64_t start = line / lines.stride * lines.length * lines.stride + line % lines.stride;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const double value = load_number(x[start + i * lines.stride]);
      sum += squares ? value * value : math::fabs(value);
    }
    sum = merge_block<AddNumbers, kLineBlock>(sum);
    const double norm = squares ? math::sqrt(sum) : sum;
    for (int64_t i = threadIdx.x; i < lines.length; i += kLineBlock) {
      const int64_t at = start + i * lines.stride;
      const double value = norm == 0 ? 0 : load_number(x[at]) / norm;
      y[at] = store_number<T>(static_cast<Math<T>>(value));
    }
  }
}

Prepared prepare_lp(const KernelCall& call) {
  require_local(call);
  if (std::string why = unlike_types(call); !why.empty()) return Prepared::no(why);
  const Lines lines =
      cpu::lines_along(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  const int64_t p = attributes_of(call).get_int("p", 2);
  if (p != 1 && p != 2)
    throw cpu::model_error(call, "invalid p").expected("1 or 2", std::to_string(p));
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([=](const KernelBuffers& buffers) {
      launch(stream_of(buffers), lp_lines<T>, line_blocks(lines.count), kLineBlock, 0,
             buffers.in<T>(0), buffers.out<T>(0), lines, p == 2);
    });
  });
}

/// ONNX's function: (x − E[x]) / (√(E[x²] − E[x]²) + 1e-9).
template <class T>
__global__ void __launch_bounds__(kLineBlock)
    mean_variance_groups(const __grid_constant__ Strided<1> groups,
                         const __grid_constant__ Strided<1> members, const T* x, T* y) {
  int64_t first[1], own[1];
  for (int64_t group = blockIdx.x; group < groups.count; group += gridDim.x) {
    groups.offsets(group, first);
    double sum = 0, square = 0;
    for (int64_t i = threadIdx.x; i < members.count; i += kLineBlock) {
      members.offsets(i, own);
      const double value = load_number(x[first[0] + own[0]]);
      sum += value;
      square += value * value;
    }
    sum = merge_block<AddNumbers, kLineBlock>(sum);
    square = merge_block<AddNumbers, kLineBlock>(square);
    const double mean = sum / static_cast<double>(members.count);
    const double variance = square / static_cast<double>(members.count) - mean * mean;
    const double deviation = math::sqrt(variance > 0 ? variance : 0.0);
    for (int64_t i = threadIdx.x; i < members.count; i += kLineBlock) {
      members.offsets(i, own);
      const int64_t at = first[0] + own[0];
      const double value = (load_number(x[at]) - mean) / (deviation + 1e-9);
      y[at] = store_number<T>(static_cast<Math<T>>(value));
    }
  }
}

Prepared prepare_mean_variance(const KernelCall& call) {
  require_local(call);
  if (std::string why = unlike_types(call); !why.empty()) return Prepared::no(why);
  const Shape& shape = call.inputs[0].shape;
  const auto rank = static_cast<int64_t>(shape.size());
  std::vector<bool> reduced(shape.size());
  for (const int64_t axis : attributes_of(call).get_ints("axes", {0, 2, 3}))
    reduced[static_cast<size_t>(normalize_axis(axis, rank))] = true;
  Shape dims[2], strides[2];  // of groups, of members
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0; step *= shape[d]) {
    dims[reduced[d]].insert(dims[reduced[d]].begin(), shape[d]);
    strides[reduced[d]].insert(strides[reduced[d]].begin(), step);
  }
  Strided<1> groups, members;
  if (!as_strided(cpu::plan_runs(dims[0], {strides[0]}), groups) ||
      !as_strided(cpu::plan_runs(dims[1], {strides[1]}), members)) {
    return Prepared::no(too_many_dims());
  }
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([=](const KernelBuffers& buffers) {
      if (members.count == 0) return;
      launch(stream_of(buffers), mean_variance_groups<T>, line_blocks(groups.count), kLineBlock, 0,
             groups, members, buffers.in<T>(0), buffers.out<T>(0));
    });
  });
}

}  // namespace

std::vector<KernelRow> local_norm_rows() {
  return {
      {"", "LRN", "own.local_norm", prepare_lrn},
      {"", "LpNormalization", "own.local_norm", prepare_lp},
      {"", "MeanVarianceNormalization", "own.local_norm", prepare_mean_variance},
  };
}

}  // namespace halfnote::HN_CUDA
