// Joins the rows of the reduction family.
#include "kernels/cpu/families.h"
#include "kernels/cpu/reduction/parts.h"

namespace halfnote::cpu {

std::vector<KernelRow> reduction_kernels() {
  std::vector<KernelRow> all;
  for (auto part : {reduce_rows, along_rows, pool_rows, pool_grad_rows, kept_max_pool_rows,
                    roi_align_rows, resize_rows}) {
    const std::vector<KernelRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace halfnote::cpu
