// Det of square matrices, by elimination with the largest pivot, in f64.
#include "kernels/cpu/contraction/determinant.h"

#include <cmath>

#include "kernels/cpu/contraction/parts.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

namespace {

/// Overwrites the n × n matrix.
double determinant(double* a, int64_t n) {
  double product = 1;
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t i = k + 1; i < n; ++i) {
      if (std::fabs(a[i * n + k]) > std::fabs(a[pivot * n + k])) pivot = i;
    }
    if (a[pivot * n + k] == 0) return 0;
    if (pivot != k) {
      std::swap_ranges(a + pivot * n, a + (pivot + 1) * n, a + k * n);
      product = -product;
    }
    product *= a[k * n + k];
    for (int64_t i = k + 1; i < n; ++i) {
      const double factor = a[i * n + k] / a[k * n + k];
      for (int64_t j = k; j < n; ++j) a[i * n + j] -= factor * a[k * n + j];
    }
  }
  return product;
}

Prepared prepare_det(const KernelCall& call) {
  DetPlan plan;
  if (std::string why = plan_det(call, plan); !why.empty()) return Prepared::no(why);
  const int64_t n = plan.n;
  const auto body = [plan, n](const KernelBuffers& buffers) {
    auto* matrix = reinterpret_cast<double*>(buffers.workspace);
    for (int64_t i = 0; i < plan.count; ++i) {
      load_reals(buffers.inputs[0], plan.type, i * n * n, n * n, matrix);
      write_real(determinant(matrix, n), buffers.outputs[0], plan.type, i);
    }
  };
  return make_kernel(body, static_cast<size_t>(n * n) * sizeof(double));
}

}  // namespace

std::string plan_det(const KernelCall& call, DetPlan& plan) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  const Shape& shape = call.inputs[0].shape;
  plan.type = call.inputs[0].dtype;
  if (!is_real(plan.type) || call.outputs[0].dtype != plan.type) return "no floats";
  if (shape.size() < 2 || shape.back() != shape[shape.size() - 2]) {
    throw model_error(call, "the matrices are not square")
        .expected("two equal last dims", to_string(shape));
  }
  plan.n = shape.back();
  plan.count = call.outputs[0].size();
  return {};
}

std::vector<KernelRow> determinant_rows() { return {{"", "Det", "reference", prepare_det}}; }

}  // namespace halfnote::cpu
