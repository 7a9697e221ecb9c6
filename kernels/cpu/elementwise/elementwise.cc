// Joins the rows of the elementwise family.
#include "kernels/cpu/elementwise/parts.h"
#include "kernels/cpu/families.h"

namespace halfnote::cpu {

std::vector<KernelRow> elementwise_kernels() {
  std::vector<KernelRow> all;
  for (auto part : {unary_rows, integer_rows, binary_rows, variadic_rows, select_rows, cast_rows}) {
    const std::vector<KernelRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace halfnote::cpu
