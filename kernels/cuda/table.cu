// Joins the rows of all families.
#include "kernels/cuda/table.h"

#include "kernels/cuda/families.h"

namespace halfnote::HN_CUDA {

const KernelTable& kernel_table() {
  static const KernelTable table([] {
    std::vector<KernelRow> all;
    for (const auto family :
         {stateful_kernels,  // whose Where is before that of any elements
          elementwise_kernels, contraction_kernels, normalization_kernels, reduction_kernels,
          movement_kernels, loss_kernels, quantized_kernels, signal_kernels}) {
      const std::vector<KernelRow> rows = family();
      all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
  }());
  return table;
}

}  // namespace halfnote::HN_CUDA
