// ReduceSum over all but the channels of a tensor in channel blocks (the gradients of biases): in
// f64, rounded once.
#include <array>
#include <set>

#include "kernels/cpu/blocked/rows.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/plan.h"

namespace halfnote::cpu::blocked {

namespace {

using Sums16 = std::array<double, kBlockChannels>;

/// A sum of all that belongs to a channel.
BlockedOperands channel_sum(const KernelCall& call) {
  std::set<int64_t> axes;
  if (!fit(call, 0b1, 0) || !read_reduce_axes(call, axes).empty()) return {};
  if (axes.size() + 1 != call.inputs[0].shape.size() || axes.contains(1)) return {};
  return {.inputs = 0b1};
}

Prepared prepare_channel_sum(const KernelCall& call) {
  const Groups groups(geometry_of(call.inputs[0].shape));
  const auto body = [=, type = call.inputs[0].dtype, result = call.outputs[0].dtype,
                     threads = call.threads](const KernelBuffers& buffers) {
    const int64_t lines = groups.geometry.plane;
    auto* sums = reinterpret_cast<Sums16*>(buffers.workspace);
    std::uninitialized_fill_n(sums, groups.units(), Sums16{});
    groups.for_planes(threads, [&](int64_t unit, int64_t, int64_t plane) {
      loops_for(type)->add_lines(plane_at(buffers.inputs[0], type, plane, lines), lines,
                                 sums[unit].data());
    });
    for (int64_t c = 0; c < groups.geometry.channels(); ++c) {
      double sum = 0;
      for (int64_t g = 0; g < groups.count; ++g) {
        sum += sums[c / kBlockChannels * groups.count + g][static_cast<size_t>(c % kBlockChannels)];
      }
      write_real(static_cast<float>(sum), buffers.outputs[0], result, c);
    }
  };
  return make_kernel(body, static_cast<size_t>(groups.units()) * sizeof(Sums16));
}

}  // namespace

std::vector<BlockedRow> sum_rows() {
  return {{{"", "ReduceSum", "blocked.reduce_sum", prepare_channel_sum},
           "fast.reduce_sum",
           channel_sum}};
}

}  // namespace halfnote::cpu::blocked
