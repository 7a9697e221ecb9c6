// MaxPool (with indices), AveragePool and LpPool. Sums are kept in f64 and rounded once.
#include <cmath>

#include "kernels/cpu/reduction/parts.h"
#include "kernels/cpu/reduction/window.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu {

namespace {

std::string plan_forward(const KernelCall& call, PoolGeometry& geometry) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  if (call.inputs[0].dtype != call.outputs[0].dtype) return "operands of different types";
  return plan_pool(call, call.inputs[0].shape, call.outputs[0].shape, geometry);
}

/// The index of a maximum as ONNX counts it: through all planes; in a plane row-major, or with
/// storage_order 1 with the first spatial dim the fastest.
int64_t reported_index(const PoolGeometry& g, int64_t plane, int64_t index, bool column_major) {
  if (column_major) {
    const int64_t w = index % g.in[2], h = index / g.in[2] % g.in[1], d = index / g.in[2] / g.in[1];
    index = (w * g.in[1] + h) * g.in[0] + d;
  }
  return plane * g.in_size() + index;
}

template <class T>
Prepared max_pool_kernel(const KernelCall& call, const PoolGeometry& g) {
  const bool column_major = attributes_of(call).get_int("storage_order", 0) != 0;
  return make_kernel([=, threads = call.threads](const KernelBuffers& buffers) {
    int64_t* indices = buffers.out<int64_t>(1);
    parallel_blocks(g.planes, 1, threads, [&](int64_t plane, int64_t) {
      const T* x = buffers.in<T>(0) + plane * g.in_size();
      const int64_t first = plane * g.out_size();
      for_outputs(g, [&](int64_t position, const auto& at) {
        int64_t best = -1;
        for_window(g, at, [&](int64_t index) {
          if (best < 0 || is_new_maximum(load(x[index]), load(x[best]))) best = index;
        });
        // A window that lies in the padding altogether has no maximum.
        buffers.out<T>(0)[first + position] = best < 0 ? lowest<T>() : x[best];
        if (indices) {
          indices[first + position] = best < 0 ? -1 : reported_index(g, plane, best, column_major);
        }
      });
    });
  });
}

Prepared prepare_max_pool(const KernelCall& call) {
  PoolGeometry geometry;
  if (std::string reason = plan_forward(call, geometry); !reason.empty()) {
    return Prepared::no(reason);
  }
  switch (call.inputs[0].dtype) {
    case DType::kI8:
      return max_pool_kernel<int8_t>(call, geometry);
    case DType::kU8:
      return max_pool_kernel<uint8_t>(call, geometry);
    default:
      return for_float_type(call.inputs[0].dtype,
                            [&]<class T>() { return max_pool_kernel<T>(call, geometry); });
  }
}

Prepared prepare_average_pool(const KernelCall& call) {
  PoolGeometry g;
  if (std::string reason = plan_forward(call, g); !reason.empty()) return Prepared::no(reason);
  const bool include_pad = attributes_of(call).get_int("count_include_pad", 0) != 0;
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([=, threads = call.threads](const KernelBuffers& buffers) {
      parallel_blocks(g.planes, 1, threads, [&](int64_t plane, int64_t) {
        const T* x = buffers.in<T>(0) + plane * g.in_size();
        T* y = buffers.out<T>(0) + plane * g.out_size();
        for_outputs(g, [&](int64_t position, const auto& at) {
          double sum = 0;
          int64_t count = 0;
          for_window(g, at, [&](int64_t index) {
            sum += load(x[index]);
            ++count;
          });
          if (include_pad) count = g.padded_count(at);
          const double mean = count == 0 ? 0 : sum / static_cast<double>(count);
          y[position] = store<T>(static_cast<Math<T>>(mean));
        });
      });
    });
  });
}

Prepared prepare_lp_pool(const KernelCall& call) {
  PoolGeometry g;
  if (std::string reason = plan_forward(call, g); !reason.empty()) return Prepared::no(reason);
  const auto p = static_cast<double>(attributes_of(call).get_int("p", 2));
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([=, threads = call.threads](const KernelBuffers& buffers) {
      parallel_blocks(g.planes, 1, threads, [&](int64_t plane, int64_t) {
        const T* x = buffers.in<T>(0) + plane * g.in_size();
        T* y = buffers.out<T>(0) + plane * g.out_size();
        for_outputs(g, [&](int64_t position, const auto& at) {
          double sum = 0;
          for_window(g, at, [&](int64_t index) {
            sum += std::pow(std::fabs(static_cast<double>(load(x[index]))), p);
          });
          y[position] = store<T>(static_cast<Math<T>>(std::pow(sum, 1 / p)));
        });
      });
    });
  });
}

}  // namespace

std::vector<KernelRow> pool_rows() {
  return {
      {"", "AveragePool", "reference", prepare_average_pool},
      {"", "LpPool", "reference", prepare_lp_pool},
      {"", "MaxPool", "reference", prepare_max_pool},
  };
}

}  // namespace halfnote::cpu
