// AveragePool and its gradient, on f32, f16 and bf16, one axis after the other
// (reduction/window_lines.h): sums in f32, divided once. oneDNN is faster on small planes.
#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/fast/reduction/window_lines.h"

namespace halfnote::cpu::fast {

namespace {

struct Plan {
  PoolGeometry geometry;
  WindowLines lines;
  size_t x = 0, y = 0, own = 0, size = 0;

  /// `converts`: operands of 16 bits become f32 in the scratch memory.
  Plan(const PoolGeometry& g, WindowLines::Pool pool, bool converts) : geometry(g), lines(g, pool) {
    WorkspacePlan plan;
    x = plan.add_elements<float>(converts ? lines.planes() * g.in_size() : 0);
    y = plan.add_elements<float>(converts ? lines.planes() * g.out_size() : 0);
    own = plan.add(lines.scratch_bytes());
    size = plan.size();
  }
};

/// Pools, or brings gradients back: groups of planes from one tensor to the other, in f32.
template <class T, bool kBackward>
Prepared pool_kernel(const KernelCall& call, const Plan& plan) {
  const auto body = [plan, threads = call.threads](const KernelBuffers& buffers) {
    const int64_t in = plan.geometry.in_size(), out = plan.geometry.out_size();
    const int64_t from_size = kBackward ? out : in, to_size = kBackward ? in : out;
    const int64_t groups = plan.lines.groups(), grain = (groups + threads - 1) / threads;
    parallel_blocks(groups, grain, threads, [&](int64_t begin, int64_t end) {
      std::byte* scratch = buffers.workspace + static_cast<size_t>(begin / grain) * plan.size;
      auto *small = reinterpret_cast<float*>(scratch + plan.y),
           *large = reinterpret_cast<float*>(scratch + plan.x);
      plan.lines.prepare(scratch + plan.own);
      for (int64_t group = begin; group < end; ++group) {
        const int64_t first = group * plan.lines.planes();
        const int64_t count = std::min(plan.lines.planes(), plan.geometry.planes - first);
        const float* from = load_block(buffers.in<T>(0) + first * from_size, count * from_size,
                                       kBackward ? small : large);
        T* target = buffers.out<T>(0) + first * to_size;
        float* to = result_block(target, kBackward ? large : small);
        if constexpr (kBackward) {
          plan.lines.mean_gradient(from, count, scratch + plan.own, to);
        } else {
          plan.lines.mean(from, count, scratch + plan.own, to);
        }
        store_block(to, count * to_size, target);
      }
    });
  };
  const int64_t shares = std::clamp<int64_t>(plan.lines.groups(), 1, call.threads);
  return make_kernel(body, plan.size * static_cast<size_t>(shares));
}

enum class Wanted { kWhereItPays, kAnywhere };

/// The width of the pooled rows from which on lines are faster than oneDNN, which in f32 has no
/// more than a loop over windows for one dim (10 to 20 times), and converts 16-bit tensors as a
/// whole (1.1 to 2 times). bench/results/2026-11-23-pools.md
bool pays(const KernelCall& call, const PoolGeometry& g) {
  if (call.inputs[0].shape.size() == 3) return true;
  const bool overlaps = g.kernel[2] > g.stride[2];
  if (call.inputs[0].dtype == DType::kF32) return g.out[2] >= (overlaps ? 56 : 16);
  return g.out[2] >= 16;
}

template <bool kBackward, Wanted kWanted>
Prepared prepare(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const Operand &in = call.inputs[0], &out = call.outputs[0];
  if (in.dtype != out.dtype) return Prepared::no("operands of different types");
  PoolGeometry g;
  const Shape &large = kBackward ? out.shape : in.shape, &small = kBackward ? in.shape : out.shape;
  if (std::string why = plan_pool(call, large, small, g); !why.empty()) return Prepared::no(why);
  if (std::string why = WindowLines::refusal(g); !why.empty()) return Prepared::no(why);
  if (kWanted == Wanted::kWhereItPays && !pays(call, g)) return Prepared::no("small planes");
  const bool padded = attributes_of(call).get_int("count_include_pad", 0) != 0;
  return for_small_float(in.dtype, [&]<class T>() {
    using Pool = WindowLines::Pool;
    return pool_kernel<T, kBackward>(
        call, Plan(g, padded ? Pool::kMeanPadded : Pool::kMean, in.dtype != DType::kF32));
  });
}

template <Wanted kWanted>
std::vector<KernelRow> rows_named(std::string_view name) {
  return {
      {"", "AveragePool", name, prepare<false, kWanted>},
      {"ai.halfnote", "AveragePoolGrad", name, prepare<true, kWanted>},
  };
}

}  // namespace

std::vector<KernelRow> average_pool_rows() {
  return rows_named<Wanted::kWhereItPays>("fast.average_pool");
}
std::vector<KernelRow> other_average_pool_rows() {
  return rows_named<Wanted::kAnywhere>("fast.average_pool_of_any_form");
}

}  // namespace halfnote::cpu::fast
