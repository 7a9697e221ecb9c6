// The reference of a maximum that keeps its taps; that of its gradient stands in pool_grad.cc.
#include "kernels/cpu/reduction/kept_maxima.h"

#include <algorithm>

#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/parts.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu {

namespace {

/// Does a byte tell the taps of a window apart?
bool has_taps_of_a_byte(const PoolGeometry& g) {
  int64_t count = 1;
  for (const int64_t along_dim : g.kernel)
    count *= std::min<int64_t>(along_dim, int64_t{kNoTap} + 1);
  return count <= kNoTap;
}

/// Are these the taps of such windows (N, C, spatial…)?
bool are_taps_of(const Operand& taps, const Shape& windows) {
  Shape wanted = windows;
  std::rotate(wanted.begin() + 1, wanted.begin() + 2, wanted.end());
  return taps.dtype == DType::kU8 && taps.shape == wanted;
}

/// What does not fit of either op; `taps` may be missing.
std::string unfit(const PoolGeometry& g, const Operand* taps, const Shape& windows) {
  if (!has_taps_of_a_byte(g)) return "windows of more taps than a byte tells apart";
  if (taps == nullptr || are_taps_of(*taps, windows)) return {};
  return "the taps of its windows have another shape or type";
}

/// What X of a plane counts times.
int sign_of_plane(const KeptMaxPool& pool, const KernelBuffers& buffers, int64_t plane) {
  if (pool.scale == DType::kUndefined) return 1;
  return sign_of(read_real(buffers.inputs[1], pool.scale, plane % pool.channels));
}

/// Why operand `index` is not there as a float for each channel, or an empty string.
std::string channel_refusal(const KernelCall& call, size_t index, int64_t channels) {
  if (!call.has_input(index)) return "an operand is missing";
  const Operand& operand = call.inputs[index];
  return is_real(operand.dtype) && operand.size() == channels
             ? ""
             : "operand " + std::to_string(index) + " is no number a channel";
}

Prepared prepare_forward(const KernelCall& call) {
  KeptMaxPool pool;
  if (std::string why = plan_kept_max_pool(call, pool); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([pool, threads = call.threads](const KernelBuffers& buffers) {
      const PoolGeometry& g = pool.g;
      uint8_t* taps = buffers.out<uint8_t>(1);
      parallel_blocks(g.planes, 1, threads, [&](int64_t plane, int64_t) {
        const T* x = buffers.in<T>(0) + plane * g.in_size();
        T* y = buffers.out<T>(0) + plane * g.out_size();
        const int sign = sign_of_plane(pool, buffers, plane);
        const auto counted = [&](T element) {
          return sign == 0 ? Math<T>(0) : sign * load(element);
        };
        for_outputs(g, [&](int64_t position, const auto& at) {
          T most = lowest<T>();
          uint8_t tap_of_most = kNoTap;
          for_taps(g, at, [&](int64_t tap, int64_t index) {
            if (tap_of_most != kNoTap && !is_new_maximum(counted(x[index]), counted(most))) return;
            most = x[index];
            tap_of_most = static_cast<uint8_t>(tap);
          });
          if (pool.relu && !(load(most) > 0)) tap_of_most = kNoTap;
          y[position] = pool.relu && load(most) < 0 ? store<T>(0) : most;
          if (taps) taps[place_of_tap(plane, position, pool.channels, g.out_size())] = tap_of_most;
        });
      });
    });
  });
}

}  // namespace

std::string plan_kept_max_pool(const KernelCall& call, KeptMaxPool& pool) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  const Operand &x = call.inputs[0], &y = call.outputs[0];
  if (x.dtype != y.dtype) return "operands of different types";
  const std::string activation = attributes_of(call).get_string("activation", "");
  if (!activation.empty() && activation != "Relu") return "unknown activation '" + activation + "'";
  pool.relu = !activation.empty();
  if (std::string why = plan_pool(call, x.shape, y.shape, pool.g); !why.empty()) return why;
  pool.channels = x.shape[1];
  if (call.has_input(1)) {
    if (pool.relu) return "an activation of what signs were turned round for";
    if (std::string why = channel_refusal(call, 1, pool.channels); !why.empty()) return why;
    pool.scale = call.inputs[1].dtype;
  }
  return unfit(pool.g, call.has_output(1) ? &call.outputs[1] : nullptr, y.shape);
}

std::string plan_kept_max_pool_grad(const KernelCall& call, KeptMaxPool& pool) {
  if (!call.has_input(1) || !call.has_output(0)) return "an operand is missing";
  const Operand &dy = call.inputs[0], &dx = call.outputs[0];
  if (dy.dtype != dx.dtype) return "operands of different types";
  if (std::string why = plan_pool(call, dx.shape, dy.shape, pool.g); !why.empty()) return why;
  pool.channels = dx.shape[1];
  return unfit(pool.g, &call.inputs[1], dy.shape);
}

std::string plan_normalized_max_pool_grad(const KernelCall& call, KeptMaxPool& pool) {
  using Places = NormalizedMaxPoolPlaces;
  if (std::string why = plan_kept_max_pool_grad(call, pool); !why.empty()) return why;
  if (!call.has_input(Places::kX)) return "an operand is missing";
  const Operand &x = call.inputs[Places::kX], &dx = call.outputs[0];
  if (x.dtype != dx.dtype) return "operands of different types";
  if (x.shape != dx.shape) return "X and dX of different shapes";
  for (size_t i = Places::kScale; i < Places::kCount; ++i) {
    if (std::string why = channel_refusal(call, i, pool.channels); !why.empty()) return why;
  }
  return "";
}

std::vector<KernelRow> kept_max_pool_rows() {
  return {
      {"ai.halfnote", "MaxPool", "reference", prepare_forward},
  };
}

}  // namespace halfnote::cpu
