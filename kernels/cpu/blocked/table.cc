// The blocked rows of the CPU: those that compute otherwise than the plain ones, file by file, and
// those that need not, since elements meet their likes in any order.
#include <set>

#include "kernels/cpu/blocked/rows.h"

namespace halfnote {
namespace cpu::blocked {
namespace {

/// All tensors of the shape of the outputs are blocked together, if the others are single elements.
BlockedOperands elements(const KernelCall& call) {
  if (!call.has_output(0) || call.inputs.size() > 32 || call.outputs.size() > 32) return {};
  uint32_t inputs = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.inputs[i].shape == call.outputs[0].shape) {
      inputs |= 1u << i;
    } else if (call.inputs[i].size() != 1) {
      return {};
    }
  }
  return together(call, inputs, static_cast<uint32_t>((uint64_t{1} << call.outputs.size()) - 1));
}

/// The plain kernel does it. The rows stand in the kernel table, which outlives this one.
void add_elementwise(std::vector<BlockedRow>& all) {
  for (const KernelRow& plain : cpu_kernels().rows()) {
    const bool cast = plain.op == "Cast" && plain.domain.empty();
    if (plain.name != "fast.pointwise" && !cast) continue;
    const std::string_view name = cast ? "blocked.cast" : "blocked.pointwise";
    all.push_back({{plain.domain, plain.op, name, plain.prepare}, plain.name, elements});
  }
}

std::vector<BlockedRow> make_rows() {
  std::vector<BlockedRow> all;
  for (const auto part : {weight_1x1_rows, conv_rows, batch_norm_rows, max_pool_rows, sum_rows}) {
    const std::vector<BlockedRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  add_elementwise(all);
  return all;
}

}  // namespace
}  // namespace cpu::blocked

std::span<const BlockedRow> blocked_rows() {
  static const std::vector<BlockedRow> rows = cpu::blocked::make_rows();
  return rows;
}

std::vector<const BlockedRow*> blocked_rows_of(const KernelRow& plain) {
  std::vector<const BlockedRow*> rows;
  for (const BlockedRow& row : blocked_rows()) {
    if (row.row.op == plain.op && row.row.domain == plain.domain && row.beside == plain.name)
      rows.push_back(&row);
  }
  return rows;
}

bool fits_channel_blocks(const Operand& operand) {
  const Shape& shape = operand.shape;
  if (cpu::blocked::loops_for(operand.dtype) == nullptr) return false;
  if (shape.size() < 3 || shape.size() > 5 || shape[1] % kBlockChannels != 0) return false;
  return element_count(shape) > shape[0] * shape[1];
}

}  // namespace halfnote
