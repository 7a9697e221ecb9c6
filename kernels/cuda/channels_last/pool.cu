// Pools and their gradients channels last: neighbouring threads have neighbouring channels. In the
// gradient a thread has an element of X, and adds what comes to it from the windows over it, in the
// order of the outputs, as the plain form does.
#include "kernels/cpu/reduction/window.h"
#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/reduction/window.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::PoolGeometry;

/// Elements of a window up to which each element of X looks through all windows over it.
constexpr int64_t kMostTaps = 64;

/// X and Y as (images, pixels, channels).
struct Images {
  PoolGeometry g;
  Divisor channels, in, out;  // in and out: pixels

  Images(const PoolGeometry& geometry, const Shape& shape)
      : g(geometry), channels(shape[1]), in(geometry.in_size()), out(geometry.out_size()) {}

  /// Where an element is; `pixels` are those of its tensor.
  struct Place {
    int64_t image, pixel, channel;
  };
  __device__ Place place(int64_t i, const Divisor& pixels) const {
    const int64_t line = channels.quotient(i), image = pixels.quotient(line);
    return {image, line - image * pixels.value(), i - line * channels.value()};
  }
  /// The channel of an image of a tensor: its pixels are `channels` apart.
  __device__ int64_t first(const Place& at, const Divisor& pixels) const {
    return at.image * pixels.value() * channels.value() + at.channel;
  }
};

template <class T>
__device__ int64_t first_maximum(const PoolGeometry& g, const PoolGeometry::Dims& at, const T* x,
                                 int64_t step) {
  int64_t best = -1;
  cpu::for_window(g, at, [&](int64_t pixel) {
    if (best < 0 || cpu::is_new_maximum(load_number(x[pixel * step]), load_number(x[best * step])))
      best = pixel;
  });
  return best;
}

template <class T>
struct LastMaxPool {
  Images images;
  const T* x;
  T* y;
  __device__ void operator()(int64_t i) const {
    const Images::Place at = images.place(i, images.out);
    const T* own = x + images.first(at, images.in);
    const int64_t step = images.channels.value();
    const int64_t best = first_maximum(images.g, pool_place(images.g.out, at.pixel), own, step);
    y[i] = best < 0 ? store_number<T>(-INFINITY) : own[best * step];
  }
};

template <class T>
struct LastAveragePool {
  Images images;
  const T* x;
  T* y;
  bool include_pad;
  __device__ void operator()(int64_t i) const {
    const Images::Place at = images.place(i, images.out);
    const T* own = x + images.first(at, images.in);
    const int64_t step = images.channels.value();
    const PoolGeometry::Dims window = pool_place(images.g.out, at.pixel);
    double sum = 0;
    cpu::for_window(images.g, window,
                    [&](int64_t pixel) { sum += load_number(own[pixel * step]); });
    const int64_t count = window_count(images.g, window, include_pad);
    const double mean = count == 0 ? 0 : sum / static_cast<double>(count);
    y[i] = store_number<T>(static_cast<Math<T>>(mean));
  }
};

template <class T, bool kMax>
struct LastPoolGradient {
  Images images;
  const T *dy, *x;
  T* dx;
  bool include_pad;
  __device__ void operator()(int64_t i) const {
    const Images::Place at = images.place(i, images.in);
    const int64_t step = images.channels.value(), own = images.first(at, images.in);
    const T* gradients = dy + images.first(at, images.out);
    Math<T> sum = 0;
    for_windows_over(images.g, pool_place(images.g.in, at.pixel),
                     [&](int64_t output, const PoolGeometry::Dims& window) {
                       const Math<T> gradient = load_number(gradients[output * step]);
                       if constexpr (kMax) {
                         if (first_maximum(images.g, window, x + own, step) == at.pixel)
                           sum += gradient;
                       } else {
                         const int64_t count = window_count(images.g, window, include_pad);
                         sum += gradient / static_cast<Math<T>>(count);
                       }
                     });
    dx[i] = store_number<T>(sum);
  }
};

/// Calls `body` for the types that regions hold.
template <class Body>
Prepared for_pooled_type(DType dtype, const Body& body) {
  if (dtype == DType::kF32) return body.template operator()<float>();
  if (dtype == DType::kF16) return body.template operator()<Half>();
  if (dtype == DType::kBF16) return body.template operator()<BFloat16>();
  return Prepared::no("not for elements of type " + std::string(short_name(dtype)));
}

template <bool kMax>
Prepared prepare_pool(const KernelCall& call) {
  PoolGeometry g;
  const Shape &in = call.inputs[0].shape, &out = call.outputs[0].shape;
  if (std::string why = cpu::plan_pool(call, in, out, g); !why.empty()) return Prepared::no(why);
  const bool include_pad = attributes_of(call).get_int("count_include_pad", 0) != 0;
  return for_pooled_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [images = Images(g, in), include_pad,
                       count = call.outputs[0].size()](const KernelBuffers& buffers) {
      const T* x = buffers.in<T>(0);
      T* y = buffers.out<T>(0);
      if constexpr (kMax) {
        for_each(stream_of(buffers), count, LastMaxPool<T>{images, x, y});
      } else {
        for_each(stream_of(buffers), count, LastAveragePool<T>{images, x, y, include_pad});
      }
    };
    return make_kernel(body);
  });
}

template <bool kMax>
Prepared prepare_gradient(const KernelCall& call) {
  PoolGeometry g;
  const Shape &in = call.outputs[0].shape, &out = call.inputs[0].shape;
  if (std::string why = cpu::plan_pool(call, in, out, g); !why.empty()) return Prepared::no(why);
  const bool include_pad = attributes_of(call).get_int("count_include_pad", 0) != 0;
  return for_pooled_type(call.outputs[0].dtype, [&]<class T>() {
    const auto body = [images = Images(g, in), include_pad,
                       count = call.outputs[0].size()](const KernelBuffers& buffers) {
      for_each(
          stream_of(buffers), count,
          LastPoolGradient<T, kMax>{images, buffers.in<T>(0), kMax ? buffers.in<T>(1) : nullptr,
                                    buffers.out<T>(0), include_pad});
    };
    return make_kernel(body);
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
