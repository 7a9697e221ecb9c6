// The depthwise rows on channel blocks: the plain rows see how the operands lie. Where oneDNN is
// faster on blocks, though not on plain operands, its kernel is taken there.
#include "kernels/cpu/blocked/rows.h"
#include "kernels/cpu/depthwise/rows.h"
#include "kernels/cpu/onednn/parts.h"

namespace halfnote::cpu::blocked {

namespace {

/// x and y of the call, each as it comes; with one filter a channel.
BlockedOperands operands(const KernelCall& call, uint32_t inputs, uint32_t outputs) {
  BlockedOperands found;
  for (uint32_t i = 0; i < 2; ++i) {
    if ((inputs >> i & 1) != 0 && fit(call, 1u << i, 0)) found.inputs |= 1u << i;
  }
  if (outputs != 0 && fit(call, 0, 0b1)) found.outputs = 0b1;
  found.preferred = true;
  return found;
}

bool one_filter(const Operand& a, const Operand& b) { return a.shape[1] == b.shape[1]; }

BlockedOperands x_and_y(const KernelCall& call) {
  if (!one_filter(call.inputs[0], call.outputs[0])) return {};
  return operands(call, 0b1, 0b1);
}

BlockedOperands dy_and_x(const KernelCall& call) {
  if (!one_filter(call.inputs[0], call.inputs[1])) return {};
  return operands(call, 0b11, 0);
}

void add_rows(std::vector<BlockedRow>& all, const std::vector<KernelRow>& rows,
              std::string_view name, std::string_view beside) {
  for (const KernelRow& row : rows) {
    const auto of = row.op == "ConvGradWeight" ? dy_and_x : x_and_y;
    if (row.op != "ConvTranspose")
      all.push_back({{row.domain, row.op, name, row.prepare}, beside, of});
  }
}

}  // namespace

std::vector<BlockedRow> depthwise_rows() {
  std::vector<BlockedRow> all;
  for (const std::string_view plain : {depthwise::kName, depthwise::kOtherName}) {
    for (const auto part : {depthwise::input_rows, depthwise::weight_rows})
      add_rows(all, part(), "blocked.depthwise", plain);
    for (const KernelRow& row : onednn::conv_rows()) {
      const std::string_view name =
          row.name == "onednn.conv" ? "blocked.conv" : "blocked.conv_via_f32";
      add_rows(all, {row}, name, plain);
    }
    for (const auto part : {depthwise::other_input_rows, depthwise::other_weight_rows})
      add_rows(all, part(), "blocked.depthwise_of_any_form", plain);
  }
  return all;
}

}  // namespace halfnote::cpu::blocked
