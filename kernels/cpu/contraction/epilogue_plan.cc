#include "kernels/cpu/contraction/epilogue_plan.h"

#include "kernels/cpu/reals.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu {

namespace {

void check_shape(const KernelCall& call, const Operand& operand, const Shape& wanted,
                 std::string_view what) {
  if (operand.shape == wanted) return;
  throw model_error(call, std::string(what) + " of the wrong shape")
      .expected(to_string(wanted), to_string(operand.shape));
}

/// Of what an activation leaves to its gradient.
Shape saved_shape(const EpiloguePlan& plan) {
  return {plan.m(), plan.is_relu() ? mask_row_bytes(plan.n()) : plan.n()};
}

void check_shapes(const KernelCall& call, const EpiloguePlan& plan) {
  using Kind = EpiloguePlan::Kind;
  if (plan.has_bias) check_shape(call, call.inputs[2], {plan.n()}, "a bias");
  if (plan.kind == Kind::kGradient) {
    if (!call.has_input(2)) throw model_error(call, "an operand is missing");
    check_shape(call, call.inputs[2], saved_shape(plan), "what an activation left");
  }
  if (!plan.has_second) return;
  const Operand& second = call.outputs[1];
  if (plan.kind == Kind::kActivation) {
    check_shape(call, second, saved_shape(plan), "what an activation leaves");
  } else {
    check_shape(call, second, {plan.kind == Kind::kSumsOfA ? plan.m() : plan.n()}, "sums");
  }
}

}  // namespace

EpiloguePlan plan_epilogue(const KernelCall& call) {
  using Kind = EpiloguePlan::Kind;
  EpiloguePlan plan;
  KernelCall product = call;
  product.inputs.resize(std::min<size_t>(product.inputs.size(), 2));
  product.outputs.resize(std::min<size_t>(product.outputs.size(), 1));
  plan.product = plan_gemm(product);
  plan.has_second = call.has_output(1);
  if (call.op == "GemmSums") {
    plan.kind = sums_are_of_a(attributes_of(call)) ? Kind::kSumsOfA : Kind::kSumsOfB;
    if (!plan.has_second) throw model_error(call, "a result is missing");
  } else {
    plan.activation = gemm_activation(attributes_of(call));
    plan.kind = call.op == "GemmActivation" ? Kind::kActivation : Kind::kGradient;
    plan.has_bias = plan.kind == Kind::kActivation && call.has_input(2);
  }
  check_shapes(call, plan);
  return plan;
}

std::string unfit_epilogue_types(const KernelCall& call, const EpiloguePlan& plan) {
  const DType type = call.inputs[0].dtype, result = call.outputs[0].dtype;
  if (!is_real(type) || call.inputs[1].dtype != type) return "A and B of different types, or none";
  if (!is_real(result)) return "Y is no float";
  if (!plan.sums_operand() && result != type) return "A and Y of different types";
  if (plan.has_bias && call.inputs[2].dtype != type) return "A and the bias of different types";
  const DType saved = plan.is_relu() ? DType::kU8 : type;
  using Kind = EpiloguePlan::Kind;
  if (plan.kind == Kind::kGradient && call.inputs[2].dtype != saved)
    return "what an activation left is of another type";
  if (!plan.has_second) return {};
  const DType second = plan.kind == Kind::kActivation ? saved : result;
  return call.outputs[1].dtype == second ? "" : "the second result is of another type";
}

}  // namespace halfnote::cpu
