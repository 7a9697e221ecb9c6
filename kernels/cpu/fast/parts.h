// The rows of our own fast kernels, file by file.
#pragma once

#include <vector>

#include "kernels/cpu/support.h"

namespace halfnote::cpu::fast {

std::vector<KernelRow>
batch_norm_rows();  // batch_norm.cc: BatchNormalization in training, its gradient
std::vector<KernelRow> layer_norm_rows();    // layer_norm.cc: LayerNormalization and its gradient
std::vector<KernelRow> group_norm_rows();    // group_norm.cc: Group- and InstanceNormalization
std::vector<KernelRow> max_pool_rows();      // max_pool.cc: MaxPool and its gradient
std::vector<KernelRow> average_pool_rows();  // reduction/average_pool.cc: and its gradient
std::vector<KernelRow> other_average_pool_rows();  // the same where oneDNN has nothing
std::vector<KernelRow> resize_rows();              // reduction/resize.cc: Resize and its gradient
std::vector<KernelRow> reduce_rows();   // reduction/reduce.cc: Reduce* over the last axes
std::vector<KernelRow> arg_rows();      // reduction/arg.cc: ArgMax, ArgMin
std::vector<KernelRow> cum_sum_rows();  // reduction/cum_sum.cc: CumSum
std::vector<KernelRow> top_k_rows();    // reduction/top_k.cc: TopK
std::vector<KernelRow> indexed_rows();  // indexed_rows.cc: Gather- and ScatterElements, ScatterND
std::vector<KernelRow> log_softmax_rows();    // cross_entropy.cc
std::vector<KernelRow> cross_entropy_rows();  // cross_entropy.cc: the loss and its gradient
std::vector<KernelRow> optimizer_rows();      // optimizer.cc: Adam, AdamW, AllFinite, GlobalNorm
std::vector<KernelRow> wide_matmul_rows();    // wide_matmul.cc: small MatMul and Gemm of f32
std::vector<KernelRow> wide_conv_rows();      // wide_conv.cc: small convolutions of f32
std::vector<KernelRow> reduce_sum_rows();     // reduce_sum.cc: ReduceSum

/// for_float_type() without f64, which has only reference kernels.
template <class Body>
Prepared for_small_float(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body.template operator()<float>();
    case DType::kF16:
      return body.template operator()<Half>();
    case DType::kBF16:
      return body.template operator()<BFloat16>();
    default:
      return Prepared::no("elements of type " + std::string(short_name(dtype)));
  }
}

}  // namespace halfnote::cpu::fast
