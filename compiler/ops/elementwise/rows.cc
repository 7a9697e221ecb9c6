// The operator rows of the elementwise family, and what its parts share.
#include "base/error.h"
#include "compiler/ops/elementwise/parts.h"
#include "compiler/ops/families.h"
#include "compiler/ops/rule_support.h"

namespace halfnote {
namespace elementwise {

std::vector<ValueType> infer_like_grad(const Graph& graph, NodeId node) {
  const ValueType& grad = operand_type(graph, node, 0);
  const ValueType& operand = operand_type(graph, node, 1);
  if (!is_float(grad.dtype) || grad.dtype != operand.dtype) {
    throw Error(ErrorCode::kModel, "the gradient and its operand differ in type")
        .expected("floats of one type", to_string(grad) + " and " + to_string(operand));
  }
  const bool ranks_known = grad.shape && operand.shape;
  bool agree = !ranks_known || grad.shape->size() == operand.shape->size();
  for (size_t i = 0; ranks_known && agree && i < grad.shape->size(); ++i) {
    const Dim &a = (*grad.shape)[i], &b = (*operand.shape)[i];
    agree = !a.known() || !b.known() || a.value == b.value;
  }
  if (!agree) {
    throw Error(ErrorCode::kModel, "the gradient and its operand differ in shape")
        .expected(to_string(operand), to_string(grad));
  }
  return {grad};
}

}  // namespace elementwise

std::vector<OperatorRow> elementwise_rows() {
  using namespace elementwise;  // NOLINT(google-build-using-namespace): the parts of this family
  std::vector<OperatorRow> all;
  for (auto part : {unary_rows, arithmetic_rows, select_rows, logic_rows, cast_rows, fused_rows}) {
    const std::vector<OperatorRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace halfnote
