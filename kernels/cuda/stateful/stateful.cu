// Joins the rows of the stateful family.
#include "kernels/cuda/families.h"
#include "kernels/cuda/stateful/parts.h"

namespace halfnote::HN_CUDA {

std::vector<KernelRow> stateful_kernels() {
  std::vector<KernelRow> all = optimizer_rows();
  const std::vector<KernelRow> scaling = scaling_rows();
  all.insert(all.end(), scaling.begin(), scaling.end());
  return all;
}

}  // namespace halfnote::HN_CUDA
