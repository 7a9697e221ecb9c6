// The gradient of a MaxPool that kept its taps, and of the BatchNormalization before it: dY of the
// normalization is gathered while dX is made of it, and goes to no memory.
#include "kernels/cuda/reduction/normalized_pool.h"

#include <vector>

#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/channels_last/walk.h"
#include "kernels/cuda/normalization/batch.h"
#include "kernels/cuda/reduction/gather_windows.h"
#include "kernels/cuda/reduction/max_cells.h"

namespace halfnote::HN_CUDA {

namespace {

using Places = cpu::NormalizedMaxPoolPlaces;
using cpu::KeptMaxPool;

/// dx = factor·dy + slope·x + rest: of what BatchNormalization's gradient is, by channel.
template <class T>
struct NormalizedLine {
  using M = NormMath<T>;
  M factor, slope, rest;
  __device__ Math<T> gradient(Math<T> dy, T x) const {
    return static_cast<Math<T>>(factor * static_cast<M>(dy) +
                                (slope * static_cast<M>(load_number(x)) + rest));
  }
};

/// The operands that are one number a channel, and what they say of one.
struct NormalizedLines {
  RealPointer scale, mean, inv_std, d_scale, d_bias;
  double share;  // 1 over the elements of a channel

  NormalizedLines(const std::vector<DType>& types, const KernelBuffers& buffers, int64_t elements)
      : share(1 / static_cast<double>(elements)) {
    const auto at = [&](size_t i) { return RealPointer{buffers.in<std::byte>(i), types[i]}; };
    scale = at(Places::kScale), mean = at(Places::kMean), inv_std = at(Places::kInvStd);
    d_scale = at(Places::kDScale), d_bias = at(Places::kDBias);
  }
  /// Those of the channels from c on.
  template <class T, int V>
  __device__ void read(int64_t c, NormalizedLine<T> (&to)[V]) const {
    using M = NormMath<T>;
    const bool in_f32 = are_f32(scale, mean, inv_std, d_scale, d_bias);
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const auto number = [&](const RealPointer& operand) {
        return in_f32 ? f32_at(operand, c + v) : operand[c + v];
      };
      const double of_std = number(inv_std), factor = number(scale) * of_std;
      const double slope = -factor * (number(d_scale) * share * of_std);
      to[v] = {static_cast<M>(factor), static_cast<M>(slope),
               static_cast<M>(-slope * number(mean) - factor * (number(d_bias) * share))};
    }
  }
};

/// Channels last, a cell at a time.
template <class T>
struct NormalizedCells {
  using Channel = NormalizedLine<T>;
  template <int V>
  using Own = Packed<T, V>;
  const T* x;
  NormalizedLines lines;

  template <int V>
  __device__ void know(int64_t c, Channel (&of)[V]) const {
    lines.read(c, of);
  }
  template <int V>
  __device__ void read(int64_t at, Own<V>& own) const {
    own = load_packed<V>(x + at);
  }
  template <int V>
  __device__ void make(const Channel (&of)[V], const Own<V>& own, const Math<T> (&dy)[V],
                       Math<T> (&result)[V]) const {
    HN_UNROLL
    for (int v = 0; v < V; ++v) result[v] = of[v].gradient(dy[v], own.of[v]);
  }
};

/// Channels last, other windows; a body of the walk.
template <class T>
struct NormalizedRows {
  using Element = T;
  using Channel = NormalizedLine<T>;
  static constexpr int kOperands = 1, kBlocksAtOnce = 2;
  static constexpr bool kLong = true;
  const T* operands[kOperands];
  T* dx;
  WindowGather<OfMaximum<T, uint8_t>> gather;
  NormalizedLines lines;

  template <int V>
  __device__ void know(int64_t c, Channel (&of)[V]) const {
    lines.read(c, of);
  }
  template <int V>
  __device__ void apply(const Channel (&of)[V], const RowOf<T, V, 1>& row, int64_t at) const {
    Math<T> dy[V] = {}, result[V];
    gather.add(at / V, dy);
    HN_UNROLL
    for (int v = 0; v < V; ++v) result[v] = of[v].gradient(dy[v], row[0].of[v]);
    store_row(dx, at, result);
  }
};

/// Plain: an element a thread.
template <class T>
struct NormalizedElement {
  const T* x;
  T* dx;
  WindowGather<OfMaximum<T, uint8_t>> gather;
  NormalizedLines lines;
  Divisor plane, channels;

  __device__ void operator()(int64_t i) const {
    Math<T> g[1] = {};
    gather.add(i, g);
    NormalizedLine<T> line[1];
    lines.read(channels.remainder(plane.quotient(i)), line);
    dx[i] = store_number<T>(line[0].gradient(g[0], x[i]));
  }
};

template <class T>
Prepared rows_kernel(const KernelCall& call, const KeptMaxPool& pool,
                     const std::vector<DType>& types) {
  const cpu::PoolGeometry g = without_idle_steps(pool.g);
  const int64_t channels = pool.channels, rows = call.outputs[0].size() / channels;
  constexpr int kPack = kChannelsTogether<T>;
  const bool in_cells =
      channels % kPack == 0 && MaxCells2::takes(g, call.outputs[0].size(), call.inputs[0].size());
  const auto body = [=](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const NormalizedLines lines(types, buffers, rows);
    const T *dy = buffers.in<T>(0), *x = buffers.in<T>(Places::kX);
    const auto* taps = buffers.in<uint8_t>(1);
    T* dx = buffers.out<T>(0);
    if (in_cells) {
      return run_max_cells<kPack>(stream, NormalizedCells<T>{x, lines}, g, channels,
                                  rows / g.in_size(), dy, taps, dx);
    }
    const ChannelWalk walk = walk_for_elements<T>(rows, channels);
    const OfMaximum<T, uint8_t> part{dy, taps, {Divisor(g.out_size()), Divisor(1)}};
    run_elements<T>(
        stream, NormalizedRows<T>{{x}, dx, {PoolImages(g, channels, walk.together), part}, lines},
        walk);
  };
  // A thread reads an element of X before it writes it, and no other one does.
  return make_kernel(
      body, 0, [](size_t input, size_t output) { return input == Places::kX && output == 0; });
}

template <class T>
Prepared elements_kernel(const KernelCall& call, const KeptMaxPool& pool,
                         const std::vector<DType>& types) {
  const auto body = [=, count = call.outputs[0].size()](const KernelBuffers& buffers) {
    if (count == 0) return;
    const int64_t size = pool.g.in_size();
    const NormalizedLines lines(types, buffers, pool.g.planes / pool.channels * size);
    const OfMaximum<T, uint8_t> part{buffers.in<T>(0),
                                     buffers.in<uint8_t>(1),
                                     {Divisor(pool.g.out_size()), Divisor(pool.channels)}};
    for_each(stream_of(buffers), count,
             NormalizedElement<T>{buffers.in<T>(Places::kX),
                                  buffers.out<T>(0),
                                  {PoolImages(pool.g), part},
                                  lines,
                                  Divisor(size),
                                  Divisor(pool.channels)});
  };
  return make_kernel(body);
}

}  // namespace

Prepared prepare_normalized_pool_grad(const KernelCall& call, const KeptMaxPool& pool,
                                      int64_t channels) {
  std::vector<DType> types;
  for (const Operand& operand : call.inputs) types.push_back(operand.dtype);
  const DType type = call.inputs[0].dtype;
  if (channels == 1) {
    return for_float_type(type, [&]<class T>() { return elements_kernel<T>(call, pool, types); });
  }
  return for_region_type(type, [&]<class T>() { return rows_kernel<T>(call, pool, types); });
}

}  // namespace halfnote::HN_CUDA
