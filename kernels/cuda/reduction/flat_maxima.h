// A maximum over windows of two dims, and its gradient where they may meet: the usual pool of a
// convolutional net, whose places are found with 32 bits. What is computed, and in which order, is
// as in pool_grad.cu.
#pragma once

#include <algorithm>

#include "base/ops/taps.h"
#include "kernels/cpu/reduction/window.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// The maximum of a window without elements.
template <class Tap>
inline constexpr Tap kNoTapOf = static_cast<Tap>(-1);
static_assert(kNoTapOf<uint8_t> == kNoTap);

/// The maxima of some channels' windows so far, and which taps they are: the first of equals, the
/// first NaN.
template <class T, int V, class Tap = uint8_t>
struct Maxima {
  using Number = std::conditional_t<sizeof(Tap) == 8, int64_t, int32_t>;
  Math<T> most[V];
  Number taps[V];
  bool has_any = false;  // of all channels alike

  __device__ Maxima() {
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      most[v] = -static_cast<Math<T>>(INFINITY);
      taps[v] = kNoTapOf<Tap>;
    }
  }
  __device__ void take(const Packed<T, V>& pack, int64_t tap) {
    const bool is_first = !has_any;
    has_any = true;
    if (is_first) {
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        most[v] = load_number(pack.of[v]);
        taps[v] = static_cast<Number>(tap);
      }
      return;
    }
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const Math<T> value = load_number(pack.of[v]);
      if (!cpu::is_new_maximum(value, most[v])) continue;
      most[v] = value;
      taps[v] = static_cast<Number>(tap);
    }
  }
  __device__ Packed<Tap, V> packed_taps() const {
    Packed<Tap, V> packed;
    HN_UNROLL
    for (int v = 0; v < V; ++v) packed.of[v] = static_cast<Tap>(taps[v]);
    return packed;
  }
};

/// X (images, height, width, channels) and the windows over it, `together` channels at a time.
struct FlatImages {
  /// Of one dim.
  struct Line {
    int32_t in, out, kernel, stride, pad;
    Divisor by_stride, by_in, by_out;

    Line(const cpu::PoolGeometry& g, size_t d)
        : in(static_cast<int32_t>(g.in[d])),
          out(static_cast<int32_t>(g.out[d])),
          kernel(static_cast<int32_t>(g.kernel[d])),
          stride(static_cast<int32_t>(g.stride[d])),
          pad(static_cast<int32_t>(g.pad_begin[d])),
          by_stride(g.stride[d]),
          by_in(g.in[d]),
          by_out(g.out[d]) {}
    /// Are they two at most?
    __device__ bool has_few_over() const { return kernel <= 2 * stride; }
    /// The outputs whose windows reach over an input, from `first` up to before `end`.
    __device__ void outputs_over(int32_t at, int32_t& first, int32_t& end) const {
      const int32_t reach = at + pad, least = reach - kernel + 1;
      first = least <= 0 ? 0
                         : static_cast<int32_t>(
                               by_stride.small_quotient(static_cast<uint32_t>(least + stride - 1)));
      const auto last =
          static_cast<int32_t>(by_stride.small_quotient(static_cast<uint32_t>(reach)));
      end = last < out ? last + 1 : out;
    }
  };
  Line h, w;
  int32_t channels;
  Divisor groups;

  FlatImages(const cpu::PoolGeometry& g, int64_t channels_of_all, int together)
      : h(g, 1),
        w(g, 2),
        channels(static_cast<int32_t>(channels_of_all)),
        groups(channels_of_all / together) {}

  /// Does it do for these windows of X?
  static bool takes(const cpu::PoolGeometry& g, int64_t inputs, int64_t outputs) {
    constexpr int64_t kLimit = int64_t{1} << 31;
    const bool flat = g.in[0] == 1 && g.out[0] == 1 && g.kernel[0] == 1 && g.pad_begin[0] == 0;
    int64_t reach = 0;
    for (size_t d = 1; d < 3; ++d)
      reach = std::max(reach, g.in[d] + g.pad_begin[d] + g.stride[d] + g.kernel[d]);
    return flat && g.dilation[1] == 1 && g.dilation[2] == 1 && inputs < kLimit &&
           outputs < kLimit && reach < kLimit;
  }

  /// Where a group of channels is: of pixel (y, x) of an image.
  struct Place {
    int32_t image, y, x, channel;
  };
  template <int V>
  __device__ Place place(int64_t i, const Divisor& width, const Divisor& height) const {
    const auto at = static_cast<uint32_t>(i);
    const uint32_t line = groups.small_quotient(at), row = width.small_quotient(line);
    const uint32_t image = height.small_quotient(row);
    const auto of = [](uint32_t n, uint32_t quotient, const Divisor& by) {
      return static_cast<int32_t>(n - quotient * static_cast<uint32_t>(by.value()));
    };
    return {static_cast<int32_t>(image), of(row, image, height), of(line, row, width),
            of(at, line, groups) * V};
  }

  /// The element of X that a tap of the window of output i is, of its group's first channel.
  template <int V>
  __device__ int64_t at_tap(int64_t i, int32_t tap) const {
    const Place at = place<V>(i, w.by_out, h.by_out);
    const int32_t kh = tap / w.kernel, kw = tap - kh * w.kernel;
    const int64_t row = int64_t{at.image} * h.in + at.y * h.stride - h.pad + kh;
    return (row * w.in + at.x * w.stride - w.pad + kw) * channels + at.channel;
  }

  /// Calls `body(tap, elements)` for each tap of the window of output i within X, in order. Those
  /// of the usual windows are all on their way before the first of them is used.
  template <int V, class T, class Body>
  __device__ void for_window(int64_t i, const T* x, const Body& body) const {
    constexpr int32_t kFew = 3;
    const Place at = place<V>(i, w.by_out, h.by_out);
    const int32_t top = at.y * h.stride - h.pad, left = at.x * w.stride - w.pad;
    const auto is_inside = [&](int32_t kh, int32_t kw) {
      return kh < h.kernel && kw < w.kernel && top + kh >= 0 && top + kh < h.in && left + kw >= 0 &&
             left + kw < w.in;
    };
    const auto elements = [&](int32_t kh, int32_t kw) {
      const int64_t row = (int64_t{at.image} * h.in + top + kh) * w.in;
      return load_packed<V>(x + (row + left + kw) * channels + at.channel);
    };
    if (h.kernel <= kFew && w.kernel <= kFew) {
      Packed<T, V> few[kFew][kFew];
      HN_UNROLL
      for (int32_t kh = 0; kh < kFew; ++kh) {
        HN_UNROLL
        for (int32_t kw = 0; kw < kFew; ++kw) {
          if (is_inside(kh, kw)) few[kh][kw] = elements(kh, kw);
        }
      }
      HN_UNROLL
      for (int32_t kh = 0; kh < kFew; ++kh) {
        HN_UNROLL
        for (int32_t kw = 0; kw < kFew; ++kw) {
          if (is_inside(kh, kw)) body(kh * w.kernel + kw, few[kh][kw]);
        }
      }
      return;
    }
    for (int32_t kh = top < 0 ? -top : 0; kh < h.kernel && top + kh < h.in; ++kh) {
      for (int32_t kw = left < 0 ? -left : 0; kw < w.kernel && left + kw < w.in; ++kw)
        body(kh * w.kernel + kw, elements(kh, kw));
    }
  }
};

/// Which tap of each window is its maximum.
template <class T, int V>
struct FlatFindMaxima {
  FlatImages images;
  const T* x;
  uint8_t* taps;
  __device__ void operator()(int64_t i) const {
    Maxima<T, V> maxima;
    images.for_window<V>(i, x,
                         [&](int32_t tap, const Packed<T, V>& pack) { maxima.take(pack, tap); });
    store_packed(taps + i * V, maxima.packed_taps());
  }
};

/// Adds up what comes to group i of X's channels from the windows over it, in the order of the
/// outputs. Those of the usual windows, two along a dim at most, are all on their way before the
/// first of them is used.
template <class T>
struct FlatMaxGather {
  FlatImages images;
  const T* dy;
  const uint8_t* taps;

  template <int V>
  struct Window {
    Packed<T, V> gradients;
    Packed<uint8_t, V> taps;

    /// What it has for its element `tap`.
    __device__ void add(Math<T> (&sums)[V], int32_t tap) const {
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        if (taps.of[v] == tap) sums[v] += load_number(gradients.of[v]);
      }
    }
  };
  template <int V>
  __device__ Window<V> window(const FlatImages::Place& at, int32_t oh, int32_t ow) const {
    const int64_t row = (int64_t{at.image} * images.h.out + oh) * images.w.out;
    const int64_t from = (row + ow) * images.channels + at.channel;
    return {load_packed<V>(dy + from), load_packed<V>(taps + from)};
  }
  __device__ int32_t tap(const FlatImages::Place& at, int32_t oh, int32_t ow) const {
    const auto &h = images.h, &w = images.w;
    return (at.y + h.pad - oh * h.stride) * w.kernel + at.x + w.pad - ow * w.stride;
  }

  template <int V>
  __device__ void add(int64_t i, Math<T> (&sums)[V]) const {
    const auto &h = images.h, &w = images.w;
    const FlatImages::Place at = images.place<V>(i, w.by_in, h.by_in);
    int32_t top, bottom, left, right;
    h.outputs_over(at.y, top, bottom);
    w.outputs_over(at.x, left, right);
    if (h.has_few_over() && w.has_few_over()) {
      Window<V> few[2][2];
      HN_UNROLL
      for (int32_t a = 0; a < 2; ++a) {
        HN_UNROLL
        for (int32_t b = 0; b < 2; ++b) {
          if (top + a < bottom && left + b < right) few[a][b] = window<V>(at, top + a, left + b);
        }
      }
      HN_UNROLL
      for (int32_t a = 0; a < 2; ++a) {
        HN_UNROLL
        for (int32_t b = 0; b < 2; ++b) {
          if (top + a < bottom && left + b < right) few[a][b].add(sums, tap(at, top + a, left + b));
        }
      }
      return;
    }
    for (int32_t oh = top; oh < bottom; ++oh) {
      for (int32_t ow = left; ow < right; ++ow) window<V>(at, oh, ow).add(sums, tap(at, oh, ow));
    }
  }
};

}  // namespace halfnote::HN_CUDA
