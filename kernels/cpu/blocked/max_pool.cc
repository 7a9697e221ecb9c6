// MaxPool and its gradient in channel blocks: the windows of a plane are listed once, as pixels,
// and 16 channels are pooled at a time.
#include <cstring>
#include <memory>

#include "kernels/cpu/blocked/rows.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/window.h"

namespace halfnote::cpu::blocked {

namespace {

/// The pixels of the window of every output pixel, one behind the other.
struct WindowList {
  std::vector<int32_t> pixels, starts;
  int64_t taps = 0;

  explicit WindowList(const PoolGeometry& g) {
    for_outputs(g, [&](int64_t, const PoolGeometry::Dims& at) {
      starts.push_back(static_cast<int32_t>(pixels.size()));
      for_window(g, at, [&](int64_t index) { pixels.push_back(static_cast<int32_t>(index)); });
    });
    starts.push_back(static_cast<int32_t>(pixels.size()));
    taps = starts[1];
    for (size_t i = 1; i < starts.size(); ++i) {
      if (starts[i] - starts[i - 1] != taps) taps = 0;
    }
  }
  Windows all() const {
    return {pixels.data(), starts.data(), static_cast<int64_t>(starts.size()) - 1, taps};
  }
};

struct Pool {
  PoolGeometry geometry;
  std::shared_ptr<const WindowList> windows;
  DType type = DType::kUndefined;
  int64_t planes = 0;
  int threads = 1;

  const Loops& loops() const { return *loops_for(type); }
  /// Planes of a share; each share has scratch memory of its own.
  int64_t share() const { return (planes + threads - 1) / threads; }
  size_t line_bytes() const { return kBlockChannels * size_of(type); }

  void forward(const std::byte* x, std::byte* y) const { loops().maximum(x, windows->all(), y); }
  /// Does no pixel lie in two windows?
  bool apart() const {
    for (size_t d = 0; d < 3; ++d) {
      if (geometry.out[d] > 1 &&
          geometry.stride[d] <= (geometry.kernel[d] - 1) * geometry.dilation[d])
        return false;
    }
    return true;
  }
  void backward_apart(const std::byte* dy, const std::byte* x, std::byte* dx) const {
    const auto lines = static_cast<size_t>(geometry.in_size());
    if (windows->pixels.size() < lines) std::memset(dx, 0, lines * line_bytes());
    loops().maximum_gradient_apart(dy, x, windows->all(), dx);
  }
  /// Gradients of overlapping windows are added in the order of the windows.
  void backward(const std::byte* dy, const std::byte* x, float* dx) const {
    std::fill_n(dx, geometry.in_size() * kBlockChannels, 0.0f);
    loops().maximum_gradient(dy, x, windows->all(), dx);
  }
};

/// `in` and `out` are the shapes of the larger and of the pooled tensor.
std::string plan(const KernelCall& call, const Shape& in, const Shape& out, DType type,
                 Pool& pool) {
  if (std::string why = plan_pool(call, in, out, pool.geometry); !why.empty()) return why;
  const int64_t most = std::numeric_limits<int32_t>::max();
  if (pool.geometry.in_size() > most) return "planes too large";
  int64_t taps = pool.geometry.out_size();
  for (const int64_t k : pool.geometry.kernel) taps = checked_mul(taps, k);
  if (taps > most) return "windows too large";
  pool.windows = std::make_shared<const WindowList>(pool.geometry);
  pool.type = type;
  pool.planes = geometry_of(in).planes();
  pool.threads = std::max(1, call.threads);
  return {};
}

Prepared prepare_forward(const KernelCall& call) {
  Pool pool;
  if (std::string why =
          plan(call, call.inputs[0].shape, call.outputs[0].shape, call.inputs[0].dtype, pool);
      !why.empty()) {
    return Prepared::no(why);
  }
  return make_kernel([pool](const KernelBuffers& buffers) {
    parallel_blocks(pool.planes, pool.share(), pool.threads, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        pool.forward(plane_at(buffers.inputs[0], pool.type, plane, pool.geometry.in_size()),
                     plane_at(buffers.outputs[0], pool.type, plane, pool.geometry.out_size()));
      }
    });
  });
}

Prepared prepare_gradient(const KernelCall& call) {
  Pool pool;
  if (std::string why =
          plan(call, call.inputs[1].shape, call.inputs[0].shape, call.inputs[1].dtype, pool);
      !why.empty()) {
    return Prepared::no(why);
  }
  const int64_t lines = pool.geometry.in_size(), pooled = pool.geometry.out_size();
  const bool apart = pool.apart();
  const size_t room = apart || pool.type == DType::kF32
                          ? 0
                          : aligned(static_cast<size_t>(lines * kBlockChannels) * sizeof(float));
  const auto body = [=](const KernelBuffers& buffers) {
    parallel_blocks(pool.planes, pool.share(), pool.threads, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const std::byte* dy = plane_at(buffers.inputs[0], pool.type, plane, pooled);
        const std::byte* x = plane_at(buffers.inputs[1], pool.type, plane, lines);
        std::byte* target = plane_at(buffers.outputs[0], pool.type, plane, lines);
        if (apart) {
          pool.backward_apart(dy, x, target);
          continue;
        }
        std::byte* scratch = buffers.workspace + static_cast<size_t>(begin / pool.share()) * room;
        auto* dx = reinterpret_cast<float*>(room == 0 ? target : scratch);
        pool.backward(dy, x, dx);
        if (room != 0) pool.loops().store(dx, lines, target);
      }
    });
  };
  return make_kernel(body, room * static_cast<size_t>(pool.threads));
}

BlockedOperands x_and_y(const KernelCall& call) { return together(call, 0b1, 0b1); }
BlockedOperands dy_x_and_dx(const KernelCall& call) { return together(call, 0b11, 0b1); }

}  // namespace

std::vector<BlockedRow> max_pool_rows() {
  constexpr std::string_view kPlain = "fast.max_pool", kName = "blocked.max_pool";
  return {
      {{"", "MaxPool", kName, prepare_forward}, kPlain, x_and_y},
      {{"ai.halfnote", "MaxPoolGrad", kName, prepare_gradient}, kPlain, dy_x_and_dx},
  };
}

}  // namespace halfnote::cpu::blocked
