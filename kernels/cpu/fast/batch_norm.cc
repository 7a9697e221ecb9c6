// BatchNormalization and its gradient, on f32, f16 and bf16: a channel at a time, in
// pieces that stay in the first-level cache. In training, the statistics of the pieces are merged
// in double (Chan's formula), so x is read twice in all, not three times, and a large mean costs no
// accuracy.
#include <cmath>
#include <type_traits>

#include "kernels/cpu/fast/norm_parts.h"
#include "kernels/cpu/fast/parts.h"

namespace halfnote::cpu::fast {

namespace {

/// (images, channels, plane)
struct Geometry {
  int64_t images = 0, channels = 0, plane = 0;
  double per_channel() const { return static_cast<double>(images) * static_cast<double>(plane); }
};

/// Calls `body(start, count)` for the pieces of channel c.
template <class Body>
void for_pieces(const Geometry& g, int64_t c, Body&& body) {
  for (int64_t n = 0; n < g.images; ++n) {
    const int64_t first = (n * g.channels + c) * g.plane;
    for (int64_t at = 0; at < g.plane; at += kPiece) {
      body(first + at, std::min(kPiece, g.plane - at));
    }
  }
}

template <class T>
Moments channel_moments(const Geometry& g, int64_t c, const T* x) {
  Room room;
  MergedMoments moments;
  for_pieces(g, c, [&](int64_t start, int64_t size) {
    moments.add(load_block(x + start, size, room.data()), size);
  });
  return moments.result();
}

/// y = (x − mean)·factor + shift
template <class T>
void normalize_channel(const Geometry& g, int64_t c, const T* x, double mean, double factor,
                       double shift, T* y) {
  const VectorMath& math = vector_math();
  if constexpr (std::is_same_v<T, float>) {
    for_pieces(g, c, [&](int64_t start, int64_t size) {
      math.normalize_exactly(x + start, size, mean, factor, shift, y + start);
    });
  } else {
    Room from, to;
    for_pieces(g, c, [&](int64_t start, int64_t size) {
      math.normalize(load_block(x + start, size, from.data()), size, static_cast<float>(mean),
                     static_cast<float>(factor), static_cast<float>(shift), to.data());
      store_block(to.data(), size, y + start);
    });
  }
}

std::string refusal(const KernelCall& call, size_t x, size_t first_parameter) {
  if (!call.has_input(x) || !call.has_output(0)) return "X or an output is missing";
  if (has_fused_parts(call)) return "an activation or a sum in the normalization";
  const DType type = call.inputs[x].dtype;
  if (type == DType::kF64 || !is_real(type)) return "X is " + std::string(short_name(type));
  if (call.inputs[0].dtype != type || call.outputs[0].dtype != type)
    return "operands of different types";
  for (size_t i = first_parameter; i < call.inputs.size(); ++i) {
    if (call.inputs[i].dtype != DType::kF32) return "a parameter that is not f32";
  }
  for (size_t i = 1; i < call.outputs.size(); ++i) {
    if (call.outputs[i].present() && call.outputs[i].dtype != DType::kF32)
      return "a statistic that is not f32";
  }
  const Shape& shape = call.inputs[x].shape;
  if (shape.size() < 3) return "no spatial dims";
  const int64_t plane = element_count(std::span<const int64_t>(shape).subspan(2));
  if (plane < 16) return "a plane of " + std::to_string(plane) + " elements, less than a vector";
  if (call.inputs[x].size() == 0) return "a tensor without elements";
  return {};
}

Geometry geometry_of(const KernelCall& call, size_t x, size_t first_parameter) {
  const Shape& shape = call.inputs[x].shape;
  for (size_t i = first_parameter; i < call.inputs.size(); ++i) require_size(call, i, shape[1]);
  require_size(call, 0, call.inputs[x].size());
  return {shape[0], shape[1], element_count(std::span<const int64_t>(shape).subspan(2))};
}

void write(const KernelBuffers& buffers, size_t output, int64_t c, double value) {
  if (output < buffers.outputs.size() && buffers.outputs[output]) {
    buffers.out<float>(output)[c] = static_cast<float>(value);
  }
}

/// In inference: with the statistics that came.
template <class T>
Prepared inference_kernel(const KernelCall& call, const Geometry& g) {
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(g.channels, 1, threads, [&](int64_t c, int64_t) {
      const double inv_std = 1 / std::sqrt(buffers.in<float>(4)[c] + epsilon);
      normalize_channel(g, c, buffers.in<T>(0), buffers.in<float>(3)[c],
                        buffers.in<float>(1)[c] * inv_std, buffers.in<float>(2)[c],
                        buffers.out<T>(0));
    });
  };
  return make_kernel(body, 0,
                     [](size_t input, size_t output) { return input == 0 && output == 0; });
}

template <class T>
Prepared forward_kernel(const KernelCall& call, const Geometry& g, bool saves) {
  const double epsilon = attributes_of(call).get_float("epsilon", 1e-5f);
  const double momentum = attributes_of(call).get_float("momentum", 0.9f);
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(g.channels, 1, threads, [&](int64_t c, int64_t) {
      const Moments moments = channel_moments(g, c, buffers.in<T>(0));
      const double inv_std = 1 / std::sqrt(moments.variance + epsilon);
      const auto blend = [momentum](double running, double now) {
        return running * momentum + now * (1 - momentum);
      };
      write(buffers, 1, c, blend(buffers.in<float>(3)[c], moments.mean));
      write(buffers, 2, c, blend(buffers.in<float>(4)[c], moments.variance));
      if (saves) {
        write(buffers, 3, c, moments.mean);
        write(buffers, 4, c, inv_std);
      }
      normalize_channel(g, c, buffers.in<T>(0), moments.mean, buffers.in<float>(1)[c] * inv_std,
                        buffers.in<float>(2)[c], buffers.out<T>(0));
    });
  };
  return make_kernel(body, 0,
                     [](size_t input, size_t output) { return input == 0 && output == 0; });
}

template <class T>
Prepared gradient_kernel(const KernelCall& call, const Geometry& g) {
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(g.channels, 1, threads, [&](int64_t c, int64_t) {
      const VectorMath& math = vector_math();
      const float mean = buffers.in<float>(3)[c];
      const double inv_std = buffers.in<float>(4)[c];
      Room dy_room, x_room, dx_room;
      double sum = 0, product = 0;
      for_pieces(g, c, [&](int64_t start, int64_t size) {
        math.gradient_sums(load_block(buffers.in<T>(0) + start, size, dy_room.data()),
                           load_block(buffers.in<T>(1) + start, size, x_room.data()), size, mean,
                           &sum, &product);
      });
      product *= inv_std;
      write(buffers, 1, c, product);
      write(buffers, 2, c, sum);
      const auto factor = static_cast<float>(buffers.in<float>(2)[c] * inv_std);
      const auto offset = static_cast<float>(sum / g.per_channel());
      const auto slope = static_cast<float>(product / g.per_channel() * inv_std);
      for_pieces(g, c, [&](int64_t start, int64_t size) {
        T* target = buffers.out<T>(0) + start;
        float* dx = result_block(target, dx_room.data());
        math.normalize_gradient(load_block(buffers.in<T>(0) + start, size, dy_room.data()),
                                load_block(buffers.in<T>(1) + start, size, x_room.data()), size,
                                mean, factor, offset, slope, dx);
        store_block(dx, size, target);
      });
    });
  };
  return make_kernel(body, 0,
                     [](size_t input, size_t output) { return input <= 1 && output == 0; });
}

Prepared prepare_forward(const KernelCall& call) {
  if (std::string why = refusal(call, 0, 1); !why.empty()) return Prepared::no(why);
  if (in_inference(call) && call.has_output(1)) return Prepared::no("statistics in inference");
  const Geometry geometry = geometry_of(call, 0, 1);
  return for_small_float(call.inputs[0].dtype, [&]<class T>() {
    if (in_inference(call)) return inference_kernel<T>(call, geometry);
    return forward_kernel<T>(call, geometry, !call.domain.empty());
  });
}

Prepared prepare_gradient(const KernelCall& call) {
  if (std::string why = refusal(call, 1, 2); !why.empty()) return Prepared::no(why);
  const Geometry geometry = geometry_of(call, 1, 2);
  return for_small_float(call.inputs[1].dtype,
                         [&]<class T>() { return gradient_kernel<T>(call, geometry); });
}

}  // namespace

std::vector<KernelRow> batch_norm_rows() {
  return {
      {"", "BatchNormalization", "fast.batch_norm", prepare_forward},
      {"ai.halfnote", "BatchNormalization", "fast.batch_norm", prepare_forward},
      {"ai.halfnote", "BatchNormalizationGrad", "fast.batch_norm", prepare_gradient},
  };
}

}  // namespace halfnote::cpu::fast
