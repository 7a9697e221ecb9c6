// Joins the rows of the elementwise family.
#include "kernels/cuda/elementwise/parts.h"
#include "kernels/cuda/families.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> elementwise_kernels() {
  std::vector<KernelRow> all;
  for (const auto part : {unary_rows, binary_rows, select_rows, logic_rows, chain_rows}) {
    const std::vector<KernelRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace halfnote::HN_CUDA
