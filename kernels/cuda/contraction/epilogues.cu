// GemmActivation, GemmActivationGrad and GemmSums: by the library, which makes of the sums what is
// wanted before they go to memory, or by plain loops.
#include "kernels/cpu/contraction/epilogue_plan.h"
#include "kernels/cuda/contraction/parts.h"
#include "kernels/cuda/libraries/blas.h"
#include "kernels/cuda/support.h"
#include "kernels/math/elementwise.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::EpiloguePlan;
using libraries::Epilogue;
using libraries::MatmulProblem;

Epilogue epilogue_of(const EpiloguePlan& plan) {
  using Kind = EpiloguePlan::Kind;
  switch (plan.kind) {
    case Kind::kActivation:
      return plan.is_relu() ? Epilogue::kRelu : Epilogue::kGelu;
    case Kind::kGradient:
      return plan.is_relu() ? Epilogue::kReluGrad : Epilogue::kGeluGrad;
    case Kind::kSumsOfA:
      return Epilogue::kSumsOfA;
    default:
      return Epilogue::kSumsOfB;
  }
}

MatmulProblem epilogue_problem(const KernelCall& call, const EpiloguePlan& plan) {
  MatmulProblem p;
  p.ab = call.inputs[0].dtype;
  p.d = call.outputs[0].dtype;
  p.m = plan.m();
  p.n = plan.n();
  p.k = plan.k();
  p.trans_a = plan.product.trans_a;
  p.trans_b = plan.product.trans_b;
  p.stride_d = p.m * p.n;
  p.has_bias = plan.has_bias;
  p.epilogue = epilogue_of(plan);
  p.has_aux = libraries::is_activation(p.epilogue) && plan.has_second;
  p.has_sums = libraries::is_gradient(p.epilogue) && plan.has_second;
  p.tf32 = call.tf32 && p.ab == DType::kF32;
  return p;
}

Prepared prepare_library_epilogue(const KernelCall& call) {
  const EpiloguePlan plan = cpu::plan_epilogue(call);
  if (std::string why = unfit_epilogue_types(call, plan); !why.empty()) return Prepared::no(why);
  const MatmulProblem problem = epilogue_problem(call, plan);
  std::shared_ptr<const libraries::MatmulAlgorithm> algorithm;
  if (!call.algorithm.empty()) algorithm = blas().algorithm(problem, call.algorithm);
  if (std::string why = blas().refusal(problem); !why.empty()) return Prepared::no(why);
  const auto body = [problem, algorithm](const KernelBuffers& buffers) {
    const bool reads_aux = libraries::is_gradient(problem.epilogue);
    libraries::MatmulOperands operands{buffers.inputs[0], buffers.inputs[1], buffers.outputs[0],
                                       buffers.workspace};
    operands.algorithm = algorithm.get();
    if (problem.has_bias) operands.bias = buffers.inputs[2];
    // The library writes aux by the same address as it reads it.
    if (reads_aux) operands.aux = const_cast<std::byte*>(buffers.inputs[2]);
    if (problem.has_aux) operands.aux = buffers.outputs[1];
    if (problem.has_sums || libraries::sums_operand(problem.epilogue))
      operands.sums = buffers.outputs[1];
    blas().matmul(stream_of(buffers), problem, operands);
  };
  return make_kernel(body, blas().workspace_bytes(problem));
}

std::vector<std::string> epilogue_algorithms(const KernelCall& call) {
  return blas().algorithms(epilogue_problem(call, cpu::plan_epilogue(call)));
}

/// What all the plain loops read.
struct PlainEpilogue {
  MatmulProblem p;
  RealPointer a, b, bias, saved;
  const uint8_t* mask = nullptr;
  int64_t mask_row = 0;  // bytes
  double* z = nullptr;  // (m, n): what is rounded to D, or the pre-activation of a Relu

  __device__ double sum_at(int64_t row, int64_t column) const {
    const int64_t at_a = row * (p.trans_a ? 1 : p.k), at_b = column * (p.trans_b ? p.k : 1);
    const int64_t step_a = p.trans_a ? p.m : 1, step_b = p.trans_b ? 1 : p.n;
    double sum = bias.data == nullptr ? 0 : bias[column];
    for (int64_t k = 0; k < p.k; ++k) sum += a[at_a + k * step_a] * b[at_b + k * step_b];
    return sum;
  }
};

/// An element of D a thread.
struct EpilogueElement {
  PlainEpilogue e;
  RealOutput d, pre;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / e.p.n, column = i % e.p.n;
    const double z = e.sum_at(row, column);
    e.z[i] = z;
    double y = z;
    if (e.p.epilogue == Epilogue::kRelu) y = math::Relu::value(z, {});
    if (e.p.epilogue == Epilogue::kGelu) {
      if (pre.data != nullptr) pre.write(i, z);
      y = math::GeluTanh::value(z, {});
    }
    if (e.p.epilogue == Epilogue::kReluGrad) {
      const uint8_t bits = e.mask[row * e.mask_row + column / 8];
      y = (bits >> (column % 8) & 1) != 0 ? z : 0;
    }
    if (e.p.epilogue == Epilogue::kGeluGrad) y = math::GeluTanh::gradient(z, e.saved[i], {});
    if (libraries::is_gradient(e.p.epilogue)) e.z[i] = y;
    d.write(i, y);
  }
};

/// A byte of the mask a thread.
struct MaskByte {
  PlainEpilogue e;
  uint8_t* to;
  int64_t bytes;  // of a row
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / bytes, first = i % bytes * 8;
    unsigned bits = 0;
    for (int64_t j = first; j < first + 8 && j < e.p.n; ++j) {
      if (e.z[row * e.p.n + j] > 0) bits |= 1u << (j - first);
    }
    to[i] = static_cast<uint8_t>(bits);
  }
};

/// A sum a thread.
struct SumElement {
  PlainEpilogue e;
  RealOutput to;
  __device__ void operator()(int64_t j) const {
    double sum = 0;
    if (e.p.epilogue == Epilogue::kSumsOfA) {
      const int64_t first = j * (e.p.trans_a ? 1 : e.p.k), step = e.p.trans_a ? e.p.m : 1;
      for (int64_t k = 0; k < e.p.k; ++k) sum += e.a[first + k * step];
    } else if (e.p.epilogue == Epilogue::kSumsOfB) {
      const int64_t first = j * (e.p.trans_b ? e.p.k : 1), step = e.p.trans_b ? 1 : e.p.n;
      for (int64_t k = 0; k < e.p.k; ++k) sum += e.b[first + k * step];
    } else {
      for (int64_t i = 0; i < e.p.m; ++i) sum += e.z[i * e.p.n + j];
    }
    to.write(j, sum);
  }
};

void run_epilogue_plainly(const MatmulProblem& p, const KernelBuffers& buffers) {
  Stream& stream = stream_of(buffers);
  PlainEpilogue e{p, {buffers.inputs[0], p.ab}, {buffers.inputs[1], p.ab}, {}, {}};
  e.z = reinterpret_cast<double*>(buffers.workspace);
  if (p.has_bias) e.bias = {buffers.inputs[2], p.ab};
  if (libraries::is_gradient(p.epilogue)) {
    e.saved = {buffers.inputs[2], p.d};
    e.mask = buffers.in<uint8_t>(2);
    e.mask_row = mask_row_bytes(p.n);
  }
  RealOutput pre;
  if (p.has_aux && p.epilogue == Epilogue::kGelu) pre = {buffers.outputs[1], p.d};
  for_each(stream, p.m * p.n, EpilogueElement{e, {buffers.outputs[0], p.d}, pre});
  if (p.has_aux && p.epilogue == Epilogue::kRelu) {
    const int64_t bytes = mask_row_bytes(p.n);
    for_each(stream, p.m * bytes, MaskByte{e, buffers.out<uint8_t>(1), bytes});
  }
  if (p.has_sums || libraries::sums_operand(p.epilogue)) {
    const int64_t count = p.epilogue == Epilogue::kSumsOfA ? p.m : p.n;
    for_each(stream, count, SumElement{e, {buffers.outputs[1], p.d}});
  }
}

Prepared prepare_own_epilogue(const KernelCall& call) {
  const EpiloguePlan plan = cpu::plan_epilogue(call);
  if (std::string why = unfit_epilogue_types(call, plan); !why.empty()) return Prepared::no(why);
  const MatmulProblem problem = epilogue_problem(call, plan);
  // The one who writes a mask must be the one who reads it: the library alone knows where its bits
  // lie.
  const bool mask = problem.epilogue == Epilogue::kReluGrad ||
                    (problem.epilogue == Epilogue::kRelu && problem.has_aux);
  if (mask && problem.d != DType::kF64)
    return Prepared::no("the library lays out masks its own way");
  const int64_t room = checked_mul(checked_mul(problem.m, problem.n), sizeof(double));
  return make_kernel(
      [problem](const KernelBuffers& buffers) { run_epilogue_plainly(problem, buffers); },
      static_cast<size_t>(room));
}

}  // namespace

std::vector<KernelRow> epilogue_rows() {
  std::vector<KernelRow> rows;
  for (const std::string_view op : {"GemmActivation", "GemmActivationGrad", "GemmSums"}) {
    rows.push_back({"ai.halfnote",
                    op,
                    "blas.epilogue",
                    prepare_library_epilogue,
                    {},
                    RowUse::kFast,
                    epilogue_algorithms});
    rows.push_back(
        {"ai.halfnote", op, "own.epilogue", prepare_own_epilogue, {}, RowUse::kFallback});
  }
  return rows;
}

}  // namespace halfnote::HN_CUDA
