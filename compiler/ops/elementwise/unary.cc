// The float functions of one operand and their gradient ops, from one table: a line of kOps gives
// the row of ONNX's `<Op>` and that of `ai.halfnote.<Op>Grad(dY, S)`, where S is X or Y.
#include <algorithm>

#include "compiler/ir/model.h"
#include "compiler/ops/elementwise/derivatives.h"
#include "compiler/ops/elementwise/parts.h"
#include "compiler/ops/families.h"

namespace halfnote::elementwise {
namespace {

using enum PrecisionClass;

using Derivative = Expr (*)(Expr dy, Expr s, const Attributes& attributes);

/// A body that computes in f32 (f64 for f64) and rounds once.
template <Derivative Formula>
std::vector<Expr> wide(BodyContext& body) {
  const Expr dy = body.b.to_math(body.inputs[0]);
  const Expr s = body.b.to_math(body.inputs[1]);
  return {body.b.cast(Formula(dy, s, body.attributes), body.output_types[0].dtype)};
}

/// What the gradient op reads beside dY: the output where that is enough, so that the forward op
/// may run in place; else the input.
enum class Source : uint8_t { kX, kY };
using enum Source;

struct UnaryOp {
  std::string_view name;
  PrecisionClass precision;
  Legality legality;
  std::string_view gradient_name;
  PrecisionClass gradient_precision;  // differs where the gradient is safer or less safe
  Source source;
  BodyRule body;
  std::string_view note = {};
  ScaleRule scale = ScaleRule::kNone;
};

constexpr std::string_view kExpInside = "exp inside overflows f16";

const UnaryOp kOps[] = {
    {"Abs", kClear, {1, 13}, "AbsGrad", kClear, kX, wide<derivative::abs>},
    {"Acos", kFp32, {7, 22}, "AcosGrad", kFp32, kX, wide<derivative::acos>},
    {"Acosh", kFp32, {9, 22}, "AcoshGrad", kFp32, kX, wide<derivative::acosh>},
    {"Asin", kFp32, {7, 22}, "AsinGrad", kFp32, kX, wide<derivative::asin>},
    {"Asinh", kFp32, {9, 22}, "AsinhGrad", kFp32, kX, wide<derivative::asinh>},
    {"Atan", kInfer, {7, 22}, "AtanGrad", kInfer, kX, wide<derivative::atan>},
    {"Atanh", kFp32, {9, 22}, "AtanhGrad", kFp32, kX, wide<derivative::atanh>},
    {"Celu",
     kFp32,
     {28, 28},
     "CeluGrad",
     kFp32,
     kX,
     wide<derivative::celu>,
     "ONNX has it in f32 only before op-set 28"},
    {"Cos",
     kFp32,
     {7, 22},
     "CosGrad",
     kFp32,
     kX,
     wide<derivative::cos>,
     "argument reduction needs f32"},
    {"Cosh", kFp32, {9, 22}, "CoshGrad", kFp32, kX, wide<derivative::cosh>, kExpInside},
    {"Elu", kInfer, {1, 22}, "EluGrad", kInfer, kY, wide<derivative::elu>},
    {"Erf", kInfer, {9, 13}, "ErfGrad", kInfer, kX, wide<derivative::erf>},
    {"Exp",
     kFp32,
     {1, 13},
     "ExpGrad",
     kFp32,
     kY,
     wide<derivative::exp>,
     "overflows above 11.09 in f16"},
    {"Gelu", kInfer, {20, 20}, "GeluGrad", kInfer, kX, wide<derivative::gelu>},
    {"HardSigmoid", kInfer, {1, 22}, "HardSigmoidGrad", kInfer, kX, wide<derivative::hard_sigmoid>},
    {"HardSwish", kInfer, {14, 22}, "HardSwishGrad", kInfer, kX, wide<derivative::hard_swish>},
    {"LeakyRelu", kInfer, {1, 16}, "LeakyReluGrad", kInfer, kY, wide<derivative::leaky_relu>},
    {"Log",
     kFp32,
     {1, 13},
     "LogGrad",
     kFp32,
     kX,
     wide<derivative::log>,
     "the log of a number flushed to 0 is -inf"},
    {"Mish", kInfer, {18, 22}, "MishGrad", kInfer, kX, wide<derivative::mish>},
    {"Reciprocal",
     kFp32,
     {1, 13},
     "ReciprocalGrad",
     kFp32,
     kY,
     wide<derivative::reciprocal>,
     "overflows below 1.53e-5 in f16",
     ScaleRule::kInverse},
    {"Relu", kClear, {1, 13}, "ReluGrad", kClear, kY, wide<derivative::relu>},
    {"Selu", kInfer, {1, 22}, "SeluGrad", kInfer, kX, wide<derivative::selu>},
    {"Shrink",
     kClear,
     {9, 0},
     "ShrinkGrad",
     kClear,
     kX,
     wide<derivative::shrink>,
     "never legal in bf16"},
    {"Sigmoid", kInfer, {1, 13}, "SigmoidGrad", kInfer, kY, wide<derivative::sigmoid>},
    {"Sin",
     kFp32,
     {7, 22},
     "SinGrad",
     kFp32,
     kX,
     wide<derivative::sin>,
     "argument reduction needs f32"},
    {"Sinh", kFp32, {9, 22}, "SinhGrad", kFp32, kX, wide<derivative::sinh>, kExpInside},
    {"Softplus",
     kFp32,
     {1, 22},
     "SoftplusGrad",
     kInfer,
     kX,
     wide<derivative::softplus>,
     kExpInside},
    {"Softsign", kInfer, {1, 22}, "SoftsignGrad", kInfer, kX, wide<derivative::softsign>},
    {"Sqrt",
     kInfer,
     {1, 13},
     "SqrtGrad",
     kFp32,
     kY,
     wide<derivative::sqrt>,
     "its gradient 1/(2·sqrt(x)) explodes near 0"},
    {"Swish", kInfer, {24, 24}, "SwishGrad", kInfer, kX, wide<derivative::swish>},
    {"Tan", kFp32, {7, 22}, "TanGrad", kFp32, kX, wide<derivative::tan>},
    {"Tanh", kInfer, {1, 13}, "TanhGrad", kInfer, kY, wide<derivative::tanh>},
    {"ThresholdedRelu",
     kInfer,
     {10, 22},
     "ThresholdedReluGrad",
     kInfer,
     kX,
     wide<derivative::thresholded_relu>},
};

/// A sigmoid rounded to 1 gives Log(1 - p) = -inf.
constexpr std::string_view kMagnifying[] = {"Acos", "Acosh", "Asin", "Atanh", "Log"};

/// With a negative slope the sign of Y says nothing of X: the gradient op must read X. So must that
/// of Elu: Y + alpha is the small difference of two numbers, of which 16 bits keep nothing at -6.
bool needs_input(const UnaryOp& op, const Attributes& attributes) {
  if (op.name == "Elu") return true;
  return op.name == "LeakyRelu" && attributes.get_float("alpha", 1.0f) < 0;
}

std::vector<Expr> unary_gradient(GradientContext& rule) {
  const std::string& name = rule.graph().node(rule.node).op;
  const UnaryOp& op = *std::find_if(std::begin(kOps), std::end(kOps),
                                    [&](const UnaryOp& row) { return row.name == name; });
  Attributes attributes = rule.attributes();
  const bool from_input = needs_input(op, attributes);
  if (from_input) attributes.set("from_input", int64_t{1});
  const Expr s = op.source == kX || from_input ? rule.inputs[0] : rule.outputs[0];
  return {rule.b.op(op.gradient_name, {rule.grads[0], s}, std::move(attributes), kHalfnoteDomain)};
}

}  // namespace

std::vector<OperatorRow> unary_rows() {
  std::vector<OperatorRow> rows;
  for (const UnaryOp& op : kOps) {
    rows.push_back({.name = op.name,
                    .precision = op.precision,
                    .legality = op.legality,
                    .magnifies = std::ranges::count(kMagnifying, op.name) > 0,
                    .scale = op.scale,
                    .gradient = unary_gradient,
                    .note = op.note});
    rows.push_back({.domain = kHalfnoteDomain,
                    .name = op.gradient_name,
                    .precision = op.gradient_precision,
                    .legality = {1, 1},
                    .scale = ScaleRule::kFirst,
                    .no_gradient = kSecond,
                    .infer = infer_like_grad,
                    .body = op.body,
                    .note = op.source == kX ? "reads dY and X" : "reads dY and Y"});
  }
  return rows;
}

}  // namespace halfnote::elementwise
