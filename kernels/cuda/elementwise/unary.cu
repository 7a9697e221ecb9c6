// Unary float ops and their gradients: the formulas of kernels/math/elementwise.h, an element a
// thread. The parameters are read as on the CPU (kernels/cpu/elementwise/unary.h). A kernel is
// compiled for each type of the arithmetic; which float type is in memory, it is told when it runs.
#include "kernels/cpu/elementwise/unary.h"
#include "kernels/cpu/reals.h"
#include "kernels/cuda/elementwise/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/math/elementwise.h"

namespace halfnote::HN_CUDA {

namespace {

using math::Parameters;

template <class Formula, class M>
struct Value {
  RealPointer x;
  RealOutput y;
  Parameters parameters;
  __device__ void operator()(int64_t i) const {
    y.write(i, Formula::value(x.load<M>(i), parameters));
  }
};

template <class Formula, class M>
struct Gradient {
  RealPointer dy, s;
  RealOutput dx;
  Parameters parameters;
  __device__ void operator()(int64_t i) const {
    dx.write(i, Formula::gradient(dy.load<M>(i), s.load<M>(i), parameters));
  }
};

/// Launches over `count` elements; of buffers of the call's type.
using Launch = void (*)(const KernelBuffers& buffers, DType dtype, int64_t count,
                        const Parameters& parameters);

template <class Formula, class M>
void launch_value(const KernelBuffers& buffers, DType dtype, int64_t count,
                  const Parameters& parameters) {
  for_each(stream_of(buffers), count,
           Value<Formula, M>{{buffers.inputs[0], dtype}, {buffers.outputs[0], dtype}, parameters});
}

template <class Formula, class M>
void launch_gradient(const KernelBuffers& buffers, DType dtype, int64_t count,
                     const Parameters& parameters) {
  for_each(stream_of(buffers), count,
           Gradient<Formula, M>{{buffers.inputs[0], dtype},
                                {buffers.inputs[1], dtype},
                                {buffers.outputs[0], dtype},
                                parameters});
}

bool shares(size_t, size_t) { return true; }

/// One for all formulas: a class of kernels for each takes longer to compile than their code.
Prepared prepare_unary(const KernelCall& call, size_t inputs, Launch in_f32, Launch in_f64) {
  if (std::string why = cpu::uneven_unary(call, inputs); !why.empty()) return Prepared::no(why);
  const DType dtype = call.inputs[0].dtype;
  if (!cpu::is_real(dtype)) return Prepared::no("no float type: " + std::string(short_name(dtype)));
  const auto body = [launch = dtype == DType::kF64 ? in_f64 : in_f32, dtype,
                     count = call.inputs[0].size(),
                     parameters = cpu::unary_parameters(call)](const KernelBuffers& buffers) {
    launch(buffers, dtype, count, parameters);
  };
  return make_kernel(body, 0, shares);
}

template <class Formula>
Prepared prepare_value(const KernelCall& call) {
  return prepare_unary(call, 1, launch_value<Formula, float>, launch_value<Formula, double>);
}

template <class Formula>
Prepared prepare_gradient(const KernelCall& call) {
  return prepare_unary(call, 2, launch_gradient<Formula, float>, launch_gradient<Formula, double>);
}

template <class Formula>
void add(std::vector<KernelRow>& rows, std::string_view op) {
  rows.push_back({"", op, "own.unary", prepare_value<Formula>});
}

template <class Formula>
void add(std::vector<KernelRow>& rows, std::string_view op, std::string_view gradient) {
  add<Formula>(rows, op);
  rows.push_back({"ai.halfnote", gradient, "own.unary", prepare_gradient<Formula>});
}

}  // namespace

std::vector<KernelRow> unary_rows() {
  std::vector<KernelRow> rows;
  add<math::Abs>(rows, "Abs", "AbsGrad");
  add<math::Acos>(rows, "Acos", "AcosGrad");
  add<math::Acosh>(rows, "Acosh", "AcoshGrad");
  add<math::Asin>(rows, "Asin", "AsinGrad");
  add<math::Asinh>(rows, "Asinh", "AsinhGrad");
  add<math::Atan>(rows, "Atan", "AtanGrad");
  add<math::Atanh>(rows, "Atanh", "AtanhGrad");
  add<math::Ceil>(rows, "Ceil");
  add<math::Celu>(rows, "Celu", "CeluGrad");
  add<math::Cos>(rows, "Cos", "CosGrad");
  add<math::Cosh>(rows, "Cosh", "CoshGrad");
  add<math::Elu>(rows, "Elu", "EluGrad");
  add<math::Erf>(rows, "Erf", "ErfGrad");
  add<math::Exp>(rows, "Exp", "ExpGrad");
  add<math::Floor>(rows, "Floor");
  add<math::Gelu>(rows, "Gelu", "GeluGrad");
  add<math::HardSigmoid>(rows, "HardSigmoid", "HardSigmoidGrad");
  add<math::HardSwish>(rows, "HardSwish", "HardSwishGrad");
  add<math::LeakyRelu>(rows, "LeakyRelu", "LeakyReluGrad");
  add<math::Log>(rows, "Log", "LogGrad");
  add<math::Mish>(rows, "Mish", "MishGrad");
  add<math::Neg>(rows, "Neg");
  add<math::Reciprocal>(rows, "Reciprocal", "ReciprocalGrad");
  add<math::Relu>(rows, "Relu", "ReluGrad");
  add<math::Round>(rows, "Round");
  add<math::Selu>(rows, "Selu", "SeluGrad");
  add<math::Shrink>(rows, "Shrink", "ShrinkGrad");
  add<math::Sigmoid>(rows, "Sigmoid", "SigmoidGrad");
  add<math::Sign>(rows, "Sign");
  add<math::Sin>(rows, "Sin", "SinGrad");
  add<math::Sinh>(rows, "Sinh", "SinhGrad");
  add<math::Softplus>(rows, "Softplus", "SoftplusGrad");
  add<math::Softsign>(rows, "Softsign", "SoftsignGrad");
  add<math::Sqrt>(rows, "Sqrt", "SqrtGrad");
  add<math::Swish>(rows, "Swish", "SwishGrad");
  add<math::Tan>(rows, "Tan", "TanGrad");
  add<math::Tanh>(rows, "Tanh", "TanhGrad");
  add<math::ThresholdedRelu>(rows, "ThresholdedRelu", "ThresholdedReluGrad");
  return rows;
}

}  // namespace halfnote::HN_CUDA
