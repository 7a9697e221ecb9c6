// Products of types that no library multiplies, an element of the result a thread: MatMul of
// integers, which wrap around, and Gemm with a C that is wider than its result, which is added
// before the one rounding.
#include "kernels/cpu/contraction/matmul_plan.h"

#include "kernels/cpu/reals.h"
#include "kernels/cuda/any_number.h"
#include "kernels/cuda/contraction/batches.h"
#include "kernels/cuda/contraction/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/math/binary.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::MatmulPlan;

/// The low bits of a product are those of i64, whatever the type.
struct IntegerProduct {
  NumberPointer<int64_t> a, b;
  NumberOutput<int64_t> y;
  Strided<2> batches;
  int64_t m, n, k;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / n % m, column = i % n;
    int64_t offset[2];
    batches.offsets(i / n / m, offset);
    const int64_t first_a = (offset[0] * m + row) * k, first_b = offset[1] * k * n + column;
    int64_t sum = 0;
    for (int64_t at = 0; at < k; ++at) {
      sum = math::Add::value(sum, math::Mul::value(a[first_a + at], b[first_b + at * n]));
    }
    y.write(i, sum);
  }
};

Prepared prepare_integers(const KernelCall& call) {
  const MatmulPlan plan = cpu::plan_matmul(call);
  const DType dtype = call.inputs[0].dtype;
  if (!is_whole(dtype) || size_of(dtype) < 4) return Prepared::no("not 32 or 64 bits of integers");
  if (call.inputs[1].dtype != dtype || call.outputs[0].dtype != dtype) {
    return Prepared::no("operands of different types");
  }
  Strided<2> batches;
  if (std::string why = plan_batches(plan, batches); !why.empty()) return Prepared::no(why);
  return make_kernel([dtype, batches, m = plan.m, n = plan.n, k = plan.k,
                      count = call.outputs[0].size()](const KernelBuffers& buffers) {
    for_each(stream_of(buffers), count,
             IntegerProduct{{buffers.inputs[0], dtype},
                            {buffers.inputs[1], dtype},
                            {buffers.outputs[0], dtype},
                            batches,
                            m,
                            n,
                            k});
  });
}

/// alpha·A·B + beta·C, in f64.
struct WideGemm {
  RealPointer a, b, c;
  RealOutput y;
  int64_t m, n, k, c_row, c_column;
  bool trans_a, trans_b;
  double alpha, beta;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / n, column = i % n;
    const int64_t first_a = trans_a ? row : row * k, first_b = trans_b ? column * k : column;
    const int64_t step_a = trans_a ? m : 1, step_b = trans_b ? 1 : n;
    double sum = 0;
    for (int64_t at = 0; at < k; ++at) sum += a[first_a + at * step_a] * b[first_b + at * step_b];
    y.write(i, alpha * sum + beta * c[row * c_row + column * c_column]);
  }
};

Prepared prepare_wide_gemm(const KernelCall& call) {
  const MatmulPlan plan = cpu::plan_gemm(call);
  const DType a = call.inputs[0].dtype, y = call.outputs[0].dtype;
  if (call.inputs[1].dtype != a) return Prepared::no("A and B of different types");
  if (call.domain.empty() && y != a) return Prepared::no("A and Y of different types");
  if (!cpu::is_real(a) || !cpu::is_real(y)) return Prepared::no("no floats");
  if (!plan.has_c) return Prepared::no("without a C");
  const DType c = call.inputs[2].dtype;
  if (!cpu::is_real(c)) return Prepared::no("C is no float");
  return make_kernel([=, count = call.outputs[0].size()](const KernelBuffers& buffers) {
    for_each(stream_of(buffers), count,
             WideGemm{{buffers.inputs[0], a},
                      {buffers.inputs[1], a},
                      {buffers.inputs[2], c},
                      {buffers.outputs[0], y},
                      plan.m,
                      plan.n,
                      plan.k,
                      plan.c_row,
                      plan.c_column,
                      plan.trans_a,
                      plan.trans_b,
                      plan.alpha,
                      plan.beta});
  });
}

}  // namespace

std::vector<KernelRow> plain_product_rows() {
  return {
      {"", "Gemm", "own.wide_gemm", prepare_wide_gemm, {}, RowUse::kFallback},
      {"", "MatMul", "own.integers", prepare_integers, {}, RowUse::kFallback},
      {"ai.halfnote", "Gemm", "own.wide_gemm", prepare_wide_gemm, {}, RowUse::kFallback},
  };
}

}  // namespace halfnote::HN_CUDA
