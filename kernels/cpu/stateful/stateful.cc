// Joins the rows of the stateful family.
#include "kernels/cpu/families.h"
#include "kernels/cpu/stateful/parts.h"

namespace halfnote::cpu {

std::vector<KernelRow> stateful_kernels() {
  std::vector<KernelRow> all;
  for (auto part : {fast_dropout_rows, fast_scaled_rows, random_rows, optimizer_rows,
                    adaptive_optimizer_rows, scaled_optimizer_rows, scaling_rows}) {
    const std::vector<KernelRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace halfnote::cpu
