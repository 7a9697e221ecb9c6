// Joins the fast rows: oneDNN's, each before its variant that computes in f32, and our own
// vectorised ones.
#include "kernels/cpu/depthwise/rows.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/onednn/parts.h"
#include "kernels/cpu/planes/rows.h"
#include "kernels/cpu/pointwise/rows.h"
#include "kernels/cpu/thin/rows.h"
#include "kernels/cpu/tiled/rows.h"

namespace halfnote::cpu {

namespace {

/// In the order in which they are asked: the first that takes a call has it.
constexpr std::vector<KernelRow> (*kFamilies[])() = {
    fast::wide_matmul_rows,
    fast::wide_conv_rows,
    tiled::rows,
    onednn::matmul_rows,
    tiled::other_rows,
    depthwise::input_rows,
    depthwise::weight_rows,
    thin::few_results_rows,
    thin::swapped_rows,
    thin::few_positions_rows,
    onednn::conv_rows,
    depthwise::other_input_rows,
    depthwise::other_weight_rows,
    fast::average_pool_rows,
    onednn::average_pool_rows,
    fast::other_average_pool_rows,
    planes::softmax_rows,
    fast::log_softmax_rows,
    onednn::softmax_rows,
    fast::batch_norm_rows,
    fast::layer_norm_rows,
    fast::group_norm_rows,
    fast::max_pool_rows,
    fast::reduce_rows,
    fast::reduce_sum_rows,
    fast::arg_rows,
    fast::cum_sum_rows,
    fast::top_k_rows,
    fast::indexed_rows,
    fast::resize_rows,
    fast::cross_entropy_rows,
    planes::cross_entropy_rows,
    fast::optimizer_rows,
    pointwise::rows,
};

}  // namespace

std::vector<KernelRow> onednn_kernels() {
  std::vector<KernelRow> all;
  for (const auto family : kFamilies) {
    const std::vector<KernelRow> rows = family();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace halfnote::cpu
