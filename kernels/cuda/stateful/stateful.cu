// Joins the rows of the stateful family.
#include "kernels/cuda/families.h"
#include "kernels/cuda/stateful/parts.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> stateful_kernels() {
  std::vector<KernelRow> all = optimizer_rows();
  for (const auto part : {keeping_rows, random_rows, scaled_optimizer_rows, scaling_rows}) {
    const std::vector<KernelRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace halfnote::HN_CUDA
