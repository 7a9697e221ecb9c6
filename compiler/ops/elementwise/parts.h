// The parts of the elementwise family, file by file.
#pragma once

#include <vector>

#include "compiler/ops/operator.h"

namespace halfnote::elementwise {

/// unary.cc: float functions of one operand, and their `<Op>Grad`.
std::vector<OperatorRow> unary_rows();
/// arithmetic.cc: Add, Mul, Pow, Sum and their like.
std::vector<OperatorRow> arithmetic_rows();
/// select.cc: Where, Clip, ClipGrad, Min, Max, PRelu.
std::vector<OperatorRow> select_rows();
/// logic.cc: comparison, logic, bits, rounding: what no gradient flows through.
std::vector<OperatorRow> logic_rows();
/// cast.cc: Cast, CastLike, BitCast.
std::vector<OperatorRow> cast_rows();
/// fused.cc: Pointwise.
std::vector<OperatorRow> fused_rows();

/// Types of a gradient op's result: those of dY. Throws Error(kModel) unless dY and the operand
/// beside it are floats of one type and of shapes that agree.
std::vector<ValueType> infer_like_grad(const Graph& graph, NodeId node);

}  // namespace halfnote::elementwise
