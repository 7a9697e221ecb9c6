// MatMul and Gemm as tiled products, where that was measured to be faster than oneDNN.
#include "kernels/cpu/contraction/matmul_plan.h"
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/support.h"
#include "kernels/cpu/tiled/product.h"
#include "kernels/cpu/tiled/rows.h"

namespace halfnote::cpu::tiled {

namespace {

/// Small and thin products have no tiles to fill; they are for other rows.
std::string shape_refusal(const MatmulPlan& plan) {
  constexpr int64_t kFewRows = 8, kFewColumns = 24, kShallow = 16, kLittleWork = int64_t{1} << 19;
  if (plan.batches() != 1) return "a stack of products";
  if (plan.m < kFewRows || plan.n < kFewColumns || plan.k < kShallow) return "a thin product";
  if (plan.m * plan.n * plan.k < kLittleWork) return "a small product";
  return {};
}

/// The cost table: where this was measured to be faster than oneDNN (bench/products.cc; one core of
/// an AMD Zen 5 with an FMA peak of 116 multiply-adds/ns in f32; ours / oneDNN).
///
///   f32    1024 × 768 × 768    109 / 99     B as it is; 107 / 101 transposed
///          1024 × 3072 × 768   106 / 95     106 / 102
///          1024 × 768 × 3072   108 / 89     107 / 101
///          768 × 3072 × 1024    99 / 90     A transposed
///          512 × 768 × 50257   105 / 83
///   bf16   512 × 3072 × 768    205 / 194    212 / 204
///          512 × 768 × 3072    197 / 190    206 / 209
///          768 × 3072 × 1024   195 / 169    A transposed, f32 result
///          50257 × 768 × 512   208 / 153    the same
///
/// oneDNN is ahead in small products (256 × 256 × 256: 109 / 115), and in tall ones of f32 with A
/// transposed, where lines of A are far apart (3072 × 768 × 512 on an Intel Xeon with an FMA peak
/// of 88: 75 / 82), but not in the tallest, of a vocabulary (50257 × 768 × 512 there: 73 / 66;
/// 30522 × 768 × 1024: 74 / 74, on the Zen 5 95 / 94).
///
/// Where bf16 is multiplied in f32 (that Xeon), gradients of weights (A transposed) of any size are
/// faster here, whose operands are not written in f32 first:
///          192 × 48 × 2048      51 / 45
///          48 × 192 × 2048      68 / 53
///          384 × 96 × 512       74 / 65
///          128 × 64 × 768       66 / 62
bool pays(const KernelCall& call, const MatmulPlan& plan) {
  constexpr int64_t kLeastRows = 64, kLeastColumns = 64, kLeastDepth = 64;
  constexpr int64_t kMuchWork = int64_t{1} << 26, kTall = 2, kTallest = 32;
  const bool via_f32 = call.inputs[0].dtype == DType::kBF16 && bf16_dots() == Bf16Dots::kSlow;
  if (via_f32 && plan.trans_a) return true;
  if (plan.m < kLeastRows || plan.n < kLeastColumns || plan.k < kLeastDepth) return false;
  if (plan.m * plan.n * plan.k < kMuchWork) return false;
  if (call.inputs[0].dtype == DType::kBF16 && bf16_dots() == Bf16Dots::kTiles) return false;
  if (call.inputs[0].dtype != DType::kF32 || !plan.trans_a) return true;
  return plan.m <= kTall * plan.n || plan.m >= kTallest * plan.n;
}

std::string refusal(const KernelCall& call, const MatmulPlan& plan) {
  const DType type = call.inputs[0].dtype, result = call.outputs[0].dtype;
  if (!is_small_float(type)) return "operands of type " + std::string(short_name(type));
  if (call.inputs[1].dtype != type) return "operands of different types";
  if (!is_small_float(result)) return "Y is " + std::string(short_name(result));
  if (plan.has_c && !is_small_float(call.inputs[2].dtype))
    return "C of type " + std::string(short_name(call.inputs[2].dtype));
  if (plan.has_c && plan.beta != 1) return "beta is neither 0 nor 1";
  if (find_loops(type) == nullptr) return "the CPU has no AVX-512";
  return shape_refusal(plan);
}

enum class Wanted { kWhereItPays, kAnywhere };

Prepared build(const KernelCall& call, const MatmulPlan& whole, Wanted wanted) {
  const MatmulPlan plan = as_one_product(whole);
  if (std::string why = refusal(call, plan); !why.empty()) return Prepared::no(why);
  if (wanted == Wanted::kWhereItPays && !pays(call, plan))
    return Prepared::no("oneDNN is as fast or faster in this form");
  ProductShape shape{plan.m, plan.n, plan.k};
  shape.a_row_step = plan.trans_a ? 1 : plan.k;
  shape.a_k_step = plan.trans_a ? plan.m : 1;
  shape.b_column_step = plan.trans_b ? plan.k : 1;
  shape.b_k_step = plan.trans_b ? 1 : plan.n;
  ProductResult result;
  result.alpha = plan.alpha;
  result.y_type = call.outputs[0].dtype;
  result.y_step = plan.n;
  if (plan.has_c) {
    result.c_type = call.inputs[2].dtype;
    result.c_row = plan.c_row;
    result.c_column = plan.c_column;
  }
  const DType type = call.inputs[0].dtype;
  const Product product(shape, type, result.y_type, *find_loops(type), call.threads);
  const bool in_place = plan.has_c && result.c_type == result.y_type &&
                        plan.c_row == result.y_step && plan.c_column == 1 &&
                        product.reads_c_first();
  return make_kernel(
      [product, result, has_c = plan.has_c](const KernelBuffers& buffers) {
        ProductResult to = result;
        to.c = has_c ? buffers.inputs[2] : nullptr;
        to.y = buffers.outputs[0];
        product.run(buffers.inputs[0], buffers.inputs[1], to, buffers.workspace);
      },
      product.workspace_bytes(),
      [in_place](size_t input, size_t output) { return in_place && input == 2 && output == 0; });
}

template <Wanted wanted>
Prepared prepare_matmul(const KernelCall& call) {
  return build(call, plan_matmul(call), wanted);
}

template <Wanted wanted>
Prepared prepare_gemm(const KernelCall& call) {
  return build(call, plan_gemm(call), wanted);
}

template <Wanted wanted>
std::vector<KernelRow> rows_named(std::string_view name) {
  return {
      {"", "Gemm", name, prepare_gemm<wanted>},
      {"", "MatMul", name, prepare_matmul<wanted>},
      {"ai.halfnote", "Gemm", name, prepare_gemm<wanted>},
      {"ai.halfnote", "MatMul", name, prepare_matmul<wanted>},
  };
}

}  // namespace

std::vector<KernelRow> rows() { return rows_named<Wanted::kWhereItPays>("tiled.matmul"); }

std::vector<KernelRow> other_rows() {
  return rows_named<Wanted::kAnywhere>("tiled.matmul_of_any_form");
}

}  // namespace halfnote::cpu::tiled
