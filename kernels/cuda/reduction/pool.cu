// MaxPool, AveragePool and LpPool, an output a thread, and their gradients: a plane a thread, which
// adds overlapping windows in the order of the outputs, as the CPU does.
#include "kernels/cuda/reduction/window.h"

#include <limits>

#include "kernels/cuda/reduction/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::PoolGeometry;

__device__ inline int64_t plane_size(const PoolGeometry::Dims& dims) {
  return dims[0] * dims[1] * dims[2];
}

template <class T>
__device__ int64_t first_maximum(const PoolGeometry& g, const PoolGeometry::Dims& at, const T* x) {
  int64_t best = -1;
  cpu::for_window(g, at, [&](int64_t index) {
    if (best < 0 || cpu::is_new_maximum(load_number(x[index]), load_number(x[best]))) best = index;
  });
  return best;
}

template <class T>
struct MaxPoolElement {
  PoolGeometry g;
  const T* x;
  T* y;
  int64_t* indices;
  bool column_major;
  __device__ void operator()(int64_t i) const {
    const int64_t out_size = plane_size(g.out), in_size = plane_size(g.in);
    const int64_t plane = i / out_size;
    const T* own = x + plane * in_size;
    const int64_t best = first_maximum(g, pool_place(g.out, i % out_size), own);
    y[i] = best < 0 ? of_nothing() : own[best];
    if (indices == nullptr) return;
    int64_t index = best;
    if (column_major) {
      const int64_t w = best % g.in[2], h = best / g.in[2] % g.in[1], d = best / g.in[2] / g.in[1];
      index = (w * g.in[1] + h) * g.in[0] + d;
    }
    indices[i] = best < 0 ? -1 : plane * in_size + index;
  }
  /// A window that lies in the padding altogether has no maximum.
  __device__ static T of_nothing() {
    if constexpr (std::is_integral_v<T>) {
      return std::numeric_limits<T>::lowest();
    } else {
      return store_number<T>(-INFINITY);
    }
  }
};

template <class T>
struct AveragePoolElement {
  PoolGeometry g;
  const T* x;
  T* y;
  bool include_pad;
  __device__ void operator()(int64_t i) const {
    const int64_t out_size = plane_size(g.out);
    const T* own = x + i / out_size * plane_size(g.in);
    const PoolGeometry::Dims at = pool_place(g.out, i % out_size);
    double sum = 0;
    int64_t count = 0;
    cpu::for_window(g, at, [&](int64_t index) {
      sum += load_number(own[index]);
      ++count;
    });
    if (include_pad) count = window_count(g, at, true);
    const double mean = count == 0 ? 0 : sum / static_cast<double>(count);
    y[i] = store_number<T>(static_cast<Math<T>>(mean));
  }
};

template <class T>
struct LpPoolElement {
  PoolGeometry g;
  double p;
  const T* x;
  T* y;
  __device__ void operator()(int64_t i) const {
    const int64_t out_size = plane_size(g.out);
    const T* own = x + i / out_size * plane_size(g.in);
    double sum = 0;
    cpu::for_window(g, pool_place(g.out, i % out_size), [&](int64_t index) {
      sum += math::pow(math::fabs(static_cast<double>(load_number(own[index]))), p);
    });
    y[i] = store_number<T>(static_cast<Math<T>>(math::pow(sum, 1 / p)));
  }
};

/// Where a plane's sums are: in the workspace for 16 bits, else in dX itself.
template <class T>
struct PlaneSums {
  Math<T>* sums;
  T* dx;
  __device__ void clear(int64_t size) const {
    for (int64_t i = 0; i < size; ++i) sums[i] = 0;
  }
  __device__ void round(int64_t size) const {
    if constexpr (!std::is_same_v<T, Math<T>>) {
      for (int64_t i = 0; i < size; ++i) dx[i] = store_number<T>(sums[i]);
    }
  }
};

template <class T, bool kMax>
struct PoolGradPlane {
  PoolGeometry g;
  const T *dy, *x;
  Math<T>* sums;
  T* dx;
  bool include_pad;
  __device__ void operator()(int64_t plane) const {
    const int64_t in_size = plane_size(g.in), out_size = plane_size(g.out);
    const PlaneSums<T> own{sums + plane * in_size, dx + plane * in_size};
    own.clear(in_size);
    for (int64_t position = 0; position < out_size; ++position) {
      const PoolGeometry::Dims at = pool_place(g.out, position);
      const Math<T> gradient = load_number(dy[plane * out_size + position]);
      if constexpr (kMax) {
        const int64_t best = first_maximum(g, at, x + plane * in_size);
        if (best >= 0) own.sums[best] += gradient;
      } else {
        int64_t count = 0;
        cpu::for_window(g, at, [&](int64_t) { ++count; });
        if (include_pad) count = window_count(g, at, true);
        cpu::for_window(g, at, [&](int64_t index) {
          own.sums[index] += gradient / static_cast<Math<T>>(count);
        });
      }
    }
    own.round(in_size);
  }
};

std::string plan_forward(const KernelCall& call, PoolGeometry& g) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  if (call.inputs[0].dtype != call.outputs[0].dtype) return "operands of different types";
  return cpu::plan_pool(call, call.inputs[0].shape, call.outputs[0].shape, g);
}

template <class T>
Prepared max_pool_kernel(const KernelCall& call, const PoolGeometry& g) {
  const bool column_major = attributes_of(call).get_int("storage_order", 0) != 0;
  return make_kernel([=, count = call.outputs[0].size()](const KernelBuffers& buffers) {
    for_each(stream_of(buffers), count,
             MaxPoolElement<T>{g, buffers.in<T>(0), buffers.out<T>(0), buffers.out<int64_t>(1),
                               column_major});
  });
}

Prepared prepare_max_pool(const KernelCall& call) {
  PoolGeometry g;
  if (std::string why = plan_forward(call, g); !why.empty()) return Prepared::no(why);
  const DType dtype = call.inputs[0].dtype;
  if (dtype == DType::kI8) return max_pool_kernel<int8_t>(call, g);
  if (dtype == DType::kU8) return max_pool_kernel<uint8_t>(call, g);
  return for_float_type(dtype, [&]<class T>() { return max_pool_kernel<T>(call, g); });
}

Prepared prepare_average_pool(const KernelCall& call) {
  PoolGeometry g;
  if (std::string why = plan_forward(call, g); !why.empty()) return Prepared::no(why);
  const bool include_pad = attributes_of(call).get_int("count_include_pad", 0) != 0;
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([=, count = call.outputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               AveragePoolElement<T>{g, buffers.in<T>(0), buffers.out<T>(0), include_pad});
    });
  });
}

Prepared prepare_lp_pool(const KernelCall& call) {
  PoolGeometry g;
  if (std::string why = plan_forward(call, g); !why.empty()) return Prepared::no(why);
  const auto p = static_cast<double>(attributes_of(call).get_int("p", 2));
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([=, count = call.outputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               LpPoolElement<T>{g, p, buffers.in<T>(0), buffers.out<T>(0)});
    });
  });
}

template <bool kMax>
Prepared prepare_pool_grad(const KernelCall& call) {
  if (!call.has_input(1) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const DType type = call.outputs[0].dtype;
  if (call.inputs[0].dtype != type || (kMax && call.inputs[1].dtype != type)) {
    return Prepared::no("operands of different types");
  }
  if (kMax && call.inputs[1].shape != call.outputs[0].shape) {
    return Prepared::no("X and dX of different shapes");
  }
  PoolGeometry g;
  if (std::string why = cpu::plan_pool(call, call.outputs[0].shape, call.inputs[0].shape, g);
      !why.empty()) {
    return Prepared::no(why);
  }
  const bool include_pad = attributes_of(call).get_int("count_include_pad", 0) != 0;
  return for_float_type(type, [&]<class T>() {
    constexpr bool kWide = !std::is_same_v<T, Math<T>>;
    const auto body = [=](const KernelBuffers& buffers) {
      T* dx = buffers.out<T>(0);
      Math<T>* sums = nullptr;
      if constexpr (kWide) {
        sums = reinterpret_cast<Math<T>*>(buffers.workspace);
      } else {
        sums = dx;
      }
      for_each(stream_of(buffers), g.planes,
               PoolGradPlane<T, kMax>{g, buffers.in<T>(0), kMax ? buffers.in<T>(1) : nullptr, sums,
                                      dx, include_pad});
    };
    const auto count = static_cast<size_t>(call.outputs[0].size());
    return make_kernel(body, kWide ? count * sizeof(Math<T>) : 0);
  });
}

}  // namespace

std::vector<KernelRow> pool_rows() {
  return {
      {"", "AveragePool", "own.pool", prepare_average_pool},
      {"", "LpPool", "own.pool", prepare_lp_pool},
      {"", "MaxPool", "own.pool", prepare_max_pool},
      {"ai.halfnote", "AveragePoolGrad", "own.pool", prepare_pool_grad<false>},
      {"ai.halfnote", "MaxPoolGrad", "own.pool", prepare_pool_grad<true>},
  };
}

}  // namespace halfnote::HN_CUDA
