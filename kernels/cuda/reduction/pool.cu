// MaxPool, AveragePool and LpPool, an output a thread; and the rows of their gradients.
#include <limits>

#include "kernels/cuda/reduction/kept_maxima.h"
#include "kernels/cuda/reduction/normalized_pool.h"
#include "kernels/cuda/reduction/parts.h"
#include "kernels/cuda/reduction/pool_grad.h"
#include "kernels/cuda/reduction/window.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::PoolGeometry;

template <class T>
struct MaxPoolElement {
  PoolImages images;
  const T* x;
  T* y;
  int64_t* indices;
  bool column_major;
  __device__ void operator()(int64_t i) const {
    const PoolImages::Place at = images.place<1>(i, images.out, images.out_dims);
    const T *own = x + images.first(at, images.in), *best = nullptr;
    images.for_taps(at.at, own, [&](int64_t, const T* element) {
      if (best == nullptr || cpu::is_new_maximum(load_number(*element), load_number(*best)))
        best = element;
    });
    y[i] = best == nullptr ? of_nothing() : *best;
    if (indices == nullptr) return;
    indices[i] = best == nullptr ? -1 : own - x + place_of(best - own);
  }
  /// Where an element of a plane is as ONNX counts it.
  __device__ int64_t place_of(int64_t index) const {
    if (!column_major) return index;
    const PoolGeometry::Dims& in = images.g.in;
    const int64_t w = index % in[2], h = index / in[2] % in[1], d = index / in[2] / in[1];
    return (w * in[1] + h) * in[0] + d;
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
struct LpPoolElement {
  PoolImages images;
  double p;
  const T* x;
  T* y;
  __device__ void operator()(int64_t i) const {
    const PoolImages::Place at = images.place<1>(i, images.out, images.out_dims);
    double sum = 0;
    images.for_taps(at.at, x + images.first(at, images.in), [&](int64_t, const T* element) {
      sum += math::pow(math::fabs(static_cast<double>(load_number(*element))), p);
    });
    y[i] = store_number<T>(static_cast<Math<T>>(math::pow(sum, 1 / p)));
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
             MaxPoolElement<T>{PoolImages(g), buffers.in<T>(0), buffers.out<T>(0),
                               buffers.out<int64_t>(1), column_major});
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
               AveragePool<T, 1>{PoolImages(g), buffers.in<T>(0), buffers.out<T>(0), include_pad});
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
               LpPoolElement<T>{PoolImages(g), p, buffers.in<T>(0), buffers.out<T>(0)});
    });
  });
}

template <PoolKind kKind>
Prepared prepare_gradient(const KernelCall& call) {
  if (!call.has_input(1) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const DType type = call.outputs[0].dtype;
  constexpr bool kMax = kKind == PoolKind::kMax;
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
  return prepare_pool_grad(call, g, 1, kKind);
}

Prepared prepare_kept(const KernelCall& call) {
  cpu::KeptMaxPool pool;
  if (std::string why = cpu::plan_kept_max_pool(call, pool); !why.empty()) return Prepared::no(why);
  return prepare_kept_max_pool(call, pool, 1);
}

Prepared prepare_kept_gradient(const KernelCall& call) {
  cpu::KeptMaxPool pool;
  if (std::string why = cpu::plan_kept_max_pool_grad(call, pool); !why.empty())
    return Prepared::no(why);
  return prepare_pool_grad(call, pool.g, 1, PoolKind::kKeptMax);
}

Prepared prepare_normalized(const KernelCall& call) {
  cpu::KeptMaxPool pool;
  if (std::string why = cpu::plan_normalized_max_pool_grad(call, pool); !why.empty())
    return Prepared::no(why);
  return prepare_normalized_pool_grad(call, pool, 1);
}

}  // namespace

std::vector<KernelRow> pool_rows() {
  return {
      {"", "AveragePool", "own.pool", prepare_average_pool},
      {"", "LpPool", "own.pool", prepare_lp_pool},
      {"", "MaxPool", "own.pool", prepare_max_pool},
      {"ai.halfnote", "AveragePoolGrad", "own.pool", prepare_gradient<PoolKind::kMean>},
      {"ai.halfnote", "MaxPool", "own.pool", prepare_kept},
      {"ai.halfnote", "MaxPoolGrad", "own.pool", prepare_gradient<PoolKind::kMax>},
      {"ai.halfnote", "MaxPoolTapsGrad", "own.pool", prepare_kept_gradient},
      {"ai.halfnote", "NormalizedMaxPoolGrad", "own.pool", prepare_normalized},
  };
}

}  // namespace halfnote::HN_CUDA
