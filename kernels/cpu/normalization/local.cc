// LpNormalization, LRN and MeanVarianceNormalization: rare ones, in plain loops with sums in
// double.
#include <cmath>

#include "kernels/cpu/normalization/parts.h"

namespace halfnote::cpu {

namespace {

void require_x_and_y(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) throw model_error(call, "X or Y is missing");
}

/// Where the norm is 0 the result is 0.
Prepared prepare_lp(const KernelCall& call) {
  require_x_and_y(call);
  const Lines lines = lines_along(call.inputs[0].shape, attributes_of(call).get_int("axis", -1));
  const int64_t p = attributes_of(call).get_int("p", 2);
  if (p != 1 && p != 2) throw model_error(call, "invalid p").expected("1 or 2", std::to_string(p));
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([=, threads = call.threads](const KernelBuffers& buffers) {
      parallel_blocks(lines.count, lines.grain(), threads, [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          const T* x = buffers.in<T>(0) + lines.start(line);
          T* y = buffers.out<T>(0) + lines.start(line);
          double sum = 0;
          for (int64_t i = 0; i < lines.length; ++i) {
            const double value = load(x[i * lines.stride]);
            sum += p == 1 ? std::fabs(value) : value * value;
          }
          const double norm = p == 1 ? sum : std::sqrt(sum);
          for (int64_t i = 0; i < lines.length; ++i) {
            const double value = norm == 0 ? 0 : load(x[i * lines.stride]) / norm;
            y[i * lines.stride] = store<T>(static_cast<Math<T>>(value));
          }
        }
      });
    });
  });
}

/// y = x / (bias + alpha / size · Σ x²)^beta over `size` channels around each; a block is one
/// image.
Prepared prepare_lrn(const KernelCall& call) {
  require_x_and_y(call);
  const Shape& x_shape = call.inputs[0].shape;
  const int64_t size = attributes_of(call).get_int("size", 0);
  if (x_shape.size() < 2) throw model_error(call, "X has no channels");
  if (size < 1) throw model_error(call, "size is missing or not positive");
  const double alpha = attributes_of(call).get_float("alpha", 1e-4f) / static_cast<double>(size);
  const double beta = attributes_of(call).get_float("beta", 0.75f);
  const double bias = attributes_of(call).get_float("bias", 1);
  const int64_t images = x_shape[0], channels = x_shape[1];
  const int64_t plane = element_count(std::span<const int64_t>(x_shape).subspan(2));
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([=, threads = call.threads](const KernelBuffers& buffers) {
      parallel_blocks(images * channels, 1, threads, [&](int64_t block, int64_t) {
        const int64_t c = block % channels;
        const int64_t first = std::max<int64_t>(0, c - (size - 1) / 2);
        const int64_t last = std::min(channels - 1, c + size / 2);
        const T* x = buffers.in<T>(0) + (block - c) * plane;
        T* y = buffers.out<T>(0) + block * plane;
        for (int64_t i = 0; i < plane; ++i) {
          double sum = 0;
          for (int64_t k = first; k <= last; ++k) {
            const double value = load(x[k * plane + i]);
            sum += value * value;
          }
          const double value = load(x[c * plane + i]) / std::pow(bias + alpha * sum, beta);
          y[i] = store<T>(static_cast<Math<T>>(value));
        }
      });
    });
  });
}

/// For each element the group whose mean and variance it shares: strides are 0 along the reduced
/// axes.
struct Grouping {
  Shape dims, strides;
  int64_t groups = 1;
  int64_t group_of(int64_t index) const {
    int64_t group = 0;
    for (size_t d = dims.size(); d-- > 0;) {
      group += index % dims[d] * strides[d];
      index /= dims[d];
    }
    return group;
  }
};

Grouping plan_groups(const KernelCall& call) {
  Grouping plan{call.inputs[0].shape, Shape(call.inputs[0].shape.size(), -1)};
  const auto rank = static_cast<int64_t>(plan.dims.size());
  for (const int64_t axis : attributes_of(call).get_ints("axes", {0, 2, 3})) {
    plan.strides[static_cast<size_t>(normalize_axis(axis, rank))] = 0;
  }
  for (size_t d = plan.dims.size(); d-- > 0;) {
    if (plan.strides[d] == 0) continue;
    plan.strides[d] = plan.groups;
    plan.groups *= plan.dims[d];
  }
  return plan;
}

/// ONNX's function: (x − E[x]) / (√(E[x²] − E[x]²) + 1e-9).
Prepared prepare_mean_variance(const KernelCall& call) {
  require_x_and_y(call);
  const Grouping plan = plan_groups(call);
  const int64_t size = call.inputs[0].size();
  WorkspacePlan workspace;
  const size_t sums = workspace.add_elements<double>(plan.groups);
  const size_t squares = workspace.add_elements<double>(plan.groups);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [=](const KernelBuffers& buffers) {
      auto* sum = part<double>(buffers, sums);
      auto* square = part<double>(buffers, squares);
      std::fill_n(sum, plan.groups, 0.0);
      std::fill_n(square, plan.groups, 0.0);
      const T* x = buffers.in<T>(0);
      for (int64_t i = 0; i < size; ++i) {
        const double value = load(x[i]);
        sum[plan.group_of(i)] += value;
        square[plan.group_of(i)] += value * value;
      }
      const auto count = static_cast<double>(size) / static_cast<double>(plan.groups);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t group = plan.group_of(i);
        const double mean = sum[group] / count;
        const double deviation = std::sqrt(std::max(0.0, square[group] / count - mean * mean));
        buffers.out<T>(0)[i] =
            store<T>(static_cast<Math<T>>((load(x[i]) - mean) / (deviation + 1e-9)));
      }
    };
    return make_kernel(body, workspace.size());
  });
}

}  // namespace

std::vector<KernelRow> local_norm_rows() {
  return {
      {"", "LRN", "reference", prepare_lrn},
      {"", "LpNormalization", "reference", prepare_lp},
      {"", "MeanVarianceNormalization", "reference", prepare_mean_variance},
  };
}

}  // namespace halfnote::cpu
