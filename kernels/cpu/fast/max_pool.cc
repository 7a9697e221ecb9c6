// MaxPool and its gradient, on f32, f16 and bf16, in f32. The common 2×2 window with stride 2 has
// its own file; others are pooled one axis after the other (reduction/window_lines.h).
#include <optional>

#include "kernels/cpu/fast/max_pool_2x2.h"
#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/fast/reduction/window_lines.h"
#include "kernels/cpu/fast/vector_math.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/window.h"

namespace halfnote::cpu::fast {

namespace {

/// How one call is done: a 2×2 window with stride 2 plane by plane, others on lines.
struct Plan {
  PoolGeometry geometry;
  std::optional<WindowLines> lines;
  int64_t planes = 1;  // at once
  size_t x = 0, y = 0, dx = 0, own = 0, size = 0;

  Plan(const PoolGeometry& g, WindowLines::Pool pool) : geometry(g) {
    if (!is_two_by_two(g)) lines.emplace(g, pool);
    planes = lines ? lines->planes() : 1;
    WorkspacePlan plan;
    x = plan.add_elements<float>(planes * g.in_size() + kOverrun);
    y = plan.add_elements<float>(planes * g.out_size() + kOverrun);
    dx = plan.add_elements<float>(planes * g.in_size() + kOverrun);
    own = lines ? plan.add(lines->scratch_bytes()) : plan.add_elements<float>(two_by_two_room(g));
    size = plan.size();
  }
  int64_t groups() const { return (geometry.planes + planes - 1) / planes; }
  /// How many scratch memories for_groups() takes.
  size_t shares(int threads) const {
    return static_cast<size_t>(std::clamp<int64_t>(groups(), 1, threads));
  }

  void forward(const float* from, int64_t count, std::byte* scratch, float* to) const {
    if (lines) return lines->maximum(from, count, scratch + own, to);
    two_by_two_forward(geometry, from, reinterpret_cast<float*>(scratch + own), to);
  }
  void backward(const float* gradient, const float* from, int64_t count, std::byte* scratch,
                float* to) const {
    if (!lines) {
      auto* padded = reinterpret_cast<float*>(scratch + y);  // its last vector is read as a whole
      if (gradient != padded) std::copy_n(gradient, geometry.out_size(), padded);
      return two_by_two_backward(geometry, padded, from, reinterpret_cast<float*>(scratch + own),
                                 to);
    }
    auto* keys = reinterpret_cast<int32_t*>(scratch + x);  // `from` may be there
    pool_loops().keys(from, count * geometry.in_size(), keys);
    lines->maximum_gradient(gradient, keys, count, scratch + own, to);
  }
};

/// Calls `body(scratch, first, count)` for the planes of each group, with the scratch memory of the
/// thread's share.
template <class Body>
void for_groups(const Plan& plan, const KernelBuffers& buffers, int threads, Body&& body) {
  const int64_t grain = (plan.groups() + threads - 1) / threads;
  parallel_blocks(plan.groups(), grain, threads, [&](int64_t begin, int64_t end) {
    std::byte* scratch = buffers.workspace + static_cast<size_t>(begin / grain) * plan.size;
    if (plan.lines) plan.lines->prepare(scratch + plan.own);
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = group * plan.planes;
      body(scratch, first, std::min(plan.planes, plan.geometry.planes - first));
    }
  });
}

template <class T>
Prepared forward_kernel(const KernelCall& call, const PoolGeometry& g) {
  const Plan plan(g, WindowLines::Pool::kMaximum);
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    for_groups(plan, buffers, threads, [&](std::byte* scratch, int64_t first, int64_t count) {
      auto* room = reinterpret_cast<float*>(scratch + plan.x);
      const float* x =
          load_block(buffers.in<T>(0) + first * g.in_size(), count * g.in_size(), room);
      T* target = buffers.out<T>(0) + first * g.out_size();
      auto* y = reinterpret_cast<float*>(scratch + plan.y);
      plan.forward(x, count, scratch, y);
      store_reals(y, count * g.out_size(), dtype_of<T>(), reinterpret_cast<std::byte*>(target), 0);
    });
  };
  return make_kernel(body, plan.size * plan.shares(call.threads));
}

template <class T>
Prepared gradient_kernel(const KernelCall& call, const PoolGeometry& g) {
  const Plan plan(g, WindowLines::Pool::kMaximumGradient);
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    for_groups(plan, buffers, threads, [&](std::byte* scratch, int64_t first, int64_t count) {
      const auto at = [&](size_t offset) { return reinterpret_cast<float*>(scratch + offset); };
      const float* dy =
          load_block(buffers.in<T>(0) + first * g.out_size(), count * g.out_size(), at(plan.y));
      const float* x =
          load_block(buffers.in<T>(1) + first * g.in_size(), count * g.in_size(), at(plan.x));
      T* target = buffers.out<T>(0) + first * g.in_size();
      float* dx = result_block(target, at(plan.dx));
      plan.backward(dy, x, count, scratch, dx);
      store_block(dx, count * g.in_size(), target);
    });
  };
  return make_kernel(body, plan.size * plan.shares(call.threads));
}

std::string refusal(const KernelCall& call, size_t inputs) {
  for (size_t i = 0; i < inputs; ++i) {
    if (!call.has_input(i)) return "an operand is missing";
    if (call.inputs[i].dtype != call.inputs[0].dtype) return "operands of different types";
  }
  if (!call.has_output(0)) return "an operand is missing";
  if (call.outputs[0].dtype != call.inputs[0].dtype) return "operands of different types";
  if (call.has_output(1)) return "indices are asked for";
  return {};
}

/// Planes of 2×2 windows without rest are one large plane: small ones cost more than their
/// elements.
void join_planes(PoolGeometry& g) {
  constexpr int64_t kEnough = 4096;
  if (g.in[1] % 2 != 0 || g.in[2] % 2 != 0 || g.in_size() == 0) return;
  int64_t joined = std::max<int64_t>(1, std::min(g.planes, kEnough / g.in_size()));
  while (g.planes % joined != 0) --joined;
  g.planes /= joined;
  g.in[1] *= joined;
  g.out[1] *= joined;
}

/// Plans the pool and calls `body.operator()<T>(geometry)`.
template <class Body>
Prepared prepare(const KernelCall& call, const Shape& in, const Shape& out, Body&& body) {
  PoolGeometry g;
  if (std::string why = plan_pool(call, in, out, g); !why.empty()) return Prepared::no(why);
  if (is_two_by_two(g)) {
    join_planes(g);
  } else if (std::string why = WindowLines::refusal(g); !why.empty()) {
    return Prepared::no(why);
  }
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
