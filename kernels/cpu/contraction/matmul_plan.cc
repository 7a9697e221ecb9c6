#include "kernels/cpu/contraction/matmul_plan.h"

#include <algorithm>

#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

namespace {

/// For each index into `to` (row-major), the index into `from`, which broadcasts to it and has the
/// same rank.
std::vector<int64_t> broadcast_indices(const Shape& from, const Shape& to) {
  Shape strides = strides_of(from);
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] == 1) strides[d] = 0;
  }
  std::vector<int64_t> indices(static_cast<size_t>(element_count(to)));
  for (size_t i = 0; i < indices.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i);
    for (size_t d = to.size(); d-- > 0;) {
      indices[i] += rest % to[d] * strides[d];
      rest /= to[d];
    }
  }
  return indices;
}

Shape padded_with_ones(Shape shape, size_t rank) {
  shape.insert(shape.begin(), rank - shape.size(), 1);
  return shape;
}

void check_output(const KernelCall& call, const Shape& expected) {
  if (call.outputs[0].shape == expected) return;
  throw model_error(call, "output of the wrong shape")
      .expected(to_string(expected), to_string(call.outputs[0].shape));
}

void check_operands(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0)) {
    throw model_error(call, "an operand is missing");
  }
}

void check_inner(const KernelCall& call, int64_t of_a, int64_t of_b) {
  if (of_a == of_b) return;
  throw model_error(call, "the inner dims of " + to_string(call.inputs[0].shape) + " and " +
                              to_string(call.inputs[1].shape) + " differ")
      .expected(std::to_string(of_a), std::to_string(of_b));
}

/// The strides of C in Y, whose shape is (m, n).
void plan_c(const KernelCall& call, MatmulPlan& plan) {
  plan.has_c = call.has_input(2) && plan.beta != 0;
  if (!plan.has_c) return;
  const Shape& given = call.inputs[2].shape;
  const Shape c = given.size() <= 2 ? padded_with_ones(given, 2) : given;
  if (c.size() != 2 || (c[0] != 1 && c[0] != plan.m) || (c[1] != 1 && c[1] != plan.n)) {
    throw model_error(call, "C does not broadcast to the product")
        .expected(to_string(Shape{plan.m, plan.n}), to_string(given));
  }
  plan.c_row = c[0] == 1 ? 0 : c[1];
  plan.c_column = c[1] == 1 ? 0 : 1;
}

}  // namespace

MatmulPlan plan_matmul(const KernelCall& call) {
  check_operands(call);
  MatmulPlan plan;
  plan.trans_a = attributes_of(call).get_int("transA", 0) != 0;
  plan.trans_b = attributes_of(call).get_int("transB", 0) != 0;
  Shape a = call.inputs[0].shape, b = call.inputs[1].shape;
  if (a.empty() || b.empty()) throw model_error(call, "a scalar operand");
  const bool vector_a = a.size() == 1, vector_b = b.size() == 1;
  if (vector_a) a.insert(a.begin(), 1);
  if (vector_b) b.push_back(1);
  plan.m = plan.trans_a ? a.end()[-1] : a.end()[-2];
  plan.k = plan.trans_a ? a.end()[-2] : a.end()[-1];
  plan.n = plan.trans_b ? b.end()[-2] : b.end()[-1];
  check_inner(call, plan.k, plan.trans_b ? b.end()[-1] : b.end()[-2]);
  const Shape a_batch(a.begin(), a.end() - 2), b_batch(b.begin(), b.end() - 2);
  plan.y_batch = broadcast_shapes(a_batch, b_batch);
  plan.a_batch = padded_with_ones(a_batch, plan.y_batch.size());
  plan.b_batch = padded_with_ones(b_batch, plan.y_batch.size());
  plan.a_count = element_count(a_batch);
  plan.b_count = element_count(b_batch);
  plan.a_of = broadcast_indices(plan.a_batch, plan.y_batch);
  plan.b_of = broadcast_indices(plan.b_batch, plan.y_batch);
  Shape y = plan.y_batch;
  if (!vector_a) y.push_back(plan.m);
  if (!vector_b) y.push_back(plan.n);
  check_output(call, y);
  return plan;
}

MatmulPlan plan_gemm(const KernelCall& call) {
  check_operands(call);
  MatmulPlan plan;
  const Attributes& attributes = attributes_of(call);
  plan.trans_a = attributes.get_int("transA", 0) != 0;
  plan.trans_b = attributes.get_int("transB", 0) != 0;
  plan.alpha = attributes.get_float("alpha", 1);
  plan.beta = attributes.get_float("beta", 1);
  const Shape &a = call.inputs[0].shape, &b = call.inputs[1].shape;
  if (a.size() != 2 || b.size() != 2) {
    throw model_error(call, "operands of the wrong rank")
        .expected("two matrices", to_string(a) + " and " + to_string(b));
  }
  plan.m = a[plan.trans_a ? 1 : 0];
  plan.k = a[plan.trans_a ? 0 : 1];
  plan.n = b[plan.trans_b ? 0 : 1];
  check_inner(call, plan.k, b[plan.trans_b ? 1 : 0]);
  plan.a_count = plan.b_count = 1;
  plan.a_of = plan.b_of = {0};
  plan_c(call, plan);
  check_output(call, {plan.m, plan.n});
  return plan;
}

MatmulPlan as_one_product(MatmulPlan plan) {
  const int64_t batches = plan.batches();
  if (plan.b_count != 1 || plan.a_count != batches || plan.trans_a || plan.has_c) return plan;
  plan.m *= batches;
  plan.a_of = plan.b_of = {0};
  return plan;
}

}  // namespace halfnote::cpu
