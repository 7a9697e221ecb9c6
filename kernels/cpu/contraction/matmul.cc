// MatMul and Gemm, ONNX's own and those of ai.halfnote. Operands that are transposed or of 16 bits
// are first laid out row-major in math precision in the workspace.
#include "kernels/cpu/contraction/matmul_plan.h"
#include "kernels/cpu/contraction/parts.h"
#include "kernels/cpu/contraction/product.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

namespace {

/// A stack of matrices to be read as (rows, columns) in row-major order and type M.
template <class M>
struct Source {
  DType dtype = DType::kUndefined;
  int64_t count = 0, rows = 0, columns = 0;
  bool transposed = false;  // stored as (columns, rows)
  size_t offset = 0;        // of its copy in the workspace

  bool needs_copy() const { return transposed || dtype != dtype_of<M>(); }

  const M* read(const KernelBuffers& buffers, size_t input, int threads) const {
    const std::byte* from = buffers.inputs[input];
    if (!needs_copy()) return reinterpret_cast<const M*>(from);
    M* to = part<M>(buffers, offset);
    if (!transposed) return all_reals(from, dtype, count * rows * columns, to, threads);
    parallel_blocks(count * rows, 16, threads, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t first = row / rows * rows * columns + row % rows;
        for (int64_t j = 0; j < columns; ++j) {
          load_reals(from, dtype, first + j * rows, 1, to + row * columns + j);
        }
      }
    });
    return to;
  }
};

template <class M>
Source<M> make_source(const Operand& operand, int64_t count, int64_t rows, int64_t columns,
                      bool transposed, WorkspacePlan& workspace) {
  Source<M> source{operand.dtype, count, rows, columns, transposed};
  if (source.needs_copy()) source.offset = workspace.add_elements<M>(operand.size());
  return source;
}

/// alpha·sums + beta·C for a piece of a row, written in the type of the output.
template <class M>
struct Epilogue {
  MatmulPlan plan;
  DType c = DType::kUndefined, y = DType::kUndefined;

  void operator()(const KernelBuffers& buffers, int64_t batch, int64_t row, int64_t column,
                  int64_t count, M* sums) const {
    if (plan.alpha != 1) {
      for (int64_t j = 0; j < count; ++j) sums[j] *= static_cast<M>(plan.alpha);
    }
    if (plan.has_c) {
      for (int64_t j = 0; j < count; ++j) {
        const int64_t index = row * plan.c_row + (column + j) * plan.c_column;
        sums[j] +=
            static_cast<M>(plan.beta) * static_cast<M>(read_real(buffers.inputs[2], c, index));
      }
    }
    store_reals(sums, count, y, buffers.outputs[0], (batch * plan.m + row) * plan.n + column);
  }
};

/// Rows of a parallel block: whole tiles, about 2^18 multiplications.
int64_t row_grain(const MatmulPlan& plan) {
  const int64_t work = std::max<int64_t>(1, plan.n * std::max<int64_t>(1, plan.k));
  const int64_t rows = std::max<int64_t>(1, (int64_t{1} << 18) / work);
  return (rows + kTileRows - 1) / kTileRows * kTileRows;
}

/// Calls `body(batch, begin, end)` for blocks of rows of every matrix of Y.
template <class Body>
void for_row_blocks(const MatmulPlan& plan, int threads, Body&& body) {
  const int64_t grain = row_grain(plan);
  const int64_t blocks = (plan.m + grain - 1) / grain;
  parallel_blocks(plan.batches() * blocks, 1, threads, [&](int64_t block, int64_t) {
    const int64_t begin = block % blocks * grain;
    body(block / blocks, begin, std::min(plan.m, begin + grain));
  });
}

template <class M>
Prepared real_product(const KernelCall& call, const MatmulPlan& plan) {
  WorkspacePlan workspace;
  const auto a =
      make_source<M>(call.inputs[0], plan.a_count, plan.m, plan.k, plan.trans_a, workspace);
  const auto b =
      make_source<M>(call.inputs[1], plan.b_count, plan.k, plan.n, plan.trans_b, workspace);
  const Epilogue<M> epilogue{plan, plan.has_c ? call.inputs[2].dtype : DType::kUndefined,
                             call.outputs[0].dtype};
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    const MatmulPlan& p = epilogue.plan;
    const M* left = a.read(buffers, 0, threads);
    const M* right = b.read(buffers, 1, threads);
    for_row_blocks(p, threads, [&](int64_t batch, int64_t begin, int64_t end) {
      const auto index = static_cast<size_t>(batch);
      multiply_rows(left + p.a_of[index] * p.m * p.k, right + p.b_of[index] * p.k * p.n, begin, end,
                    p.n, p.k, [&](int64_t row, int64_t column, int64_t count, M* sums) {
                      epilogue(buffers, batch, row, column, count, sums);
                    });
    });
  };
  return make_kernel(body, workspace.size());
}

/// Integers wrap around, so the math is in the unsigned type of the same size.
template <class U>
Prepared integer_product(const KernelCall& call, const MatmulPlan& plan) {
  return make_kernel([plan, threads = call.threads](const KernelBuffers& buffers) {
    for_row_blocks(plan, threads, [&](int64_t batch, int64_t begin, int64_t end) {
      const auto index = static_cast<size_t>(batch);
      multiply_rows(buffers.in<U>(0) + plan.a_of[index] * plan.m * plan.k,
                    buffers.in<U>(1) + plan.b_of[index] * plan.k * plan.n, begin, end, plan.n,
                    plan.k, [&](int64_t row, int64_t column, int64_t count, const U* sums) {
                      std::copy_n(sums, count,
                                  buffers.out<U>(0) + (batch * plan.m + row) * plan.n + column);
                    });
    });
  });
}

Prepared check_types(const KernelCall& call) {
  const DType type = call.inputs[0].dtype;
  if (call.inputs[1].dtype != type) {
    return Prepared::no("A is " + std::string(short_name(type)) + " and B is " +
                        std::string(short_name(call.inputs[1].dtype)));
  }
  if (call.domain.empty() && call.outputs[0].dtype != type) {
    return Prepared::no("Y is " + std::string(short_name(call.outputs[0].dtype)) + " and A is " +
                        std::string(short_name(type)));
  }
  if (is_real(type) && !is_real(call.outputs[0].dtype)) {
    return Prepared::no("Y is no float type: " + std::string(short_name(call.outputs[0].dtype)));
  }
  if (call.has_input(2) && !is_real(call.inputs[2].dtype)) {
    return Prepared::no("C is no float type: " + std::string(short_name(call.inputs[2].dtype)));
  }
  return {};
}

Prepared prepare_matmul(const KernelCall& call) {
  const MatmulPlan plan = plan_matmul(call);
  if (Prepared refused = check_types(call); !refused.refusal.empty()) return refused;
  switch (call.inputs[0].dtype) {
    case DType::kI32:
    case DType::kU32:
      if (!call.domain.empty()) return Prepared::no("ai.halfnote.MatMul takes floats only");
      return integer_product<uint32_t>(call, plan);
    case DType::kI64:
    case DType::kU64:
      if (!call.domain.empty()) return Prepared::no("ai.halfnote.MatMul takes floats only");
      return integer_product<uint64_t>(call, plan);
    default:
      return for_math_type(call.inputs[0].dtype,
                           [&]<class M>() { return real_product<M>(call, plan); });
  }
}

Prepared prepare_gemm(const KernelCall& call) {
  const MatmulPlan plan = plan_gemm(call);
  if (Prepared refused = check_types(call); !refused.refusal.empty()) return refused;
  return for_math_type(call.inputs[0].dtype,
                       [&]<class M>() { return real_product<M>(call, plan); });
}

}  // namespace

std::vector<KernelRow> matmul_rows() {
  return {
      {"", "Gemm", "reference", prepare_gemm},
      {"", "MatMul", "reference", prepare_matmul},
      {"ai.halfnote", "Gemm", "reference", prepare_gemm},
      {"ai.halfnote", "MatMul", "reference", prepare_matmul},
  };
}

}  // namespace halfnote::cpu
