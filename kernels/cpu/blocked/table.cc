// The blocked rows of the CPU: those that compute otherwise than the plain ones, file by file, and
// those that need not, since elements meet their likes in any order.
#include <optional>

#include "kernels/cpu/blocked/rows.h"

namespace halfnote {
namespace cpu::blocked {
namespace {

/// The shape of an operand of an elementwise op as the bytes lie when the outputs, of shape
/// `whole`, are in channel blocks: (N, C/16, pixels, 16). Nothing for an operand that cannot stay
/// plain.
std::optional<Shape> lying(const Shape& shape, const Shape& whole) {
  const Geometry g = geometry_of(whole);
  if (shape == whole) return Shape{g.images, g.blocks, g.plane, kBlockChannels};
  if (element_count(shape) == 1) return Shape{};
  // One element a channel, (C, 1…) or (N, C, 1…), lies the same in blocks.
  const size_t pixel_dims = whole.size() - 2;
  if (shape.size() < whole.size() - 1 || shape.size() > whole.size()) return std::nullopt;
  const size_t channel = shape.size() - pixel_dims - 1;
  const bool per_channel =
      shape[channel] == whole[1] && element_count(std::span(shape).subspan(channel + 1)) == 1;
  const int64_t images = channel == 0 ? 1 : shape[0];
  if (!per_channel || (images != 1 && images != whole[0])) return std::nullopt;
  return Shape{images, g.blocks, 1, kBlockChannels};
}

/// All tensors of the shape of the outputs are blocked together, if the others lie the same either
/// way.
BlockedOperands elements(const KernelCall& call) {
  if (!call.has_output(0) || call.inputs.size() > 32 || call.outputs.size() > 32) return {};
  if (!fit(call, 0, 0b1) || knows_places(call)) return {};
  uint32_t inputs = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Shape& shape = call.inputs[i].shape;
    if (!lying(shape, call.outputs[0].shape)) return {};
    if (shape == call.outputs[0].shape) inputs |= 1u << i;
  }
  return together(call, inputs, static_cast<uint32_t>((uint64_t{1} << call.outputs.size()) - 1));
}

constexpr std::string_view kPointwise = "fast.pointwise";

bool is_cast(const KernelRow& row) { return row.op == "Cast" && row.domain.empty(); }

/// The plain kernel does it, on the shapes as they lie.
Prepared prepare_elements(const KernelCall& call) {
  KernelCall lain = call;
  const Shape whole = call.outputs[0].shape;
  for (std::vector<Operand>* operands : {&lain.inputs, &lain.outputs}) {
    for (Operand& operand : *operands) {
      operand.shape = lying(operand.shape, whole).value();
      operand.layout = {};
    }
  }
  for (const KernelRow* plain : cpu_kernels().rows_of(call.domain, call.op)) {
    if (plain->name == kPointwise || is_cast(*plain)) return plain->prepare(lain);
  }
  return Prepared::no("no plain row");
}

void add_elementwise(std::vector<BlockedRow>& all) {
  for (const KernelRow& plain : cpu_kernels().rows()) {
    if (plain.name != kPointwise && !is_cast(plain)) continue;
    const std::string_view name = is_cast(plain) ? "blocked.cast" : "blocked.pointwise";
    all.push_back({{plain.domain, plain.op, name, prepare_elements}, plain.name, elements});
  }
}

std::vector<BlockedRow> make_rows() {
  std::vector<BlockedRow> all;
  for (const auto part : {weight_1x1_rows, depthwise_rows, swapped_rows, few_positions_rows,
                          conv_rows, batch_norm_rows, max_pool_rows, sum_rows}) {
    const std::vector<BlockedRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  add_elementwise(all);
  return all;
}

}  // namespace
}  // namespace cpu::blocked

const RegionLayout& cpu_regions() {
  static const std::vector<BlockedRow> rows = cpu::blocked::make_rows();
  static const RegionLayout regions{channel_blocks(), "channel blocks", rows,
                                    &cpu::blocked::reorder_row()};
  return regions;
}

std::vector<const BlockedRow*> blocked_rows_of(const RegionLayout& regions,
                                               const KernelRow& plain) {
  std::vector<const BlockedRow*> rows;
  for (const BlockedRow& row : regions.rows) {
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
