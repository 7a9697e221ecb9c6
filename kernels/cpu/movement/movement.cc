// Joins the rows of the movement family.
#include "kernels/cpu/families.h"
#include "kernels/cpu/movement/parts.h"

namespace halfnote::cpu {

std::vector<KernelRow> movement_kernels() {
  std::vector<KernelRow> all;
  for (auto part : {reshape_rows, copy_rows, pad_rows, patches_rows, gather_rows, scatter_rows,
                    generate_rows, strided_sum_rows}) {
    const std::vector<KernelRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace halfnote::cpu
