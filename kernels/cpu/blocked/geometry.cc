#include "kernels/cpu/blocked/rows.h"

namespace halfnote::cpu::blocked {

namespace {

/// Units that a sum over images is cut into at least, if there are so many planes.
constexpr int64_t kUnits = 32;

bool all_fit(const std::vector<Operand>& operands, uint32_t wanted) {
  for (size_t i = 0; i < 32; ++i) {
    if ((wanted >> i & 1) == 0) continue;
    if (i >= operands.size() || !fits_channel_blocks(operands[i])) return false;
  }
  return true;
}

}  // namespace

Geometry geometry_of(const Shape& shape) {
  const int64_t blocks = shape[1] / kBlockChannels;
  return {shape[0], blocks, element_count(std::span<const int64_t>(shape).subspan(2))};
}

Groups::Groups(const Geometry& g) : geometry(g) {
  const int64_t wanted = std::min(g.images, (kUnits + g.blocks - 1) / g.blocks);
  images = (g.images + wanted - 1) / wanted;
  count = (g.images + images - 1) / images;
}

bool fit(const KernelCall& call, uint32_t inputs, uint32_t outputs) {
  return all_fit(call.inputs, inputs) && all_fit(call.outputs, outputs);
}

BlockedOperands together(const KernelCall& call, uint32_t inputs, uint32_t outputs) {
  if (!fit(call, inputs, outputs)) return {};
  return {inputs, outputs, true, false};
}

}  // namespace halfnote::cpu::blocked
