// MatMul and Gemm on oneDNN's matmul. Transposes are strides; a stack of A times one B is one tall
// product.
#include "kernels/cpu/contraction/matmul_plan.h"
#include "kernels/cpu/onednn/parts.h"
#include "kernels/cpu/onednn/program.h"

namespace halfnote::cpu::onednn {

namespace {

/// The three operands as the library sees them: batch dims, then two matrix dims.
struct Operands {
  Memory::desc a, b, y;
};

/// `batch` × (rows, columns), stored with the last two dims swapped if `transposed`.
Memory::desc stack(Shape batch, int64_t rows, int64_t columns, bool transposed, DType dtype) {
  Shape stored = batch;
  stored.insert(stored.end(), {transposed ? columns : rows, transposed ? rows : columns});
  Shape strides = strides_of(stored);
  if (transposed) std::swap(strides.end()[-1], strides.end()[-2]);
  batch.insert(batch.end(), {rows, columns});
  return {batch, data_type(dtype), strides};
}

Operands describe(const MatmulPlan& plan, DType compute, DType result) {
  const int64_t batches = plan.batches();
  if (plan.b_count == 1 && plan.a_count == batches && !plan.trans_a) {
    const int64_t rows = batches * plan.m;
    return {stack({}, rows, plan.k, false, compute),
            stack({}, plan.k, plan.n, plan.trans_b, compute),
            stack({}, rows, plan.n, false, result)};
  }
  Shape a = plan.a_batch, b = plan.b_batch, y = plan.y_batch;
  if (plan.a_count == batches && plan.b_count == batches) a = b = y = {batches};
  return {stack(a, plan.m, plan.k, plan.trans_a, compute),
          stack(b, plan.k, plan.n, plan.trans_b, compute), stack(y, plan.m, plan.n, false, result)};
}

/// C as the library adds it: a bias along the columns, or a post-op.
struct Addend {
  enum class Kind { kNone, kBias, kPostOp } kind = Kind::kNone;
  Memory::desc desc;
};

Addend describe_addend(const KernelCall& call, const MatmulPlan& plan, DType compute) {
  if (!plan.has_c) return {};
  const DType type = result_type(compute, call.inputs[2].dtype);  // as it is, or as f32
  const Shape shape{plan.c_row == 0 ? 1 : plan.m, plan.c_column == 0 ? 1 : plan.n};
  const bool is_bias = shape[0] == 1 && shape[1] == plan.n && plan.alpha == 1;
  return {is_bias ? Addend::Kind::kBias : Addend::Kind::kPostOp, plain(shape, type)};
}

std::string refusal(const KernelCall& call, Path path) {
  if (std::string why = path_refusal(path, call.inputs[0].dtype); !why.empty()) return why;
  if (call.inputs[1].dtype != call.inputs[0].dtype) return "operands of different types";
  if (call.domain.empty() && call.outputs[0].dtype != call.inputs[0].dtype) {
    return "Y of another type than A";
  }
  if (call.has_input(2) &&
      (!is_real(call.inputs[2].dtype) || call.inputs[2].dtype == DType::kF64)) {
    return "C of type " + std::string(short_name(call.inputs[2].dtype));
  }
  return operand_refusal(call);
}

Prepared build(const KernelCall& call, const MatmulPlan& plan, Path path) {
  const DType compute = compute_type(path, call.inputs[0].dtype);
  const Operands operands = describe(plan, compute, result_type(compute, call.outputs[0].dtype));
  const Addend addend = describe_addend(call, plan, compute);
  dnnl::primitive_attr attr = attributes();
  dnnl::post_ops after;
  if (plan.alpha != 1) after.append_eltwise(dnnl::algorithm::eltwise_linear, plan.alpha, 0);
  if (addend.kind == Addend::Kind::kPostOp)
    after.append_binary(dnnl::algorithm::binary_add, addend.desc);
  attr.set_post_ops(after);
  const Memory::desc bias = addend.kind == Addend::Kind::kBias ? addend.desc : Memory::desc();
  const dnnl::matmul::primitive_desc descriptor(engine(), operands.a, operands.b, bias, operands.y,
                                                attr);
  if (is_plain_loop(descriptor)) return Prepared::no("oneDNN has only a plain loop for this call");

  ProgramBuilder program(call);
  ProgramBuilder::Arguments arguments{{DNNL_ARG_SRC, program.input(0, operands.a)},
                                      {DNNL_ARG_WEIGHTS, program.input(1, operands.b)},
                                      {DNNL_ARG_DST, program.output(0, operands.y)}};
  if (addend.kind == Addend::Kind::kBias)
    arguments.emplace(DNNL_ARG_BIAS, program.input(2, addend.desc));
  if (addend.kind == Addend::Kind::kPostOp) {
    const int position = DNNL_ARG_ATTR_MULTIPLE_POST_OP(after.len() - 1);
    arguments.emplace(position | DNNL_ARG_SRC_1, program.input(2, addend.desc));
  }
  program.execute(dnnl::matmul(descriptor), descriptor, std::move(arguments));
  return program.finish();
}

template <Path path>
Prepared prepare_matmul(const KernelCall& call) {
  const MatmulPlan plan = plan_matmul(call);
  if (std::string why = refusal(call, path); !why.empty()) return Prepared::no(why);
  return guarded(call, [&] { return build(call, plan, path); });
}

template <Path path>
Prepared prepare_gemm(const KernelCall& call) {
  const MatmulPlan plan = plan_gemm(call);
  if (std::string why = refusal(call, path); !why.empty()) return Prepared::no(why);
  if (plan.has_c && plan.beta != 1) return Prepared::no("beta is neither 0 nor 1");
  return guarded(call, [&] { return build(call, plan, path); });
}

}  // namespace

std::vector<KernelRow> matmul_rows() {
  return {
      {"", "Gemm", "onednn.matmul", prepare_gemm<Path::kNative>},
      {"", "Gemm", "onednn.matmul_via_f32", prepare_gemm<Path::kViaF32>},
      {"", "MatMul", "onednn.matmul", prepare_matmul<Path::kNative>},
      {"", "MatMul", "onednn.matmul_via_f32", prepare_matmul<Path::kViaF32>},
      {"ai.halfnote", "Gemm", "onednn.matmul", prepare_gemm<Path::kNative>},
      {"ai.halfnote", "Gemm", "onednn.matmul_via_f32", prepare_gemm<Path::kViaF32>},
      {"ai.halfnote", "MatMul", "onednn.matmul", prepare_matmul<Path::kNative>},
      {"ai.halfnote", "MatMul", "onednn.matmul_via_f32", prepare_matmul<Path::kViaF32>},
  };
}

}  // namespace halfnote::cpu::onednn
