// Copies a tensor between the plain layout and channel blocks. The plan puts it where a region in
// channel blocks meets a kernel that knows plain tensors only.
#include "kernels/cpu/blocked/rows.h"

namespace halfnote {
namespace cpu::blocked {
namespace {

Prepared prepare_reorder(const KernelCall& call) {
  const Operand &from = call.inputs[0], &to = call.outputs[0];
  const Loops* loops = loops_for(from.dtype);
  if (loops == nullptr) return Prepared::no("no loops for " + std::string(short_name(from.dtype)));
  if (from.dtype != to.dtype || from.shape != to.shape || !fits_channel_blocks(from))
    return Prepared::no("operands that are no copies of each other");
  if (from.layout == to.layout) return Prepared::no("nothing to reorder");
  const Geometry g = geometry_of(from.shape);
  const auto turn = is_blocked(to) ? loops->to_lines : loops->to_planes;
  return make_kernel([=, type = from.dtype, threads = call.threads](const KernelBuffers& buffers) {
    const int64_t grain = std::max<int64_t>(1, kElementGrain / (g.plane * kBlockChannels));
    parallel_blocks(g.planes(), grain, threads, [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        turn(plane_at(buffers.inputs[0], type, plane, g.plane), g.plane,
             plane_at(buffers.outputs[0], type, plane, g.plane));
      }
    });
  });
}

}  // namespace

const KernelRow& reorder_row() {
  static constexpr KernelRow row{"", "Reorder", "fast.reorder", prepare_reorder};
  return row;
}

}  // namespace cpu::blocked
}  // namespace halfnote
