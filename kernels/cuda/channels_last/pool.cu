// Pools and their gradients channels last: a thread has some channels side by side, neighbouring
// threads have neighbouring channels. The gradient of a maximum is one pass over X where windows do
// not overlap: each finds its maximum and writes the elements up to the next window. Where they
// may, a first pass finds which tap each maximum is, and a second one adds for an element of X what
// comes to it from the windows over it, in the order of the outputs, as the plain form does.
#include <array>

#include "kernels/cpu/reduction/window.h"
#include "kernels/cuda/channels_last/flat_maxima.h"
#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::PoolGeometry;

/// Elements of a window up to which the gradient of a maximum is channels last.
constexpr int64_t kMostTaps = 64;

/// X and Y as (images, pixels, channels), taken `together` channels at a time.
struct Images {
  PoolGeometry g;
  int64_t channels;
  Divisor groups, in, out;  // groups of channels; in and out: pixels
  Divisor in_dims[3], out_dims[3], stride[3], dilation[3];

  Images(const PoolGeometry& geometry, const Shape& shape, int together)
      : g(geometry),
        channels(shape[1]),
        groups(shape[1] / together),
        in(geometry.in_size()),
        out(geometry.out_size()) {
    for (size_t d = 0; d < 3; ++d) {
      in_dims[d] = Divisor(g.in[d]);
      out_dims[d] = Divisor(g.out[d]);
      stride[d] = Divisor(g.stride[d]);
      dilation[d] = Divisor(g.dilation[d]);
    }
  }

  /// Where a group of channels is; `first` is their place in the image's first pixel.
  struct Place {
    int64_t image, channel;
    PoolGeometry::Dims at;
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
  __device__ void for_taps(const PoolGeometry::Dims& at, const T* from, const Body& body) const {
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
};

/// The maxima of the window of output `at`.
template <class T, int V>
__device__ Maxima<T, V> maxima_of(const Images& images, const PoolGeometry::Dims& at,
                                  const T* from) {
  Maxima<T, V> maxima;
  images.for_taps(at, from, [&](int64_t tap, const T* elements) {
    maxima.take(load_packed<V>(elements), tap);
  });
  return maxima;
}

#if defined(__CUDA_ARCH__)
/// The larger one of either half, NaN where one is.
template <class T>
__device__ __forceinline__ uint32_t larger_of_two(uint32_t a, uint32_t b) {
  uint32_t c;
  if constexpr (std::is_same_v<T, Half>) {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  }
  return c;
}
#endif

/// Keeps of each element the larger one, and NaN.
template <class T, int V>
__device__ __forceinline__ void keep_larger(Packed<T, V>& most, const Packed<T, V>& others) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 2 && V % 2 == 0) {
    uint32_t a[V / 2], b[V / 2];
    memcpy(a, &most, sizeof(a));
    memcpy(b, &others, sizeof(b));
    HN_UNROLL
    for (int w = 0; w < V / 2; ++w) a[w] = larger_of_two<T>(a[w], b[w]);
    memcpy(&most, a, sizeof(a));
    return;
  }
#endif
  HN_UNROLL
  for (int v = 0; v < V; ++v) {
    if (cpu::is_new_maximum(load_number(others.of[v]), load_number(most.of[v])))
      most.of[v] = others.of[v];
  }
}

template <class T, int V>
struct LastMaxPool {
  Images images;
  const T* x;
  T* y;
  __device__ void operator()(int64_t i) const {
    const Images::Place at = images.place<V>(i, images.out, images.out_dims);
    const T* from = x + images.first(at, images.in);
    Packed<T, V> most;
    HN_UNROLL
    for (int v = 0; v < V; ++v) most.of[v] = store_number<T>(-static_cast<Math<T>>(INFINITY));
    images.for_taps(at.at, from, [&](int64_t, const T* elements) {
      keep_larger(most, load_packed<V>(elements));
    });
    store_packed(y + i * V, most);
  }
};

/// Elements of a window, with `padded` those in its padding too.
__device__ inline int64_t taps_that_count(const Images& images, const PoolGeometry::Dims& at,
                                          bool padded) {
  int64_t count = 1;
  for (size_t d = 0; d < 3; ++d) {
    if (!padded) {
      const Images::Range taps = images.taps(d, at[d]);
      count *= taps.end > taps.begin ? taps.end - taps.begin : 0;
      continue;
    }
    const PoolGeometry& g = images.g;
    const int64_t rest = g.in[d] + g.pad_end[d] - images.start(d, at[d]);
    const int64_t end = rest <= 0 ? 0 : images.dilation[d].quotient(rest + g.dilation[d] - 1);
    count *= end < g.kernel[d] ? end : g.kernel[d];
  }
  return count;
}

template <class T, int V>
struct LastAveragePool {
  Images images;
  const T* x;
  T* y;
  bool include_pad;
  __device__ void operator()(int64_t i) const {
    const Images::Place at = images.place<V>(i, images.out, images.out_dims);
    double sums[V] = {};
    images.for_taps(at.at, x + images.first(at, images.in), [&](int64_t, const T* elements) {
      const Packed<T, V> pack = load_packed<V>(elements);
      HN_UNROLL
      for (int v = 0; v < V; ++v) sums[v] += load_number(pack.of[v]);
    });
    const int64_t count = taps_that_count(images, at.at, include_pad);
    Packed<T, V> to;
    HN_UNROLL
    for (int v = 0; v < V; ++v) {
      const double mean = count == 0 ? 0 : sums[v] / static_cast<double>(count);
      to.of[v] = store_number<T>(static_cast<Math<T>>(mean));
    }
    store_packed(y + i * V, to);
  }
};

/// Which tap of each window is its maximum.
template <class T, int V>
struct LastFindMaxima {
  Images images;
  const T* x;
  uint8_t* taps;
  __device__ void operator()(int64_t i) const {
    const Images::Place at = images.place<V>(i, images.out, images.out_dims);
    store_packed(taps + i * V,
                 maxima_of<T, V>(images, at.at, x + images.first(at, images.in)).taps);
  }
};

/// The gradient of a maximum (`taps` are known) or of a mean.
template <class T, int V, bool kMax>
struct LastPoolGradient {
  Images images;
  const T* dy;
  const uint8_t* taps;
  T* dx;
  bool include_pad;

  __device__ void operator()(int64_t i) const {
    const Images::Place at = images.place<V>(i, images.in, images.in_dims);
    const PoolGeometry& g = images.g;
    const Images::Range ds = images.outputs_over(0, at.at[0]),
                        hs = images.outputs_over(1, at.at[1]),
                        ws = images.outputs_over(2, at.at[2]);
    const int64_t first = images.first(at, images.out);
    Math<T> sums[V] = {};
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
          add(sums, place, (kd * g.kernel[1] + kh) * g.kernel[2] + kw, {d, h, w});
        }
      }
    }
    store_packed(dx + i * V, pack_of<T>(sums));
  }

  /// What the outputs at `place`, of a window at `window`, give to its element `tap`.
  __device__ void add(Math<T> (&sums)[V], int64_t place, int64_t tap,
                      const PoolGeometry::Dims& window) const {
    const Packed<T, V> gradients = load_packed<V>(dy + place);
    if constexpr (kMax) {
      const Packed<uint8_t, V> of_window = load_packed<V>(taps + place);
      HN_UNROLL
      for (int v = 0; v < V; ++v) {
        if (of_window.of[v] == tap) sums[v] += load_number(gradients.of[v]);
      }
    } else {
      const auto count = static_cast<Math<T>>(taps_that_count(images, window, include_pad));
      HN_UNROLL
      for (int v = 0; v < V; ++v) sums[v] += load_number(gradients.of[v]) / count;
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

/// The gradient of a maximum where windows are apart: a thread writes the cell of its window, which
/// goes on to the next one; the first cell begins where X does, the last one ends there.
template <class T, int V>
struct LastMaxCells {
  Images images;
  const T *dy, *x;
  T* dx;

  __device__ Images::Range cell(size_t d, int64_t o) const {
    const int64_t size = images.g.in[d], from = images.start(d, o), to = images.start(d, o + 1);
    const int64_t begin = o == 0 || from < 0 ? 0 : from;
    const int64_t end = o + 1 == images.g.out[d] || to > size ? size : to;
    return {begin, end};
  }
  __device__ void operator()(int64_t i) const {
    const Images::Place at = images.place<V>(i, images.out, images.out_dims);
    const PoolGeometry& g = images.g;
    const int64_t first = images.first(at, images.in);
    const Maxima<T, V> maxima = maxima_of<T, V>(images, at.at, x + first);
    const Packed<T, V> gradients = load_packed<V>(dy + i * V);
    const Images::Range ds = cell(0, at.at[0]), hs = cell(1, at.at[1]), ws = cell(2, at.at[2]);
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
            to.of[v] = maxima.taps.of[v] == tap ? gradients.of[v] : store_number<T>(0);
          store_packed(dx + first + ((d * g.in[1] + h) * g.in[2] + w) * images.channels, to);
        }
      }
    }
  }
};

/// Calls `body.template operator()<V>()`: 16 bytes of channels at a time, or one channel.
template <class T, size_t N, class Body>
void for_channels(int64_t channels, const std::array<const void*, N>& addresses, const Body& body) {
  constexpr int kPack = 16 / sizeof(T);
  if (channels % kPack == 0 && are_aligned(addresses)) return body.template operator()<kPack>();
  body.template operator()<1>();
}

template <bool kMax>
Prepared prepare_pool(const KernelCall& call) {
  PoolGeometry g;
  const Shape &in = call.inputs[0].shape, &out = call.outputs[0].shape;
  if (std::string why = cpu::plan_pool(call, in, out, g); !why.empty()) return Prepared::no(why);
  const bool include_pad = attributes_of(call).get_int("count_include_pad", 0) != 0;
  return for_region_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [g, in, include_pad,
                       count = call.outputs[0].size()](const KernelBuffers& buffers) {
      const T* x = buffers.in<T>(0);
      T* y = buffers.out<T>(0);
      for_channels<T, 2>(in[1], {x, y}, [&]<int V>() {
        const Images images(g, in, V);
        if constexpr (kMax) {
          for_each(stream_of(buffers), count / V, LastMaxPool<T, V>{images, x, y});
        } else {
          for_each(stream_of(buffers), count / V, LastAveragePool<T, V>{images, x, y, include_pad});
        }
      });
    };
    return make_kernel(body);
  });
}

/// What a gradient is of, and how many elements there are.
struct GradientPlan {
  PoolGeometry g;
  Shape in;
  int64_t inputs, outputs;
  bool include_pad, apart;
};

template <class T, bool kMax, int V>
void run_gradient(const GradientPlan& plan, const KernelBuffers& buffers) {
  const Images images(plan.g, plan.in, V);
  const T *dy = buffers.in<T>(0), *x = kMax ? buffers.in<T>(1) : nullptr;
  T* dx = buffers.out<T>(0);
  Stream& stream = stream_of(buffers);
  uint8_t* taps = nullptr;
  if constexpr (kMax) {
    if (plan.apart)
      return for_each(stream, plan.outputs / V, LastMaxCells<T, V>{images, dy, x, dx});
    taps = reinterpret_cast<uint8_t*>(buffers.workspace);
    if (FlatImages::takes(plan.g, plan.inputs, plan.outputs)) {
      const FlatImages flat(plan.g, plan.in[1], V);
      for_each(stream, plan.outputs / V, FlatFindMaxima<T, V>{flat, x, taps});
      return for_each(stream, plan.inputs / V, FlatMaxGradient<T, V>{flat, dy, taps, dx});
    }
    for_each(stream, plan.outputs / V, LastFindMaxima<T, V>{images, x, taps});
  }
  for_each(stream, plan.inputs / V,
           LastPoolGradient<T, V, kMax>{images, dy, taps, dx, plan.include_pad});
}

template <bool kMax>
Prepared prepare_gradient(const KernelCall& call) {
  GradientPlan plan;
  plan.in = call.outputs[0].shape;
  const Shape& out = call.inputs[0].shape;
  if (std::string why = cpu::plan_pool(call, plan.in, out, plan.g); !why.empty())
    return Prepared::no(why);
  plan.include_pad = attributes_of(call).get_int("count_include_pad", 0) != 0;
  plan.apart = are_apart(plan.g);
  plan.inputs = call.outputs[0].size();
  plan.outputs = call.inputs[0].size();
  return for_region_type(call.outputs[0].dtype, [&]<class T>() {
    const auto body = [plan](const KernelBuffers& buffers) {
      const void* x = kMax ? buffers.inputs[1] : nullptr;
      for_channels<T, 3>(plan.in[1], {buffers.inputs[0], x, buffers.outputs[0]},
                         [&]<int V>() { run_gradient<T, kMax, V>(plan, buffers); });
    };
    return make_kernel(body, kMax && !plan.apart ? static_cast<size_t>(plan.outputs) : 0);
  });
}

/// The large tensors, and the pooled one if it has more than one pixel.
BlockedOperands pooled(const KernelCall& call, bool is_gradient) {
  const Operand& large = is_gradient ? call.outputs[0] : call.inputs[0];
  const Operand& pooled = is_gradient ? call.inputs[0] : call.outputs[0];
  if (large.dtype != DType::kF32 && !is_16bit_float(large.dtype)) return {};
  if (!fits_channels_last(large) || pooled.shape.size() != large.shape.size()) return {};
  const uint32_t small = fits_channels_last(pooled) ? 1 : 0;
  if (!is_gradient)
    return call.has_output(1) ? BlockedOperands{} : all_channels_last(call, 1, small);
  const uint32_t x = call.op == "MaxPoolGrad" ? 0b10 : 0;
  PoolGeometry g;
  if (!cpu::plan_pool(call, large.shape, pooled.shape, g).empty()) return {};
  if (x != 0 && g.kernel[0] * g.kernel[1] * g.kernel[2] > kMostTaps) return {};
  return all_channels_last(call, small | x, 1);
}
BlockedOperands forward_operands(const KernelCall& call) { return pooled(call, false); }
BlockedOperands gradient_operands(const KernelCall& call) { return pooled(call, true); }

}  // namespace

std::vector<BlockedRow> channels_last_pools() {
  constexpr std::string_view kPlain = "own.pool", kName = "channels_last.pool";
  return {
      {{"", "AveragePool", kName, prepare_pool<false>}, kPlain, forward_operands},
      {{"", "MaxPool", kName, prepare_pool<true>}, kPlain, forward_operands},
      {{"ai.halfnote", "AveragePoolGrad", kName, prepare_gradient<false>},
       kPlain,
       gradient_operands},
      {{"ai.halfnote", "MaxPoolGrad", kName, prepare_gradient<true>}, kPlain, gradient_operands},
  };
}

}  // namespace halfnote::HN_CUDA
