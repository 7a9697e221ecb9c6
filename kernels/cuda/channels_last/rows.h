// The kernels on tensors that lie channels last (kernels/layout.h), file by file, and what they
// share. Most are plain kernels on the shape as it lies: (N, C, H, W) channels last are the bytes
// of (N, H, W, C).
#pragma once

#include <initializer_list>
#include <optional>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/layout.h"

namespace halfnote::HN_CUDA {

/// Does an operand lie otherwise channels last than plain, and are there kernels for it? It has
/// more than one channel and more than one pixel.
bool fits_channels_last(const Operand& operand);
/// Do all the named operands?
bool fit_channels_last(const KernelCall& call, uint32_t inputs, uint32_t outputs);
/// The answer of rows whose operands change their layout together: those that are named, if all of
/// them fit.
BlockedOperands all_channels_last(const KernelCall& call, uint32_t inputs, uint32_t outputs);

/// Those of the named operands that are there, a bit each.
inline uint32_t inputs_there(const KernelCall& call, std::initializer_list<size_t> named) {
  uint32_t bits = 0;
  for (const size_t index : named) bits |= call.has_input(index) ? 1u << index : 0;
  return bits;
}
inline uint32_t outputs_there(const KernelCall& call, std::initializer_list<size_t> named) {
  uint32_t bits = 0;
  for (const size_t index : named) bits |= call.has_output(index) ? 1u << index : 0;
  return bits;
}
/// Has a thread that reads 16 bytes of X the 8 channels of a byte of signs?
inline bool has_bytes_of_signs(const KernelCall& call) {
  return is_16bit_float(call.inputs[0].dtype);
}

/// (N, C, spatial…) as (N, spatial…, C).
Shape lying_channels_last(const Shape& shape);
/// Where a dim of (N, C, spatial…) is in (N, spatial…, C).
size_t lying_dim(size_t dim, size_t rank);

/// The shape with as many dims as a result of `rank` dims that it is broadcast to.
Shape broadcast_shape(const Shape& shape, size_t rank);
/// Has a tensor of these dims one channel, or one pixel?
bool lies_alike(const Shape& shape);

const KernelRow& channels_last_reorder();            // reorder.cu
std::vector<BlockedRow> channels_last_conv_rows();   // contraction/conv_library.cu
std::vector<BlockedRow> channels_last_elements();    // elements.cu: elementwise ops, their chains
std::vector<BlockedRow> channels_last_batch_norm();  // batch_norm.cu
std::vector<BlockedRow> channels_last_batch_norm_grad();  // batch_norm_grad.cu
std::vector<BlockedRow> channels_last_group_norm();       // group_norm.cu: Group-, InstanceNorm.
std::vector<BlockedRow> channels_last_moves();    // move.cu: Concat, Pad, Slice, Transpose, …
std::vector<BlockedRow> channels_last_patches();  // movement/patches.cu
std::vector<BlockedRow> channels_last_pools();    // pool.cu: pools and their gradients
std::vector<BlockedRow> channels_last_resizes();  // reduction/resize.cu
std::vector<BlockedRow> channels_last_strided_sums();  // movement/strided_sum.cu
std::vector<BlockedRow> channels_last_sums();          // reduce.cu: reductions, global pools

/// Calls `body` for the types of tensors that lie channels last.
template <class Body>
Prepared for_region_type(DType dtype, const Body& body) {
  if (dtype == DType::kF32) return body.template operator()<float>();
  if (dtype == DType::kF16) return body.template operator()<Half>();
  if (dtype == DType::kBF16) return body.template operator()<BFloat16>();
  return Prepared::no("not for elements of type " + std::string(short_name(dtype)));
}
inline bool is_region_type(DType dtype) { return dtype == DType::kF32 || is_16bit_float(dtype); }

}  // namespace halfnote::HN_CUDA
