// The gradients of MaxPool and AveragePool: a thread an element of dX, or some channels side by
// side, neighbouring threads having neighbouring elements. It adds what comes to it from the
// windows over it, in the order of the outputs, as the CPU does. Which tap of each window is its
// maximum is found once, by a first pass, unless the MaxPool has kept it. Where no two windows meet
// one pass does both: a thread finds the maximum of a window and writes the elements up to the next
// one.
#include "kernels/cuda/reduction/pool_grad.h"

#include <array>

#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/reduction/flat_maxima.h"
#include "kernels/cuda/reduction/gather_windows.h"
#include "kernels/cuda/reduction/kept_maxima.h"
#include "kernels/cuda/reduction/max_cells.h"
#include "kernels/cuda/reduction/window.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::PoolGeometry;

/// The maxima of the window of output `at`.
template <class T, int V, class Tap>
__device__ Maxima<T, V, Tap> maxima_of(const PoolImages& images, const PoolGeometry::Dims& at,
                                       const T* from) {
  Maxima<T, V, Tap> maxima;
  images.for_taps(at, from, [&](int64_t tap, const T* elements) {
    maxima.take(load_packed<V>(elements), tap);
  });
  return maxima;
}

/// Which tap of each window is its maximum.
template <class T, int V, class Tap>
struct FindMaxima {
  PoolImages images;
  const T* x;
  Tap* taps;
  __device__ void operator()(int64_t i) const {
    const PoolImages::Place at = images.place<V>(i, images.out, images.out_dims);
    const T* from = x + images.first(at, images.in);
    store_packed(taps + i * V, maxima_of<T, V, Tap>(images, at.at, from).packed_taps());
  }
};

/// The gradient is what comes to it.
template <class T, int V, class Gather>
struct PoolGradient {
  Gather gather;
  T* dx;
  __device__ void operator()(int64_t i) const {
    Math<T> sums[V] = {};
    gather.add(i, sums);
    store_packed(dx + i * V, pack_of<T>(sums));
  }
};

/// The taps of a window, found again.
template <class T, int V>
struct FoundTaps {
  const T* x;
  __device__ Packed<uint8_t, V> of(const PoolImages& images, const PoolImages::Place& at,
                                   int64_t) const {
    return maxima_of<T, V, uint8_t>(images, at.at, x + images.first(at, images.in)).packed_taps();
  }
};
/// The same where they are known.
template <class T, int V>
struct KeptTaps {
  const uint8_t* taps;
  TapPlaces places;
  __device__ Packed<uint8_t, V> of(const PoolImages&, const PoolImages::Place&,
                                   int64_t place) const {
    return load_packed<V>(taps + places.of(place));
  }
};

/// The gradient of a maximum where windows are apart: a thread writes the cell of its window, which
/// goes on to the next one; the first cell begins where X does, the last one ends there.
template <class T, int V, class Taps>
struct MaxCells {
  PoolImages images;
  Taps taps;
  const T* dy;
  T* dx;

  __device__ PoolImages::Range cell(size_t d, int64_t o) const {
    const int64_t size = images.g.in[d], from = images.start(d, o), to = images.start(d, o + 1);
    const int64_t begin = o == 0 || from < 0 ? 0 : from;
    const int64_t end = o + 1 == images.g.out[d] || to > size ? size : to;
    return {begin, end};
  }
  /// As sums of one: of -0 that is 0.
  __device__ Packed<T, V> sums_at(int64_t place) const {
    const Packed<T, V> gradients = load_packed<V>(dy + place);
    Math<T> sums[V] = {};
    HN_UNROLL
    for (int v = 0; v < V; ++v) sums[v] += load_number(gradients.of[v]);
    return pack_of<T>(sums);
  }
  __device__ void operator()(int64_t i) const {
    const PoolImages::Place at = images.place<V>(i, images.out, images.out_dims);
    const PoolGeometry& g = images.g;
    const int64_t first = images.first(at, images.in);
    const Packed<uint8_t, V> maxima = taps.of(images, at, i * V);
    const Packed<T, V> sums = sums_at(i * V);
    const PoolImages::Range ds = cell(0, at.at[0]), hs = cell(1, at.at[1]), ws = cell(2, at.at[2]);
    for (int64_t d = ds.begin; d < ds.end; ++d) {
      const int64_t kd = d - images.start(0, at.at[0]);
      for (int64_t h = hs.begin; h < hs.end; ++h) {
        const int64_t kh = h - images.start(1, at.at[1]);
        const bool in_window = kd < g.kernel[0] && kh < g.kernel[1];
        for (int64_t w = ws.begin; w < ws.end; ++w) {
          const int64_t kw = w - images.start(2, at.at[2]);
          const int64_t tap =
              in_window && kw < g.kernel[2] ? (kd * g.kernel[1] + kh) * g.kernel[2] + kw : -1;
          Packed<T, V> to;
          HN_UNROLL
          for (int v = 0; v < V; ++v)
            to.of[v] = maxima.of[v] == tap ? sums.of[v] : store_number<T>(0);
          store_joined(dx + first + ((d * g.in[1] + h) * g.in[2] + w) * images.channels, to);
        }
      }
    }
  }
};

/// Do no two windows meet, so that X falls apart into one cell for each?
bool are_apart(const PoolGeometry& g) {
  for (size_t d = 0; d < 3; ++d) {
    if (g.stride[d] < g.kernel[d] || g.dilation[d] != 1 || g.out[d] == 0) return false;
  }
  return true;
}

/// Is the cell of a window so small that neighbours, each writing its own, write whole lines
/// between them? Those of many channels side by side do in any case.
bool is_small_cell(const PoolGeometry& g) {
  constexpr int64_t kMost = 16;
  int64_t size = 1;
  for (size_t d = 0; d < 3; ++d) {
    const int64_t along_dim = g.out[d] == 1 ? g.in[d] : g.stride[d];
    if (along_dim > kMost) return false;
    size *= along_dim;
  }
  return size <= kMost;
}

/// What a gradient is of, and how many elements there are.
struct GradientPlan {
  PoolGeometry g;
  int64_t channels, inputs, outputs;
  bool include_pad, apart, few_taps, flat;
  TapPlaces kept;  // where a MaxPool has left its taps

  /// Bytes of a tap, of which the workspace has one for each output; 0 if it has none.
  size_t tap_bytes(PoolKind kind) const {
    if (kind != PoolKind::kMax || apart) return 0;
    return few_taps ? sizeof(uint8_t) : sizeof(int64_t);
  }
};

GradientPlan plan_gradient(const KernelCall& call, const PoolGeometry& g, int64_t channels) {
  GradientPlan plan;
  plan.g = without_idle_steps(g);
  plan.channels = channels;
  plan.inputs = call.outputs[0].size();
  plan.outputs = call.inputs[0].size();
  plan.include_pad = attributes_of(call).get_int("count_include_pad", 0) != 0;
  plan.few_taps = has_few_taps(g);
  plan.apart = plan.few_taps && are_apart(g) && (channels > 1 || is_small_cell(g));
  plan.flat = plan.few_taps && FlatImages::takes(plan.g, plan.inputs, plan.outputs);
  const int64_t all_channels = call.outputs[0].shape[1];
  plan.kept = {Divisor(plan.g.out_size()), Divisor(channels == all_channels ? 1 : all_channels)};
  return plan;
}

/// Runs it for the channels of X, V at a time.
template <class T, int V, class Gather>
void run_gradient(const GradientPlan& plan, const KernelBuffers& buffers, const Gather& gather) {
  for_each(stream_of(buffers), plan.inputs / V,
           PoolGradient<T, V, Gather>{gather, buffers.out<T>(0)});
}

/// Of windows whose maxima are known, in places of 32 bits.
template <class T, int V>
void run_flat(const GradientPlan& plan, const KernelBuffers& buffers, const uint8_t* taps) {
  const T* dy = buffers.in<T>(0);
  if constexpr (V == kChannelsTogether<T>) {
    if (MaxCells2::takes(plan.g, plan.inputs, plan.outputs)) {
      const int64_t images = plan.inputs / (plan.g.in_size() * plan.channels);
      return run_max_cells<V>(stream_of(buffers), SumsAlone<T>{}, plan.g, plan.channels, images, dy,
                              taps, buffers.out<T>(0));
    }
  }
  const FlatImages flat(plan.g, plan.channels, V);
  run_gradient<T, V>(plan, buffers, FlatMaxGather<T>{flat, dy, taps});
}

template <class T, int V, class Tap>
void run_max_passes(const GradientPlan& plan, const KernelBuffers& buffers) {
  const PoolImages images(plan.g, plan.channels, V);
  auto* taps = reinterpret_cast<Tap*>(buffers.workspace);
  for_each(stream_of(buffers), plan.outputs / V,
           FindMaxima<T, V, Tap>{images, buffers.in<T>(1), taps});
  run_gradient<T, V>(plan, buffers,
                     WindowGather{images, OfMaximum<T, Tap>{buffers.in<T>(0), taps}});
}

/// Of windows of few taps, whose maxima are known.
template <class T, int V>
void run_kept_max_grad(const GradientPlan& plan, const KernelBuffers& buffers) {
  Stream& stream = stream_of(buffers);
  const T* dy = buffers.in<T>(0);
  const auto* taps = buffers.in<uint8_t>(1);
  T* dx = buffers.out<T>(0);
  const PoolImages images(plan.g, plan.channels, V);
  if (plan.apart) {
    using Taps = KeptTaps<T, V>;
    return for_each(stream, plan.outputs / V,
                    MaxCells<T, V, Taps>{images, Taps{taps, plan.kept}, dy, dx});
  }
  if (plan.flat && plan.kept.channels.value() == 1) return run_flat<T, V>(plan, buffers, taps);
  run_gradient<T, V>(plan, buffers,
                     WindowGather{images, OfMaximum<T, uint8_t>{dy, taps, plan.kept}});
}

template <class T, int V>
void run_max_grad(const GradientPlan& plan, const KernelBuffers& buffers) {
  Stream& stream = stream_of(buffers);
  const T *dy = buffers.in<T>(0), *x = buffers.in<T>(1);
  T* dx = buffers.out<T>(0);
  if (plan.apart) {
    const PoolImages images(plan.g, plan.channels, V);
    using Taps = FoundTaps<T, V>;
    return for_each(stream, plan.outputs / V, MaxCells<T, V, Taps>{images, Taps{x}, dy, dx});
  }
  if (plan.flat) {
    auto* taps = reinterpret_cast<uint8_t*>(buffers.workspace);
    const FlatImages flat(plan.g, plan.channels, V);
    for_each(stream, plan.outputs / V, FlatFindMaxima<T, V>{flat, x, taps});
    return run_flat<T, V>(plan, buffers, taps);
  }
  if (plan.few_taps) return run_max_passes<T, V, uint8_t>(plan, buffers);
  if constexpr (V == 1) run_max_passes<T, V, int64_t>(plan, buffers);
}

template <class T, int V>
void run_mean_grad(const GradientPlan& plan, const KernelBuffers& buffers) {
  const PoolImages images(plan.g, plan.channels, V);
  run_gradient<T, V>(plan, buffers,
                     WindowGather{images, OfMean<T>{buffers.in<T>(0), plan.include_pad}});
}

template <class T>
void run_grad(const GradientPlan& plan, PoolKind kind, const KernelBuffers& buffers) {
  if (kind == PoolKind::kMax && !plan.few_taps) return run_max_grad<T, 1>(plan, buffers);
  const void* maxima = kind == PoolKind::kMean ? nullptr : buffers.inputs[1];  // X, or the taps
  for_channels<T, 3>(plan.channels, {buffers.inputs[0], maxima, buffers.outputs[0]}, [&]<int V>() {
    if (kind == PoolKind::kMax) return run_max_grad<T, V>(plan, buffers);
    if (kind == PoolKind::kKeptMax) return run_kept_max_grad<T, V>(plan, buffers);
    run_mean_grad<T, V>(plan, buffers);
  });
}

}  // namespace

Prepared prepare_pool_grad(const KernelCall& call, const PoolGeometry& g, int64_t channels,
                           PoolKind kind) {
  const GradientPlan plan = plan_gradient(call, g, channels);
  const size_t workspace = static_cast<size_t>(plan.outputs) * plan.tap_bytes(kind);
  const auto kernel = [&]<class T>() {
    return make_kernel(
        [plan, kind](const KernelBuffers& buffers) { run_grad<T>(plan, kind, buffers); },
        workspace);
  };
  const DType type = call.outputs[0].dtype;
  return channels == 1 ? for_float_type(type, kernel) : for_region_type(type, kernel);
}

}  // namespace halfnote::HN_CUDA
