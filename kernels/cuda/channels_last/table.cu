// Joins the kernels on tensors that lie channels last.
#include <algorithm>

#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/table.h"

namespace halfnote::HN_CUDA {

namespace {

bool all_fit(const std::vector<Operand>& operands, uint32_t wanted) {
  for (size_t i = 0; i < 32; ++i) {
    if ((wanted >> i & 1) == 0) continue;
    if (i >= operands.size() || !fits_channels_last(operands[i])) return false;
  }
  return true;
}

}  // namespace

bool fits_channels_last(const Operand& operand) {
  const Shape& shape = operand.shape;
  if (!operand.present() || size_of(operand.dtype) == 0) return false;
  if (shape.size() < 3 || shape.size() > 5 || shape[1] == 1) return false;
  return element_count(shape) > shape[0] * shape[1];
}

bool fit_channels_last(const KernelCall& call, uint32_t inputs, uint32_t outputs) {
  return all_fit(call.inputs, inputs) && all_fit(call.outputs, outputs);
}

BlockedOperands all_channels_last(const KernelCall& call, uint32_t inputs, uint32_t outputs) {
  if (!fit_channels_last(call, inputs, outputs)) return {};
  return {inputs, outputs, true, false};
}

Shape lying_channels_last(const Shape& shape) {
  Shape lying = shape;
  std::rotate(lying.begin() + 1, lying.begin() + 2, lying.end());
  return lying;
}

size_t lying_dim(size_t dim, size_t rank) {
  if (dim == 0) return 0;
  return dim == 1 ? rank - 1 : dim - 1;
}

Shape broadcast_shape(const Shape& shape, size_t rank) {
  Shape full(rank - std::min(rank, shape.size()), 1);
  full.insert(full.end(), shape.begin(), shape.end());
  return full;
}

bool lies_alike(const Shape& shape) {
  return shape[1] == 1 || element_count(std::span(shape).subspan(2)) == 1;
}

const RegionLayout& channels_last_regions() {
  static const std::vector<BlockedRow> rows = [] {
    std::vector<BlockedRow> all;
    for (const auto part :
         {channels_last_conv_rows, channels_last_batch_norm, channels_last_batch_norm_grad,
          channels_last_group_norm, channels_last_pools, channels_last_sums, channels_last_resizes,
          channels_last_moves, channels_last_patches, channels_last_strided_sums,
          channels_last_elements}) {
      const std::vector<BlockedRow> more = part();
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }();
  static const RegionLayout regions{channels_last(), "channels-last layout", rows,
                                    &channels_last_reorder()};
  return regions;
}

}  // namespace halfnote::HN_CUDA
