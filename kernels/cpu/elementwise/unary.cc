// Unary float ops and their gradients. A new op is a formula in kernels/math/elementwise.h and a
// line in kOps.
#include "kernels/cpu/elementwise/unary.h"

#include <array>

#include "kernels/cpu/elementwise/parts.h"
#include "kernels/cpu/support.h"
#include "kernels/math/elementwise.h"

namespace halfnote::cpu {

namespace {

using math::Parameters;

template <class M>
using ValueLoop = void (*)(const M* x, M* y, int64_t count, const Parameters& parameters);
template <class M>
using GradientLoop = void (*)(const M* dy, const M* s, M* dx, int64_t count,
                              const Parameters& parameters);

template <class Formula, class M>
void value_loop(const M* x, M* y, int64_t count, const Parameters& parameters) {
  const Parameters p = parameters;  // a local copy cannot alias y
  for (int64_t i = 0; i < count; ++i) y[i] = Formula::value(x[i], p);
}

template <class Formula, class M>
void gradient_loop(const M* dy, const M* s, M* dx, int64_t count, const Parameters& parameters) {
  const Parameters p = parameters;
  for (int64_t i = 0; i < count; ++i) dx[i] = Formula::gradient(dy[i], s[i], p);
}

/// An attribute that is a number. Of a word, 1 stands for `word_for_one` and 0 for `none`.
struct ParameterRow {
  std::string_view name;
  double fallback = 0;
  std::string_view word_for_one;
};

struct OpRow {
  std::string_view op;
  std::string_view gradient_op;  // empty: no gradient
  ValueLoop<float> value_f32 = nullptr;
  ValueLoop<double> value_f64 = nullptr;
  GradientLoop<float> gradient_f32 = nullptr;
  GradientLoop<double> gradient_f64 = nullptr;
  std::array<ParameterRow, 2> parameters = {};

  template <class M>
  ValueLoop<M> value() const {
    if constexpr (std::is_same_v<M, float>) {
      return value_f32;
    } else {
      return value_f64;
    }
  }
  template <class M>
  GradientLoop<M> gradient() const {
    if constexpr (std::is_same_v<M, float>) {
      return gradient_f32;
    } else {
      return gradient_f64;
    }
  }
};

template <class F>
constexpr OpRow op(std::string_view name, std::array<ParameterRow, 2> parameters = {}) {
  return {name, {}, value_loop<F, float>, value_loop<F, double>, nullptr, nullptr, parameters};
}

template <class F>
constexpr OpRow op_with_gradient(std::string_view name, std::string_view gradient_name,
                                 std::array<ParameterRow, 2> parameters = {}) {
  return {name,
          gradient_name,
          value_loop<F, float>,
          value_loop<F, double>,
          gradient_loop<F, float>,
          gradient_loop<F, double>,
          parameters};
}

const OpRow kOps[] = {
    op_with_gradient<math::Abs>("Abs", "AbsGrad"),
    op_with_gradient<math::Acos>("Acos", "AcosGrad"),
    op_with_gradient<math::Acosh>("Acosh", "AcoshGrad"),
    op_with_gradient<math::Asin>("Asin", "AsinGrad"),
    op_with_gradient<math::Asinh>("Asinh", "AsinhGrad"),
    op_with_gradient<math::Atan>("Atan", "AtanGrad"),
    op_with_gradient<math::Atanh>("Atanh", "AtanhGrad"),
    op<math::Ceil>("Ceil"),
    op_with_gradient<math::Celu>("Celu", "CeluGrad", {{{"alpha", 1.0}}}),
    op_with_gradient<math::Cos>("Cos", "CosGrad"),
    op_with_gradient<math::Cosh>("Cosh", "CoshGrad"),
    op_with_gradient<math::Elu>("Elu", "EluGrad", {{{"alpha", 1.0}, {"from_input", 0}}}),
    op_with_gradient<math::Erf>("Erf", "ErfGrad"),
    op_with_gradient<math::Exp>("Exp", "ExpGrad"),
    op<math::Floor>("Floor"),
    op_with_gradient<math::Gelu>("Gelu", "GeluGrad", {{{"approximate", 0, "tanh"}}}),
    op_with_gradient<math::HardSigmoid>("HardSigmoid", "HardSigmoidGrad",
                                        {{{"alpha", 0.2f}, {"beta", 0.5}}}),
    op_with_gradient<math::HardSwish>("HardSwish", "HardSwishGrad"),
    op_with_gradient<math::LeakyRelu>("LeakyRelu", "LeakyReluGrad", {{{"alpha", 0.01f}}}),
    op_with_gradient<math::Log>("Log", "LogGrad"),
    op_with_gradient<math::Mish>("Mish", "MishGrad"),
    op<math::Neg>("Neg"),
    op_with_gradient<math::Reciprocal>("Reciprocal", "ReciprocalGrad"),
    op_with_gradient<math::Relu>("Relu", "ReluGrad"),
    op<math::Round>("Round"),
    op_with_gradient<math::Selu>(
        "Selu", "SeluGrad",
        {{{"alpha", 1.67326319217681884765625}, {"gamma", 1.05070102214813232421875}}}),
    op_with_gradient<math::Shrink>("Shrink", "ShrinkGrad", {{{"lambd", 0.5}, {"bias", 0.0}}}),
    op_with_gradient<math::Sigmoid>("Sigmoid", "SigmoidGrad"),
    op<math::Sign>("Sign"),
    op_with_gradient<math::Sin>("Sin", "SinGrad"),
    op_with_gradient<math::Sinh>("Sinh", "SinhGrad"),
    op_with_gradient<math::Softplus>("Softplus", "SoftplusGrad"),
    op_with_gradient<math::Softsign>("Softsign", "SoftsignGrad"),
    op_with_gradient<math::Sqrt>("Sqrt", "SqrtGrad"),
    op_with_gradient<math::Swish>("Swish", "SwishGrad", {{{"alpha", 1.0}}}),
    op_with_gradient<math::Tan>("Tan", "TanGrad"),
    op_with_gradient<math::Tanh>("Tanh", "TanhGrad"),
    op_with_gradient<math::ThresholdedRelu>("ThresholdedRelu", "ThresholdedReluGrad",
                                            {{{"alpha", 1.0}}}),
};

double read_parameter(const Attributes& attributes, const ParameterRow& row) {
  const Attribute* found = row.name.empty() ? nullptr : attributes.find(row.name);
  if (!found) return row.fallback;
  if (const auto* integer = std::get_if<int64_t>(found)) return static_cast<double>(*integer);
  if (!row.word_for_one.empty()) {
    return attributes.get_string(row.name, "none") == row.word_for_one ? 1 : 0;
  }
  return attributes.get_float(row.name, 0);
}

Parameters read_parameters(const KernelCall& call, const OpRow& row) {
  const Attributes& attributes = attributes_of(call);
  return {read_parameter(attributes, row.parameters[0]),
          read_parameter(attributes, row.parameters[1])};
}

template <class T>
Prepared value_kernel(const KernelCall& call, const OpRow& row) {
  const ValueLoop<Math<T>> loop = row.value<Math<T>>();
  const auto body = [loop, parameters = read_parameters(call, row), count = call.inputs[0].size(),
                     threads = call.threads](const KernelBuffers& buffers) {
    const T* x = buffers.in<T>(0);
    T* y = buffers.out<T>(0);
    parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      Math<T> chunk[kChunk];
      for (int64_t i = begin; i < end; i += kChunk) {
        const int64_t n = std::min(kChunk, end - i);
        Math<T>* to = result_block(y + i, chunk);
        loop(load_block(x + i, n, chunk), to, n, parameters);
        store_block(to, n, y + i);
      }
    });
  };
  return make_kernel(body, 0, [](size_t, size_t) { return true; });
}

template <class T>
Prepared gradient_kernel(const KernelCall& call, const OpRow& row) {
  const GradientLoop<Math<T>> loop = row.gradient<Math<T>>();
  const auto body = [loop, parameters = read_parameters(call, row), count = call.inputs[0].size(),
                     threads = call.threads](const KernelBuffers& buffers) {
    const T *dy = buffers.in<T>(0), *s = buffers.in<T>(1);
    T* dx = buffers.out<T>(0);
    parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      Math<T> chunk_dy[kChunk], chunk_s[kChunk];
      for (int64_t i = begin; i < end; i += kChunk) {
        const int64_t n = std::min(kChunk, end - i);
        Math<T>* to = result_block(dx + i, chunk_dy);
        loop(load_block(dy + i, n, chunk_dy), load_block(s + i, n, chunk_s), to, n, parameters);
        store_block(to, n, dx + i);
      }
    });
  };
  return make_kernel(body, 0, [](size_t, size_t) { return true; });
}

Prepared prepare_value(const KernelCall& call) {
  if (std::string reason = uneven_unary(call, 1); !reason.empty()) return Prepared::no(reason);
  for (const OpRow& row : kOps) {
    if (row.op != call.op) continue;
    return for_float_type(call.inputs[0].dtype,
                          [&]<class T>() { return value_kernel<T>(call, row); });
  }
  return Prepared::no("no formula");
}

Prepared prepare_gradient(const KernelCall& call) {
  if (std::string reason = uneven_unary(call, 2); !reason.empty()) return Prepared::no(reason);
  for (const OpRow& row : kOps) {
    if (row.gradient_op != call.op) continue;
    return for_float_type(call.inputs[0].dtype,
                          [&]<class T>() { return gradient_kernel<T>(call, row); });
  }
  return Prepared::no("no formula");
}

}  // namespace

math::Parameters unary_parameters(const KernelCall& call) {
  for (const OpRow& row : kOps) {
    if (row.op == call.op || row.gradient_op == call.op) return read_parameters(call, row);
  }
  return {};
}

std::string uneven_unary(const KernelCall& call, size_t inputs) {
  if (call.inputs.size() < inputs || call.outputs.empty()) return "an operand is missing";
  const Operand& first = call.inputs[0];
  for (size_t i = 0; i <= inputs; ++i) {
    const Operand& other = i < inputs ? call.inputs[i] : call.outputs[0];
    if (other.dtype != first.dtype) return "operands of different types";
    if (other.size() != first.size()) return "operands of different sizes";
  }
  return {};
}

std::vector<KernelRow> unary_rows() {
  std::vector<KernelRow> rows;
  for (const OpRow& row : kOps) {
    rows.push_back({"", row.op, "reference", prepare_value});
    if (!row.gradient_op.empty()) {
      rows.push_back({"ai.halfnote", row.gradient_op, "reference", prepare_gradient});
    }
  }
  return rows;
}

}  // namespace halfnote::cpu
