// A maximum that keeps its taps: an output a thread, or some channels of one.
#include "kernels/cuda/reduction/kept_maxima.h"

#include <array>

#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/reduction/flat_maxima.h"
#include "kernels/cuda/reduction/window.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::KeptMaxPool;

/// Writes what was found of a window.
template <class T, int V>
struct MaximaOutputs {
  T* y;
  uint8_t* taps;  // null where nobody reads them
  bool relu;

  __device__ void write(int64_t place, int64_t place_of_taps, Maxima<T, V>& maxima) const {
    if (relu) {
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        if (!(maxima.most[v] > 0)) maxima.taps.of[v] = kNoTap;
        if (maxima.most[v] < 0) maxima.most[v] = 0;
      }
    }
    store_packed(y + place, pack_of<T>(maxima.most));
    if (taps != nullptr) store_packed(taps + place_of_taps, maxima.taps);
  }
};

template <class T, int V>
struct KeepMaxima {
  PoolImages images;
  TapPlaces places;
  const T* x;
  MaximaOutputs<T, V> to;
  __device__ void operator()(int64_t i) const {
    const PoolImages::Place at = images.place<V>(i, images.out, images.out_dims);
    Maxima<T, V> maxima;
    images.for_taps(at.at, x + images.first(at, images.in), [&](int64_t tap, const T* elements) {
      maxima.take(load_packed<V>(elements), tap);
    });
    to.write(i * V, places.of(i * V), maxima);
  }
};

/// The same with places of 32 bits.
template <class T, int V>
struct FlatKeepMaxima {
  FlatImages images;
  const T* x;
  MaximaOutputs<T, V> to;
  __device__ void operator()(int64_t i) const {
    Maxima<T, V> maxima;
    images.for_window<V>(i, x,
                         [&](int32_t tap, const Packed<T, V>& pack) { maxima.take(pack, tap); });
    to.write(i * V, i * V, maxima);
  }
};

template <class T>
Prepared kernel_of(const KernelCall& call, const KeptMaxPool& pool, int64_t channels) {
  const cpu::PoolGeometry g = without_idle_steps(pool.g);
  const int64_t count = call.outputs[0].size();
  const bool lies_last = channels == pool.channels;
  const bool flat = lies_last && FlatImages::takes(g, call.inputs[0].size(), count);
  return make_kernel([=](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    const T* x = buffers.in<T>(0);
    T* y = buffers.out<T>(0);
    uint8_t* taps = buffers.out<uint8_t>(1);
    for_channels<T, 3>(channels, {x, y, taps}, [&]<int V>() {
      const MaximaOutputs<T, V> to{y, taps, pool.relu};
      if (flat)
        return for_each(stream, count / V, FlatKeepMaxima<T, V>{FlatImages(g, channels, V), x, to});
      const TapPlaces places{Divisor(g.out_size()), Divisor(lies_last ? 1 : pool.channels)};
      for_each(stream, count / V, KeepMaxima<T, V>{PoolImages(g, channels, V), places, x, to});
    });
  });
}

}  // namespace

Prepared prepare_kept_max_pool(const KernelCall& call, const KeptMaxPool& pool, int64_t channels) {
  const auto kernel = [&]<class T>() { return kernel_of<T>(call, pool, channels); };
  const DType type = call.inputs[0].dtype;
  return channels == 1 ? for_float_type(type, kernel) : for_region_type(type, kernel);
}

}  // namespace halfnote::HN_CUDA
