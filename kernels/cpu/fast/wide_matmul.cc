// MatMul and Gemm of f32 with sums in f64, for small problems.
#include "kernels/cpu/contraction/matmul_plan.h"
#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/fast/wide_product.h"

namespace halfnote::cpu::fast {

namespace {

/// One operand: element (i, j) of a matrix is at i·row + j·column.
struct Strides {
  int64_t row = 0, column = 0;
};

struct Columns {
  const float* b = nullptr;  // at the first column
  Strides stride;
  int64_t columns = 0;

  void read(int64_t k, int64_t count, double* to) const {
    const float* from = b + k * stride.row;
    if (stride.column == 1) {
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t j = 0; j < columns; ++j) to[i * kWideColumns + j] = from[i * stride.row + j];
      }
      return;
    }
    for (int64_t j = 0; j < columns; ++j) {
      const float* line = from + j * stride.column;
      for (int64_t i = 0; i < count; ++i) to[i * kWideColumns + j] = line[i * stride.row];
    }
  }
};

struct Source {
  const MatmulPlan& plan;
  const KernelBuffers& buffers;
  Strides a, b;

  void left(int64_t batch, int64_t row, int64_t k, int64_t count, double* to) const {
    const float* from = buffers.in<float>(0) +
                        plan.a_of[static_cast<size_t>(batch)] * (plan.m * plan.k) + row * a.row +
                        k * a.column;
    for (int64_t i = 0; i < count; ++i) to[i * kTallTile] = from[i * a.column];
  }

  Columns right(int64_t batch, int64_t column, int64_t columns) const {
    const float* from = buffers.in<float>(1) +
                        plan.b_of[static_cast<size_t>(batch)] * (plan.k * plan.n) +
                        column * b.column;
    return {from, b, columns};
  }

  void store(int64_t batch, int64_t row, int64_t column, int64_t columns,
             const double* sums) const {
    float* y = buffers.out<float>(0) + (batch * plan.m + row) * plan.n + column;
    const double alpha = plan.alpha, beta = plan.beta;
    if (!plan.has_c) {
      for (int64_t j = 0; j < columns; ++j) y[j] = static_cast<float>(alpha * sums[j]);
      return;
    }
    const float* c = buffers.in<float>(2) + row * plan.c_row + column * plan.c_column;
    for (int64_t j = 0; j < columns; ++j) {
      const double addend = c[j * plan.c_column];
      y[j] = static_cast<float>(alpha * sums[j] + beta * addend);
    }
  }
};

std::string refusal(const KernelCall& call, const MatmulPlan& plan) {
  for (const Operand& operand : call.inputs) {
    if (operand.present() && operand.dtype != DType::kF32)
      return "an operand of type " + std::string(short_name(operand.dtype));
  }
  if (call.outputs[0].dtype != DType::kF32)
    return "Y is " + std::string(short_name(call.outputs[0].dtype));
  return wide_refusal({plan.batches(), plan.m, plan.n, plan.k});
}

Prepared build(const KernelCall& call, const MatmulPlan& whole) {
  const MatmulPlan one = as_one_product(whole);
  if (std::string why = refusal(call, one); !why.empty()) return Prepared::no(why);
  return make_kernel([plan = one, threads = call.threads](const KernelBuffers& buffers) {
    const Strides a = plan.trans_a ? Strides{1, plan.m} : Strides{plan.k, 1};
    const Strides b = plan.trans_b ? Strides{1, plan.k} : Strides{plan.n, 1};
    wide_product({plan.batches(), plan.m, plan.n, plan.k}, threads, Source{plan, buffers, a, b});
  });
}

Prepared prepare_matmul(const KernelCall& call) { return build(call, plan_matmul(call)); }
Prepared prepare_gemm(const KernelCall& call) { return build(call, plan_gemm(call)); }

}  // namespace

std::vector<KernelRow> wide_matmul_rows() {
  return {
      {"", "Gemm", "fast.matmul_f64_sums", prepare_gemm},
      {"", "MatMul", "fast.matmul_f64_sums", prepare_matmul},
      {"ai.halfnote", "Gemm", "fast.matmul_f64_sums", prepare_gemm},
      {"ai.halfnote", "MatMul", "fast.matmul_f64_sums", prepare_matmul},
  };
}

}  // namespace halfnote::cpu::fast
