// The gradients of the pools. Overlapping windows add up in f32 (f64 for f64), in the order of the
// outputs, and are rounded once.
#include "base/error.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/kept_maxima.h"
#include "kernels/cpu/reduction/parts.h"
#include "kernels/cpu/reduction/window.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu {

namespace {

/// The sums of a plane are its gradient.
struct StoreSums {
  template <class T>
  void operator()(const KernelBuffers&, int64_t, const Math<T>* acc, int64_t size, T* dx) const {
    store_block(acc, size, dx);
  }
};

/// `spread(plane, at, position, acc)` adds the gradient of one output to `acc`, the sums of its
/// plane; `finish(buffers, plane, acc, size, dx)` makes the gradient of them, where they may lie.
template <class T, class Spread, class Finish = StoreSums>
Prepared spread_kernel(const KernelCall& call, const PoolGeometry& g, Spread spread,
                       Finish finish = {}) {
  using M = Math<T>;
  constexpr bool kWide = !std::is_same_v<T, M>;
  const int64_t size = g.in_size();
  const size_t workspace = kWide ? static_cast<size_t>(g.planes * size) * sizeof(M) : 0;
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(g.planes, 1, threads, [&](int64_t plane, int64_t) {
      T* dx = buffers.out<T>(0) + plane * size;
      M* acc = nullptr;
      if constexpr (kWide) {
        acc = reinterpret_cast<M*>(buffers.workspace) + plane * size;
      } else {
        acc = dx;
      }
      std::fill_n(acc, size, M(0));
      for_outputs(
          g, [&](int64_t position, const auto& at) { spread(buffers, plane, at, position, acc); });
      finish.template operator()<T>(buffers, plane, acc, size, dx);
    });
  };
  return make_kernel(body, workspace);
}

/// dY (input 0) has the shape of the forward output, dX that of the forward input.
std::string plan_backward(const KernelCall& call, PoolGeometry& geometry) {
  if (!call.has_input(1) || !call.has_output(0)) return "an operand is missing";
  if (call.inputs[0].dtype != call.outputs[0].dtype) return "operands of different types";
  return plan_pool(call, call.outputs[0].shape, call.inputs[0].shape, geometry);
}

/// Each dY goes to the first maximum of its window.
Prepared prepare_max_pool_grad(const KernelCall& call) {
  PoolGeometry g;
  if (std::string reason = plan_backward(call, g); !reason.empty()) return Prepared::no(reason);
  if (call.inputs[1].dtype != call.outputs[0].dtype) {
    return Prepared::no("operands of different types");
  }
  if (call.inputs[1].shape != call.outputs[0].shape) {
    throw Error(ErrorCode::kModel, "X and dX of different shapes")
        .at({.op = std::string(call.op)})
        .expected(to_string(call.inputs[1].shape), to_string(call.outputs[0].shape));
  }
  return for_float_type(call.outputs[0].dtype, [&]<class T>() {
    const auto spread = [g](const KernelBuffers& buffers, int64_t plane, const auto& at,
                            int64_t position, Math<T>* acc) {
      const T* x = buffers.in<T>(1) + plane * g.in_size();
      int64_t best = -1;
      for_window(g, at, [&](int64_t index) {
        if (best < 0 || is_new_maximum(load(x[index]), load(x[best]))) best = index;
      });
      if (best >= 0) acc[best] += load(buffers.in<T>(0)[plane * g.out_size() + position]);
    };
    return spread_kernel<T>(call, g, spread);
  });
}

/// Each dY goes to the tap that its MaxPool has noted.
template <class T>
auto spread_to_taps(const KeptMaxPool& pool) {
  return [pool](const KernelBuffers& buffers, int64_t plane, const auto& at, int64_t position,
                Math<T>* acc) {
    const int64_t size = pool.g.out_size();
    const uint8_t kept = buffers.in<uint8_t>(1)[place_of_tap(plane, position, pool.channels, size)];
    for_taps(pool.g, at, [&](int64_t tap, int64_t index) {
      if (tap == kept) acc[index] += load(buffers.in<T>(0)[plane * size + position]);
    });
  };
}

Prepared prepare_max_pool_taps_grad(const KernelCall& call) {
  KeptMaxPool pool;
  if (std::string reason = plan_kept_max_pool_grad(call, pool); !reason.empty())
    return Prepared::no(reason);
  return for_float_type(call.outputs[0].dtype, [&]<class T>() {
    return spread_kernel<T>(call, pool.g, spread_to_taps<T>(pool));
  });
}

/// dX of a BatchNormalization whose dY the sums are.
struct FinishNormalized {
  std::vector<DType> types;  // of the operands
  int64_t channels;
  double count;  // elements of a channel

  template <class T>
  void operator()(const KernelBuffers& buffers, int64_t plane, const Math<T>* acc, int64_t size,
                  T* dx) const {
    using Places = NormalizedMaxPoolPlaces;
    const auto read = [&](size_t i) {
      return read_real(buffers.inputs[i], types[i], plane % channels);
    };
    const double mean = read(Places::kMean), inv_std = read(Places::kInvStd);
    const double factor = read(Places::kScale) * inv_std;
    const double slope = read(Places::kDScale) / count * inv_std,
                 offset = read(Places::kDBias) / count;
    const T* x = buffers.in<T>(Places::kX) + plane * size;
    for (int64_t i = 0; i < size; ++i) {
      const double distance = static_cast<double>(load(x[i])) - mean;
      const double value = factor * (static_cast<double>(acc[i]) - offset - distance * slope);
      dx[i] = store<T>(static_cast<Math<T>>(value));
    }
  }
};

Prepared prepare_normalized_max_pool_grad(const KernelCall& call) {
  KeptMaxPool pool;
  if (std::string reason = plan_normalized_max_pool_grad(call, pool); !reason.empty())
    return Prepared::no(reason);
  FinishNormalized finish{{}, pool.channels, 0};
  for (const Operand& operand : call.inputs) finish.types.push_back(operand.dtype);
  const int64_t images = pool.channels == 0 ? 0 : pool.g.planes / pool.channels;
  finish.count = static_cast<double>(images * pool.g.in_size());
  return for_float_type(call.outputs[0].dtype, [&]<class T>() {
    return spread_kernel<T>(call, pool.g, spread_to_taps<T>(pool), finish);
  });
}

/// Each dY is shared equally by the elements that its mean counted.
Prepared prepare_average_pool_grad(const KernelCall& call) {
  PoolGeometry g;
  if (std::string reason = plan_backward(call, g); !reason.empty()) return Prepared::no(reason);
  const bool include_pad = attributes_of(call).get_int("count_include_pad", 0) != 0;
  return for_float_type(call.outputs[0].dtype, [&]<class T>() {
    const auto spread = [g, include_pad](const KernelBuffers& buffers, int64_t plane,
                                         const auto& at, int64_t position, Math<T>* acc) {
      int64_t count = 0;
      if (include_pad) {
        count = g.padded_count(at);
      } else {
        for_window(g, at, [&](int64_t) { ++count; });
      }
      const Math<T> dy = load(buffers.in<T>(0)[plane * g.out_size() + position]);
      for_window(g, at, [&](int64_t index) { acc[index] += dy / static_cast<Math<T>>(count); });
    };
    return spread_kernel<T>(call, g, spread);
  });
}

}  // namespace

std::vector<KernelRow> pool_grad_rows() {
  return {
      {"ai.halfnote", "AveragePoolGrad", "reference", prepare_average_pool_grad},
      {"ai.halfnote", "MaxPoolGrad", "reference", prepare_max_pool_grad},
      {"ai.halfnote", "MaxPoolTapsGrad", "reference", prepare_max_pool_taps_grad},
      {"ai.halfnote", "NormalizedMaxPoolGrad", "reference", prepare_normalized_max_pool_grad},
  };
}

}  // namespace halfnote::cpu
