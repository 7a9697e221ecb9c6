// The loops of the reference of programs: arithmetic as the baseline, functions by the formulas of
// the single ops' references, so that a program has the bits of its steps on their references.
#include <array>

#include "kernels/cpu/pointwise/loops.h"
#include "kernels/math/binary.h"
#include "kernels/math/elementwise.h"

namespace halfnote::cpu::pointwise {

namespace {

math::Parameters formula_parameters(const float* numbers) { return {numbers[0], numbers[1]}; }

template <class Formula>
void value_loop(const float* const* in, float* y, int64_t count, const float* numbers) {
  const math::Parameters p = formula_parameters(numbers);
  for (int64_t i = 0; i < count; ++i) y[i] = Formula::value(in[0][i], p);
}

template <class Formula>
void gradient_loop(const float* const* in, float* y, int64_t count, const float* numbers) {
  const math::Parameters p = formula_parameters(numbers);
  for (int64_t i = 0; i < count; ++i) y[i] = Formula::gradient(in[0][i], in[1][i], p);
}

void power_loop(const float* const* in, float* y, int64_t count, const float*) {
  for (int64_t i = 0; i < count; ++i) y[i] = math::Pow::value(in[0][i], in[1][i]);
}

using Table = std::array<Loop, kPointwiseOps>;

Table reference_table() {
  Table table;
  std::copy_n(kBaselineLoops.of, table.size(), table.begin());
  const std::pair<PointwiseOp, Loop> functions[] = {
      {PointwiseOp::kCelu, value_loop<math::Celu>},
      {PointwiseOp::kCos, value_loop<math::Cos>},
      {PointwiseOp::kElu, value_loop<math::Elu>},
      {PointwiseOp::kErf, value_loop<math::Erf>},
      {PointwiseOp::kExp, value_loop<math::Exp>},
      {PointwiseOp::kGelu, value_loop<math::Gelu>},
      {PointwiseOp::kLog, value_loop<math::Log>},
      {PointwiseOp::kMish, value_loop<math::Mish>},
      {PointwiseOp::kPow, power_loop},
      {PointwiseOp::kSelu, value_loop<math::Selu>},
      {PointwiseOp::kSigmoid, value_loop<math::Sigmoid>},
      {PointwiseOp::kSin, value_loop<math::Sin>},
      {PointwiseOp::kSoftplus, value_loop<math::Softplus>},
      {PointwiseOp::kSwish, value_loop<math::Swish>},
      {PointwiseOp::kTanh, value_loop<math::Tanh>},
      {PointwiseOp::kCeluGrad, gradient_loop<math::Celu>},
      {PointwiseOp::kCosGrad, gradient_loop<math::Cos>},
      {PointwiseOp::kEluGrad, gradient_loop<math::Elu>},
      {PointwiseOp::kErfGrad, gradient_loop<math::Erf>},
      {PointwiseOp::kGeluGrad, gradient_loop<math::Gelu>},
      {PointwiseOp::kMishGrad, gradient_loop<math::Mish>},
      {PointwiseOp::kSinGrad, gradient_loop<math::Sin>},
      {PointwiseOp::kSoftplusGrad, gradient_loop<math::Softplus>},
      {PointwiseOp::kSwishGrad, gradient_loop<math::Swish>},
  };
  for (const auto& [op, loop] : functions) table[index_of(op)] = loop;
  return table;
}

}  // namespace

const Loops& reference_loops() {
  static const Table kTable = reference_table();
  static const Loops kLoops = [] {
    Loops loops = kBaselineLoops;
    loops.name = "reference";
    loops.of = kTable.data();
    loops.fused = nullptr;  // their functions are others
    return loops;
  }();
  return kLoops;
}

}  // namespace halfnote::cpu::pointwise
