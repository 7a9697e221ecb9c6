// GemmActivation, GemmActivationGrad and GemmSums: sums in f64, each result rounded once. No plan
// for a CPU has them; they are what the kernels of GPUs are held against.
#include <numeric>

#include "kernels/cpu/contraction/epilogue_plan.h"
#include "kernels/cpu/contraction/parts.h"
#include "kernels/cpu/reals.h"
#include "kernels/math/elementwise.h"

namespace halfnote::cpu {

namespace {

using Kind = EpiloguePlan::Kind;

struct EpilogueKernel {
  EpiloguePlan plan;
  DType type, result;
  bool at_once;  // are there no rows to be added up?

  double element_of_a(const std::byte* a, int64_t i, int64_t k) const {
    const MatmulPlan& p = plan.product;
    return read_real(a, type, p.trans_a ? k * p.m + i : i * p.k + k);
  }
  double element_of_b(const std::byte* b, int64_t k, int64_t j) const {
    const MatmulPlan& p = plan.product;
    return read_real(b, type, p.trans_b ? j * p.k + k : k * p.n + j);
  }

  void sums_of_row(const KernelBuffers& buffers, int64_t i, double* z) const {
    const MatmulPlan& p = plan.product;
    std::fill_n(z, p.n, 0.0);
    for (int64_t k = 0; k < p.k; ++k) {
      const double factor = element_of_a(buffers.inputs[0], i, k);
      for (int64_t j = 0; j < p.n; ++j) z[j] += factor * element_of_b(buffers.inputs[1], k, j);
    }
    for (int64_t j = 0; plan.has_bias && j < p.n; ++j)
      z[j] += read_real(buffers.inputs[2], type, j);
  }

  void activate(const KernelBuffers& buffers, int64_t i, double* z) const {
    const int64_t n = plan.n();
    if (plan.is_relu() && plan.has_second) {
      auto* mask = buffers.out<uint8_t>(1) + i * mask_row_bytes(n);
      std::fill_n(mask, mask_row_bytes(n), uint8_t{0});
      for (int64_t j = 0; j < n; ++j) {
        if (z[j] > 0) mask[j / 8] = static_cast<uint8_t>(mask[j / 8] | 1u << j % 8);
      }
    } else if (plan.has_second) {
      store_reals(z, n, type, buffers.out<std::byte>(1), i * n);
    }
    for (int64_t j = 0; j < n; ++j) {
      z[j] = plan.is_relu() ? math::Relu::value(z[j], {}) : math::GeluTanh::value(z[j], {});
    }
  }

  void go_back(const KernelBuffers& buffers, int64_t i, double* z) const {
    const int64_t n = plan.n();
    const std::byte* saved = buffers.inputs[2];
    const auto* mask = reinterpret_cast<const uint8_t*>(saved) + i * mask_row_bytes(n);
    for (int64_t j = 0; j < n; ++j) {
      if (plan.is_relu()) {
        z[j] = (mask[j / 8] >> j % 8 & 1) != 0 ? z[j] : 0;
      } else {
        z[j] = math::GeluTanh::gradient(z[j], read_real(saved, type, i * n + j), {});
      }
    }
  }

  void run_rows(const KernelBuffers& buffers, int64_t first, int64_t last) const {
    const int64_t n = plan.n();
    for (int64_t i = first; i < last; ++i) {
      double* z = reinterpret_cast<double*>(buffers.workspace) + i * n;
      sums_of_row(buffers, i, z);
      if (plan.kind == Kind::kActivation) activate(buffers, i, z);
      if (plan.kind == Kind::kGradient) go_back(buffers, i, z);
      store_reals(z, n, result, buffers.out<std::byte>(0), i * n);
    }
  }

  void add_up(const KernelBuffers& buffers) const {
    const MatmulPlan& p = plan.product;
    const auto* z = reinterpret_cast<const double*>(buffers.workspace);
    std::byte* to = buffers.out<std::byte>(1);
    const bool of_a = plan.kind == Kind::kSumsOfA;
    for (int64_t j = 0; j < (of_a ? p.m : p.n); ++j) {
      double sum = 0;
      if (plan.kind == Kind::kGradient) {
        for (int64_t i = 0; i < p.m; ++i) sum += z[i * p.n + j];
      } else {
        for (int64_t k = 0; k < p.k; ++k) {
          sum +=
              of_a ? element_of_a(buffers.inputs[0], j, k) : element_of_b(buffers.inputs[1], k, j);
        }
      }
      write_real(sum, to, result, j);
    }
  }
};

Prepared prepare_epilogue(const KernelCall& call) {
  const EpiloguePlan plan = plan_epilogue(call);
  if (std::string why = unfit_epilogue_types(call, plan); !why.empty()) return Prepared::no(why);
  const EpilogueKernel kernel{plan, call.inputs[0].dtype, call.outputs[0].dtype,
                              !plan.has_second || plan.kind == Kind::kActivation};
  const int threads = call.threads;
  const auto body = [kernel, threads](const KernelBuffers& buffers) {
    parallel_blocks(kernel.plan.m(), 4, threads,
                    [&](int64_t first, int64_t last) { kernel.run_rows(buffers, first, last); });
    if (!kernel.at_once) kernel.add_up(buffers);
  };
  const int64_t room = checked_mul(checked_mul(plan.m(), plan.n()), sizeof(double));
  return make_kernel(body, static_cast<size_t>(room));
}

}  // namespace

std::vector<KernelRow> epilogue_rows() {
  return {
      {"ai.halfnote", "GemmActivation", "reference", prepare_epilogue},
      {"ai.halfnote", "GemmActivationGrad", "reference", prepare_epilogue},
      {"ai.halfnote", "GemmSums", "reference", prepare_epilogue},
  };
}

}  // namespace halfnote::cpu
