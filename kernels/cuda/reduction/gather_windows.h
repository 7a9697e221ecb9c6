// What comes to an element of X from the windows over it, for the gradients of pools.
#pragma once

#include "kernels/cuda/reduction/kept_maxima.h"
#include "kernels/cuda/reduction/window.h"

namespace halfnote::HN_CUDA {

/// What a maximum gives to the element `tap` of its window: all, if it is that.
template <class T, class Tap>
struct OfMaximum {
  using Element = T;
  const T* dy;
  const Tap* taps;
  TapPlaces places = {};
  template <int V>
  __device__ void add(Math<T> (&sums)[V], int64_t place, int64_t tap, const PoolImages&,
                      const cpu::PoolGeometry::Dims&) const {
    const Packed<T, V> gradients = load_packed<V>(dy + place);
    const Packed<Tap, V> of_window = load_packed<V>(taps + places.of(place));
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      if (of_window.of[v] == tap) sums[v] += load_number(gradients.of[v]);
    }
  }
};

/// What a mean gives to each element of its window.
template <class T>
struct OfMean {
  using Element = T;
  const T* dy;
  bool include_pad;
  template <int V>
  __device__ void add(Math<T> (&sums)[V], int64_t place, int64_t, const PoolImages& images,
                      const cpu::PoolGeometry::Dims& window) const {
    const Packed<T, V> gradients = load_packed<V>(dy + place);
    const auto count = static_cast<Math<T>>(images.taps_that_count(window, include_pad));
    HN_UNROLL
    for (int v = 0; v < V; ++v) sums[v] += load_number(gradients.of[v]) / count;
  }
};

/// Adds up what comes to group i of X's channels from the windows over it, in the order of the
/// outputs, as the CPU does.
template <class Part>
struct WindowGather {
  PoolImages images;
  Part part;

  template <int V>
  __device__ void add(int64_t i, Math<typename Part::Element> (&sums)[V]) const {
    const PoolImages::Place at = images.place<V>(i, images.in, images.in_dims);
    const cpu::PoolGeometry& g = images.g;
    const PoolImages::Range ds = images.outputs_over(0, at.at[0]),
                            hs = images.outputs_over(1, at.at[1]),
                            ws = images.outputs_over(2, at.at[2]);
    const int64_t first = images.first(at, images.out);
    for (int64_t d = ds.begin; d < ds.end; ++d) {
      const int64_t kd = images.tap(0, d, at.at[0]);
      for (int64_t h = hs.begin; h < hs.end; ++h) {
        const int64_t kh = images.tap(1, h, at.at[1]);
        if (kd < 0 || kh < 0) continue;
        HN_UNROLL_BY_4
        for (int64_t w = ws.begin; w < ws.end; ++w) {
          const int64_t kw = images.tap(2, w, at.at[2]);
          if (kw < 0) continue;
          const int64_t place = first + ((d * g.out[1] + h) * g.out[2] + w) * images.channels;
          part.add(sums, place, (kd * g.kernel[1] + kh) * g.kernel[2] + kw, images, {d, h, w});
        }
      }
    }
  }
};

template <class Part>
WindowGather(const PoolImages&, const Part&) -> WindowGather<Part>;

}  // namespace halfnote::HN_CUDA
