// Pointwise: a program of elementwise steps (base/ops/pointwise.h). The pass fuse-pointwise makes
// it for a device, behind everything that asks for gradients or precision.
#include <numeric>

#include "base/error.h"
#include "base/ops/pointwise.h"
#include "compiler/ir/model.h"
#include "compiler/ops/elementwise/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::elementwise {
namespace {

std::vector<ValueType> infer_pointwise(const Graph& graph, NodeId node) {
  std::vector<DType> inputs;
  SymbolicShape shape;
  for (size_t i = 0; i < graph.inputs(node).size(); ++i) {
    inputs.push_back(operand_type(graph, node, i).dtype);
    if (inputs.back() == DType::kI64) continue;  // of a Dropout
    const SymbolicShape& own = operand_shape(graph, node, i);
    if (own.size() > shape.size()) shape.insert(shape.begin(), own.size() - shape.size(), Dim(1));
    for (size_t d = 0; d < own.size(); ++d) {
      Dim& dim = shape[shape.size() - own.size() + d];
      dim = broadcast_dim(dim, own[d]);
    }
  }
  const std::string text = graph.node(node).attributes.get_string("program", "");
  const PointwiseProgram program = parse_pointwise(text, inputs, graph.outputs(node).size());
  const std::optional<PointwiseSum> sum = sum_of(program);
  if (sum && sum->dims > shape.size()) {
    throw Error(ErrorCode::kModel, "a pointwise program sums over dims that are not there")
        .expected("at most " + std::to_string(shape.size()), std::to_string(sum->dims));
  }
  std::vector<ValueType> types;
  for (const int step : program.outputs)
    types.push_back(ValueType::tensor(program.steps[static_cast<size_t>(step)].dtype, shape));
  if (sum) types[sum->output].shape = kept_dims(shape, *sum);
  return types;
}

/// A step as the operator that it stands for; ours as their bodies.
Expr step_of(BodyContext& body, const PointwiseStep& step, const std::vector<Expr>& operands) {
  const PointwiseRow& row = pointwise_row(step.op);
  Attributes attributes;
  for (size_t i = 0; i < step.parameters.size(); ++i) {
    const PointwiseParameter& parameter = row.parameters[i];
    if (parameter.name.empty()) continue;
    if (parameter.integer) {
      attributes.set(parameter.name, static_cast<int64_t>(step.parameters[i]));
    } else if (parameter.word_for_one.empty()) {
      attributes.set(parameter.name, step.parameters[i]);
    } else {
      attributes.set(parameter.name,
                     std::string(step.parameters[i] != 0 ? parameter.word_for_one : "none"));
    }
  }
  if (is_sum(step.op)) {
    std::vector<int64_t> axes(static_cast<size_t>(step.parameters[1]));
    std::iota(axes.begin(), axes.end(), static_cast<int64_t>(step.parameters[0]));
    const Expr sum = body.b.op(row.op, {body.b.to_math(operands[0]), body.b.ints(axes)},
                               {{"keepdims", int64_t{0}}});
    return body.b.cast(sum, step.dtype);
  }
  if (step.op == PointwiseOp::kCast) return body.b.cast(operands[0], step.dtype);
  if (row.domain.empty()) return body.b.ops(row.op, operands, 1, std::move(attributes))[0];
  BodyContext inner{body.b, attributes, operands, {operands[0].type()}};
  return find_operator(row.domain, row.op)->body(inner)[0];
}

/// What is drawn or summed belongs to the elements of the outputs, over which all inputs are
/// broadcast.
Expr over_all_elements(BodyContext& body, Expr x) {
  for (const Expr& input : body.inputs) {
    if (input.dtype() != DType::kI64 && input.shape() != x.shape())
      x = body.b.op("Expand", {x, body.b.shape_of(input)});
  }
  return x;
}

std::vector<Expr> pointwise_body(BodyContext& body) {
  std::vector<DType> inputs, outputs;
  for (const Expr& input : body.inputs) inputs.push_back(input.dtype());
  for (const ValueType& type : body.output_types) outputs.push_back(type.dtype);
  const PointwiseProgram program =
      parse_pointwise(body.attributes.get_string("program", ""), inputs, outputs);
  std::vector<Expr> results;
  for (const PointwiseStep& step : program.steps) {
    std::vector<Expr> operands;
    for (int i = 0; i < pointwise_row(step.op).arity; ++i) {
      const int operand = step.operands[static_cast<size_t>(i)];
      operands.push_back(operand >= 0 ? body.inputs[static_cast<size_t>(operand)]
                                      : results[static_cast<size_t>(~operand)]);
    }
    const PointwiseTypes kind = pointwise_row(step.op).types;
    if (kind == PointwiseTypes::kDraw || kind == PointwiseTypes::kSum)
      operands[0] = over_all_elements(body, operands[0]);
    results.push_back(step_of(body, step, operands));
  }
  std::vector<Expr> all;
  for (const int output : program.outputs) all.push_back(results[static_cast<size_t>(output)]);
  return all;
}

}  // namespace

std::vector<OperatorRow> fused_rows() {
  return {
      {.domain = kHalfnoteDomain,
       .name = "Pointwise",
       .precision = PrecisionClass::kOpaque,
       .legality = {1, 1},
       .no_gradient = "made behind differentiation",
       .infer = infer_pointwise,
       .body = pointwise_body,
       .note = "a chain of elementwise ops, one pass over memory; made for a device"},
  };
}

}  // namespace halfnote::elementwise
