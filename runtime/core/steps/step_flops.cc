#include "runtime/core/steps/step_flops.h"

#include "compiler/ops/operator.h"

namespace halfnote {

double flops_of(const Node& node, const KernelCall& call) {
  const OperatorRow* row = find_operator(node);
  if (row == nullptr || row->flops == nullptr) return 0;
  std::vector<Shape> inputs, outputs;
  for (const Operand& input : call.inputs) inputs.push_back(input.shape);
  for (const Operand& output : call.outputs) outputs.push_back(output.shape);
  return row->flops(node.attributes, inputs, outputs);
}

}  // namespace halfnote
