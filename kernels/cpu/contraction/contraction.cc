// Joins the rows of the contraction family.
#include "kernels/cpu/contraction/parts.h"
#include "kernels/cpu/families.h"

namespace halfnote::cpu {

std::vector<KernelRow> contraction_kernels() {
  std::vector<KernelRow> all;
  for (auto part : {matmul_rows, conv_rows, conv_grad_rows, recurrent_rows, recurrent_grad_rows,
                    attention_rows, determinant_rows, deform_conv_rows, epilogue_rows}) {
    const std::vector<KernelRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace halfnote::cpu
