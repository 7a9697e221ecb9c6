// MaxPool over two dims and its gradient, on f32, f16 and bf16: a plane at a time in f32. The
// common 2×2 window with stride 2 has its own file; other windows go row by row, tap by tap, and
// keep the index of the maximum.
#include <limits>

#include "kernels/cpu/fast/max_pool_2x2.h"
#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/fast/vector_math.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/window.h"

namespace halfnote::cpu::fast {

namespace {

/// Calls `body(share, plane)`; planes are shared out evenly, each share with scratch memory of its
/// own.
template <class Body>
void for_planes(int64_t planes, int threads, Body&& body) {
  const int64_t grain = (planes + threads - 1) / threads;
  parallel_blocks(planes, grain, threads, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) body(begin / grain, plane);
  });
}

/// Scratch of one share: f32 planes, the maxima of a row and their indices.
struct Scratch {
  size_t x = 0, y = 0, dx = 0, best = 0, where = 0, two_by_two = 0, size = 0;
};

Scratch plan_scratch(const PoolGeometry& g) {
  WorkspacePlan plan;
  Scratch scratch;
  scratch.x = plan.add_elements<float>(g.in_size());
  scratch.y = plan.add_elements<float>(g.out_size() + kOverrun);
  scratch.dx = plan.add_elements<float>(g.in_size());
  scratch.best = plan.add_elements<float>(g.out[2]);
  scratch.where = plan.add_elements<int32_t>(g.out[2]);
  scratch.two_by_two = plan.add_elements<float>(is_two_by_two(g) ? two_by_two_room(g) : 0);
  scratch.size = plan.size();
  return scratch;
}

/// The maxima of output row `row` and their indices in the plane (-1: the window lies in the
/// padding).
void maxima_of_row(const PoolGeometry& g, const float* x, int64_t row, float* best,
                   int32_t* where) {
  std::fill_n(best, g.out[2], -std::numeric_limits<float>::infinity());
  std::fill_n(where, g.out[2], -1);
  for (int64_t kh = 0; kh < g.kernel[1]; ++kh) {
    const int64_t h = row * g.stride[1] - g.pad_begin[1] + kh * g.dilation[1];
    if (h < 0 || h >= g.in[1]) continue;
    for (int64_t kw = 0; kw < g.kernel[2]; ++kw) {
      const int64_t offset = kw * g.dilation[2] - g.pad_begin[2], stride = g.stride[2];
      const int64_t first = offset >= 0 ? 0 : (-offset + stride - 1) / stride;
      const int64_t room = g.in[2] - offset;  // columns from output 0 to the end of the row
      const int64_t last = room <= 0 ? 0 : std::min(g.out[2], (room + stride - 1) / stride);
      if (first >= last) continue;
      const int64_t index = h * g.in[2] + first * stride + offset;
      vector_math().take_larger(x + index, stride, last - first, static_cast<int32_t>(index),
                                best + first, where + first);
    }
  }
}

/// One plane at a time, with the scratch of the thread's share.
struct Plane {
  const PoolGeometry& g;
  const KernelBuffers& buffers;
  const Scratch& scratch;
  size_t base;

  template <class M>
  M* room(size_t offset) const {
    return part<M>(buffers, base + offset);
  }

  void forward(const float* x, float* y) const {
    if (is_two_by_two(g)) return two_by_two_forward(g, x, room<float>(scratch.two_by_two), y);
    for (int64_t row = 0; row < g.out[1]; ++row) {
      maxima_of_row(g, x, row, y + row * g.out[2], room<int32_t>(scratch.where));
    }
  }

  void backward(const float* dy, const float* x, float* dx) const {
    if (is_two_by_two(g)) return two_by_two_backward(g, dy, x, room<float>(scratch.two_by_two), dx);
    auto* where = room<int32_t>(scratch.where);
    std::fill_n(dx, g.in_size(), 0.0f);
    for (int64_t row = 0; row < g.out[1]; ++row) {
      maxima_of_row(g, x, row, room<float>(scratch.best), where);
      for (int64_t i = 0; i < g.out[2]; ++i) {
        if (where[i] >= 0) dx[where[i]] += dy[row * g.out[2] + i];
      }
    }
  }
};

template <class T>
Prepared forward_kernel(const KernelCall& call, const PoolGeometry& g) {
  const Scratch scratch = plan_scratch(g);
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    for_planes(g.planes, threads, [&](int64_t share, int64_t index) {
      const Plane plane{g, buffers, scratch, static_cast<size_t>(share) * scratch.size};
      const float* x = load_block(buffers.in<T>(0) + index * g.in_size(), g.in_size(),
                                  plane.room<float>(scratch.x));
      auto* y = plane.room<float>(scratch.y);
      plane.forward(x, y);
      store_reals(y, g.out_size(), dtype_of<T>(), buffers.outputs[0], index * g.out_size());
    });
  };
  return make_kernel(body, scratch.size * static_cast<size_t>(call.threads));
}

template <class T>
Prepared gradient_kernel(const KernelCall& call, const PoolGeometry& g) {
  const Scratch scratch = plan_scratch(g);
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    for_planes(g.planes, threads, [&](int64_t share, int64_t index) {
      const Plane plane{g, buffers, scratch, static_cast<size_t>(share) * scratch.size};
      auto* dy = plane.room<float>(scratch.y);
      load_reals(buffers.inputs[0], dtype_of<T>(), index * g.out_size(), g.out_size(), dy);
      const float* x = load_block(buffers.in<T>(1) + index * g.in_size(), g.in_size(),
                                  plane.room<float>(scratch.x));
      T* target = buffers.out<T>(0) + index * g.in_size();
      float* dx = result_block(target, plane.room<float>(scratch.dx));
      plane.backward(dy, x, dx);
      store_block(dx, g.in_size(), target);
    });
  };
  return make_kernel(body, scratch.size * static_cast<size_t>(call.threads));
}

std::string refusal(const KernelCall& call, size_t inputs) {
  for (size_t i = 0; i < inputs; ++i) {
    if (!call.has_input(i)) return "an operand is missing";
    if (call.inputs[i].dtype != call.inputs[0].dtype) return "operands of different types";
  }
  if (!call.has_output(0)) return "an operand is missing";
  if (call.outputs[0].dtype != call.inputs[0].dtype) return "operands of different types";
  if (call.has_output(1)) return "indices are asked for";
  if (call.inputs[0].shape.size() != 4) return "not two spatial dims";
  return {};
}

/// Plans the pool and calls `body.operator()<T>(geometry)`.
template <class Body>
Prepared prepare(const KernelCall& call, const Shape& in, const Shape& out, Body&& body) {
  PoolGeometry g;
  if (std::string why = plan_pool(call, in, out, g); !why.empty()) return Prepared::no(why);
  if (g.in_size() > std::numeric_limits<int32_t>::max()) return Prepared::no("planes too large");
  return for_small_float(call.inputs[0].dtype,
                         [&]<class T>() { return body.template operator()<T>(g); });
}

Prepared prepare_forward(const KernelCall& call) {
  if (std::string why = refusal(call, 1); !why.empty()) return Prepared::no(why);
  return prepare(call, call.inputs[0].shape, call.outputs[0].shape,
                 [&]<class T>(const PoolGeometry& g) { return forward_kernel<T>(call, g); });
}

Prepared prepare_gradient(const KernelCall& call) {
  if (std::string why = refusal(call, 2); !why.empty()) return Prepared::no(why);
  if (call.inputs[1].shape != call.outputs[0].shape)
    return Prepared::no("X and dX of different shapes");
  return prepare(call, call.inputs[1].shape, call.inputs[0].shape,
                 [&]<class T>(const PoolGeometry& g) { return gradient_kernel<T>(call, g); });
}

}  // namespace

std::vector<KernelRow> max_pool_rows() {
  return {
      {"", "MaxPool", "fast.max_pool", prepare_forward},
      {"ai.halfnote", "MaxPoolGrad", "fast.max_pool", prepare_gradient},
  };
}

}  // namespace halfnote::cpu::fast
