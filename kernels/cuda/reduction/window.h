// The windows of a pool on the device. Plain planes and images channels last are one thing: images
// of some channels that lie side by side, a plain plane being an image of one channel. A thread has
// `together` of them (kernels/cpu/reduction/window.h has the geometry).
#pragma once

#include "kernels/cpu/reduction/window.h"
#include "kernels/cuda/divisor.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// The same windows, without steps that lead nowhere: those between the elements of windows of one
/// element, and those between windows where there is one. They may be as large as an integer is.
inline cpu::PoolGeometry without_idle_steps(cpu::PoolGeometry g) {
  for (size_t d = 0; d < 3; ++d) {
    if (g.kernel[d] == 1) g.dilation[d] = 1;
    if (g.out[d] <= 1) g.stride[d] = 1;
  }
  return g;
}

/// X and Y as (images, pixels, channels), taken `together` channels at a time.
struct PoolImages {
  cpu::PoolGeometry g;
  int64_t channels;
  Divisor groups, in, out;  // groups of channels; in and out: pixels
  Divisor in_dims[3], out_dims[3], stride[3], dilation[3];

  PoolImages(const cpu::PoolGeometry& geometry, int64_t channels_of_image, int together)
      : g(without_idle_steps(geometry)),
        channels(channels_of_image),
        groups(channels_of_image / together),
        in(geometry.in_size()),
        out(geometry.out_size()) {
    for (size_t d = 0; d < 3; ++d) {
      in_dims[d] = Divisor(g.in[d]);
      out_dims[d] = Divisor(g.out[d]);
      stride[d] = Divisor(g.stride[d]);
      dilation[d] = Divisor(g.dilation[d]);
    }
  }
  /// Planes, each an image of its own.
  explicit PoolImages(const cpu::PoolGeometry& geometry) : PoolImages(geometry, 1, 1) {}

  /// Where a group of channels is; `first` is their place in the image's first pixel.
  struct Place {
    int64_t image, channel;
    cpu::PoolGeometry::Dims at;
  };
  template <int V>
  __device__ Place place(int64_t i, const Divisor& pixels, const Divisor (&dims)[3]) const {
    const int64_t line = groups.quotient(i), image = pixels.quotient(line);
    const int64_t pixel = line - image * pixels.value(), row = dims[2].quotient(pixel);
    return {image,
            (i - line * groups.value()) * V,
            {dims[1].quotient(row), dims[1].remainder(row), pixel - row * dims[2].value()}};
  }
  /// The group's elements in the first pixel of its image.
  __device__ int64_t first(const Place& at, const Divisor& pixels) const {
    return at.image * pixels.value() * channels + at.channel;
  }
  /// Where the window of output `o` begins along a dim: before the input in its padding.
  __device__ int64_t start(size_t d, int64_t o) const { return o * g.stride[d] - g.pad_begin[d]; }
  /// The taps along a dim that lie within the input.
  struct Range {
    int64_t begin, end;
  };
  __device__ Range taps(size_t d, int64_t o) const {
    const int64_t from = start(d, o), rest = g.in[d] - from, step = g.dilation[d];
    const int64_t end = rest <= 0 ? 0 : dilation[d].quotient(rest + step - 1);
    return {from >= 0 ? 0 : dilation[d].quotient(step - 1 - from),
            end < g.kernel[d] ? end : g.kernel[d]};
  }
  /// The outputs along a dim whose windows reach over an input position.
  __device__ Range outputs_over(size_t d, int64_t position) const {
    const int64_t reach = position + g.pad_begin[d];
    const int64_t least = reach - (g.kernel[d] - 1) * g.dilation[d];
    const int64_t last = stride[d].quotient(reach);
    return {least <= 0 ? 0 : stride[d].quotient(least + g.stride[d] - 1),
            last < g.out[d] ? last + 1 : g.out[d]};
  }
  /// Which tap of the window of output `o` an input position is; -1 if it lies between two.
  __device__ int64_t tap(size_t d, int64_t o, int64_t position) const {
    const int64_t distance = position - start(d, o), tap = dilation[d].quotient(distance);
    return tap * g.dilation[d] == distance ? tap : -1;
  }
  /// Calls `body(tap, elements)` for each element of the window of output `at` within the input, in
  /// order; `from` is its group in the first pixel.
  template <class T, class Body>
  __device__ void for_taps(const cpu::PoolGeometry::Dims& at, const T* from,
                           const Body& body) const {
    const Range ds = taps(0, at[0]), hs = taps(1, at[1]), ws = taps(2, at[2]);
    const int64_t step = g.dilation[2] * channels;
    for (int64_t kd = ds.begin; kd < ds.end; ++kd) {
      const int64_t d = start(0, at[0]) + kd * g.dilation[0];
      for (int64_t kh = hs.begin; kh < hs.end; ++kh) {
        const int64_t h = start(1, at[1]) + kh * g.dilation[1];
        const T* row = from + ((d * g.in[1] + h) * g.in[2] + start(2, at[2])) * channels;
        const int64_t tap = (kd * g.kernel[1] + kh) * g.kernel[2];
        HN_UNROLL_BY_4
        for (int64_t kw = ws.begin; kw < ws.end; ++kw) body(tap + kw, row + kw * step);
      }
    }
  }
  /// The element of X that a tap of the window `at` is, of its group's first channel.
  __device__ int64_t at_tap(const Place& window, int64_t tap) const {
    const int64_t kw = tap % g.kernel[2], rest = tap / g.kernel[2];
    const int64_t kh = rest % g.kernel[1], kd = rest / g.kernel[1];
    const int64_t d = start(0, window.at[0]) + kd * g.dilation[0],
                  h = start(1, window.at[1]) + kh * g.dilation[1],
                  w = start(2, window.at[2]) + kw * g.dilation[2];
    return first(window, in) + ((d * g.in[1] + h) * g.in[2] + w) * channels;
  }
  /// Elements of a window, with `padded` those in its padding too.
  __device__ int64_t taps_that_count(const cpu::PoolGeometry::Dims& at, bool padded) const {
    int64_t count = 1;
    for (size_t d = 0; d < 3; ++d) {
      if (!padded) {
        const Range inside = taps(d, at[d]);
        count *= inside.end > inside.begin ? inside.end - inside.begin : 0;
        continue;
      }
      const int64_t rest = g.in[d] + g.pad_end[d] - start(d, at[d]);
      const int64_t end = rest <= 0 ? 0 : dilation[d].quotient(rest + g.dilation[d] - 1);
      count *= end < g.kernel[d] ? end : g.kernel[d];
    }
    return count;
  }
};

/// The mean of each window.
template <class T, int V>
struct AveragePool {
  PoolImages images;
  const T* x;
  T* y;
  bool include_pad;
  __device__ void operator()(int64_t i) const {
    const PoolImages::Place at = images.place<V>(i, images.out, images.out_dims);
    double sums[V] = {};
    images.for_taps(at.at, x + images.first(at, images.in), [&](int64_t, const T* elements) {
      const Packed<T, V> pack = load_packed<V>(elements);
      HN_UNROLL
      for (int v = 0; v < V; ++v) sums[v] += load_number(pack.of[v]);
    });
    const int64_t count = images.taps_that_count(at.at, include_pad);
    Packed<T, V> to;
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const double mean = count == 0 ? 0 : sums[v] / static_cast<double>(count);
      to.of[v] = store_number<T>(static_cast<Math<T>>(mean));
    }
    store_packed(y + i * V, to);
  }
};

/// Calls `body.template operator()<V>()`: 16 bytes of channels at a time, or one channel.
template <class T, size_t N, class Body>
void for_channels(int64_t channels, const std::array<const void*, N>& addresses, const Body& body) {
  if constexpr (sizeof(T) <= 4) {  // wider types lie plain: one channel
    constexpr int kPack = 16 / sizeof(T);
    if (channels % kPack == 0 && are_aligned(addresses)) return body.template operator()<kPack>();
  }
  body.template operator()<1>();
}

}  // namespace halfnote::HN_CUDA
