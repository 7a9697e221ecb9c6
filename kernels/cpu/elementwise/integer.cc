// Unary ops on integers and bool, and the tests of floats for NaN and infinity.
#include <cmath>

#include "kernels/cpu/elementwise/parts.h"
#include "kernels/cpu/support.h"
#include "kernels/math/integer.h"

namespace halfnote::cpu {

namespace {

/// y = f(x) over whole arrays, of any two types.
template <class T, class R, class F>
Prepared map_kernel(const KernelCall& call, F f) {
  const auto body = [f, count = call.inputs[0].size(),
                     threads = call.threads](const KernelBuffers& buffers) {
    const T* x = buffers.in<T>(0);
    R* y = buffers.out<R>(0);
    parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = f(x[i]);
    });
  };
  return make_kernel(body, 0, [](size_t, size_t) { return sizeof(T) == sizeof(R); });
}

template <class Formula>
Prepared prepare_integer(const KernelCall& call) {
  return for_integer_type(call.inputs[0].dtype, [&]<class T>() {
    return map_kernel<T, T>(call, [](T x) { return Formula::value(x); });
  });
}

Prepared prepare_not(const KernelCall& call) {
  if (call.inputs[0].dtype != DType::kBool) return Prepared::no("not bool");
  return map_kernel<bool, bool>(call, [](bool x) { return !x; });
}

Prepared prepare_is_nan(const KernelCall& call) {
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return map_kernel<T, bool>(call, [](T x) { return std::isnan(load(x)); });
  });
}

Prepared prepare_is_inf(const KernelCall& call) {
  const bool negative = attributes_of(call).get_int("detect_negative", 1) != 0;
  const bool positive = attributes_of(call).get_int("detect_positive", 1) != 0;
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return map_kernel<T, bool>(call, [negative, positive](T x) {
      const Math<T> value = load(x);
      return std::isinf(value) && (value < 0 ? negative : positive);
    });
  });
}

}  // namespace

std::vector<KernelRow> integer_rows() {
  return {
      {"", "Abs", "reference", prepare_integer<math::IntegerAbs>},
      {"", "BitwiseNot", "reference", prepare_integer<math::Complement>},
      {"", "IsInf", "reference", prepare_is_inf},
      {"", "IsNaN", "reference", prepare_is_nan},
      {"", "Neg", "reference", prepare_integer<math::IntegerNeg>},
      {"", "Not", "reference", prepare_not},
      {"", "Relu", "reference", prepare_integer<math::IntegerRelu>},
      {"", "Sign", "reference", prepare_integer<math::IntegerSign>},
  };
}

}  // namespace halfnote::cpu
