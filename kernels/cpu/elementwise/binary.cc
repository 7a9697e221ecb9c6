// Ops of two broadcast operands: arithmetic, comparison, logic, bits. A new op is a formula in
// kernels/math/binary.h and a line in binary_rows().
#include "kernels/math/binary.h"
#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cpu/elementwise/parts.h"
#include "kernels/cpu/support.h"
#include "kernels/math/convert.h"

namespace halfnote::cpu {

namespace {

// The element types that an op takes.
enum Kinds : unsigned {
  kFloats = 1,
  kSigned = 2,
  kUnsigned = 4,
  kBools = 8,
  kIntegers = kSigned | kUnsigned,
  kNumbers = kFloats | kIntegers,
  kAll = kNumbers | kBools,
};

template <class T>
constexpr unsigned kind_of() {
  if (std::is_same_v<T, bool>) return kBools;
  if (!std::is_integral_v<T>) return kFloats;
  return std::is_signed_v<T> ? kSigned : kUnsigned;
}

/// One run: a and b advance by `step_a`, `step_b` (0 or 1).
template <class Op, class M, class R>
void run_loop(const M* a, int64_t step_a, const M* b, int64_t step_b, R* y, int64_t count) {
  if constexpr (!std::is_floating_point_v<M>) {
    for (int64_t i = 0; i < count; ++i) y[i] = Op::value(a[i * step_a], b[i * step_b]);
  } else if (step_a != 0 && step_b != 0) {
    for (int64_t i = 0; i < count; ++i) y[i] = Op::value(a[i], b[i]);
  } else if (step_a != 0) {
    const M right = *b;
    for (int64_t i = 0; i < count; ++i) y[i] = Op::value(a[i], right);
  } else if (step_b != 0) {
    const M left = *a;
    for (int64_t i = 0; i < count; ++i) y[i] = Op::value(left, b[i]);
  } else {
    std::fill_n(y, count, Op::value(*a, *b));
  }
}

template <class Op>
constexpr bool kDivides = std::is_same_v<Op, math::Div> || std::is_same_v<Op, math::Mod> ||
                          std::is_same_v<Op, math::Fmod>;

template <class T>
void check_divisors(const T* divisors, int64_t step, int64_t count) {
  for (int64_t i = 0; i < (step != 0 ? count : std::min<int64_t>(count, 1)); ++i) {
    if (divisors[i] == 0) throw division_by_zero();
  }
}

/// A run over operands of one type, which the function knows: steps of 0 or 1 element.
using Run = void (*)(const std::byte* a, int64_t step_a, const std::byte* b, int64_t step_b,
                     std::byte* y, int64_t count);

/// A run of storage type T with results of type R (T, or bool of a comparison), in chunks of math
/// precision.
template <class Op, class T, class R>
void chunked_run(const std::byte* bytes_a, int64_t step_a, const std::byte* bytes_b, int64_t step_b,
                 std::byte* bytes_y, int64_t count) {
  using M = Math<T>;
  const T* a = reinterpret_cast<const T*>(bytes_a);
  const T* b = reinterpret_cast<const T*>(bytes_b);
  R* y = reinterpret_cast<R*>(bytes_y);
  if constexpr (kDivides<Op> && std::is_integral_v<T>) check_divisors(b, step_b, count);
  if constexpr (std::is_same_v<T, M>) {
    run_loop<Op>(a, step_a, b, step_b, y, count);
  } else {
    M chunk_a[kChunk], chunk_b[kChunk], chunk_y[kChunk];
    for (int64_t i = 0; i < count; i += kChunk) {
      const int64_t n = std::min(kChunk, count - i);
      const M* left = load_block(a + i * step_a, step_a != 0 ? n : 1, chunk_a);
      const M* right = load_block(b + i * step_b, step_b != 0 ? n : 1, chunk_b);
      if constexpr (std::is_same_v<R, bool>) {
        run_loop<Op>(left, step_a, right, step_b, y + i, n);
      } else {
        run_loop<Op>(left, step_a, right, step_b, chunk_y, n);
        store_block(chunk_y, n, y + i);
      }
    }
  }
}

/// The kernel of all binary ops: walks the runs and leaves the types to `run`.
Prepared run_kernel(const KernelCall& call, Run run) {
  Runs plan = plan_broadcast({call.inputs[0].shape, call.inputs[1].shape}, call.outputs[0].shape);
  const auto bytes = [](const Operand& operand) {
    return static_cast<int64_t>(size_of(operand.dtype));
  };
  const int64_t size_a = bytes(call.inputs[0]), size_b = bytes(call.inputs[1]);
  const int64_t size_y = bytes(call.outputs[0]);
  const bool share_a = is_elementwise(call, 0), share_b = is_elementwise(call, 1);
  const auto body = [=, plan = std::move(plan),
                     threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(plan.count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      walk_runs<2>(plan, begin, end, [&](int64_t at, const auto& offsets, int64_t length) {
        run(buffers.inputs[0] + offsets[0] * size_a, plan.step(0),
            buffers.inputs[1] + offsets[1] * size_b, plan.step(1), buffers.outputs[0] + at * size_y,
            length);
      });
    });
  };
  return make_kernel(body, 0, [=](size_t input, size_t) { return input == 0 ? share_a : share_b; });
}

template <class Op, class T, class R>
Prepared binary_kernel(const KernelCall& call) {
  if (call.outputs[0].dtype != dtype_of<R>()) return Prepared::no("wrong type of the output");
  return run_kernel(call, chunked_run<Op, T, R>);
}

/// The reason why a call does not have two operands of one type, or an empty string.
std::string uneven_operands(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0)) {
    return "an operand is missing";
  }
  return call.inputs[0].dtype == call.inputs[1].dtype ? "" : "operands of different types";
}

template <class Op, unsigned kKinds>
Prepared prepare_binary(const KernelCall& call) {
  if (std::string reason = uneven_operands(call); !reason.empty()) return Prepared::no(reason);
  return for_any_type(call.inputs[0].dtype, [&]<class T>() -> Prepared {
    if constexpr ((kind_of<T>() & kKinds) != 0) {
      return binary_kernel<Op, T, T>(call);
    } else {
      return Prepared::no("not for elements of type " + std::string(short_name(dtype_of<T>())));
    }
  });
}

template <class Op>
Prepared prepare_comparison(const KernelCall& call) {
  if (std::string reason = uneven_operands(call); !reason.empty()) return Prepared::no(reason);
  return for_any_type(call.inputs[0].dtype,
                      [&]<class T>() { return binary_kernel<Op, T, bool>(call); });
}

Prepared prepare_mod(const KernelCall& call) {
  if (attributes_of(call).get_int("fmod", 0) != 0) {
    return prepare_binary<math::Fmod, kNumbers>(call);
  }
  if (call.has_input(0) && is_float(call.inputs[0].dtype)) {
    return Prepared::no("Mod of floats needs fmod = 1");
  }
  return prepare_binary<math::Mod, kIntegers>(call);
}

Prepared prepare_shift(const KernelCall& call) {
  const std::string direction = attributes_of(call).get_string("direction", "");
  if (direction == "LEFT") return prepare_binary<math::ShiftLeft, kUnsigned>(call);
  if (direction == "RIGHT") return prepare_binary<math::ShiftRight, kUnsigned>(call);
  return Prepared::no("direction is neither LEFT nor RIGHT");
}

/// Brings `count` exponents of type E to type M.
template <class M>
using Exponents = void (*)(const std::byte* from, M* to, int64_t count);

template <class E, class M>
void convert_exponents(const std::byte* from, M* to, int64_t count) {
  const E* exponents = reinterpret_cast<const E*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = math::convert_element<M>(exponents[i]);
}

/// base ** exponent where the exponent has been brought to M: the math type of a float base; int64
/// for integers of both kinds; double for a float exponent of an integer base.
template <class T, class M>
T mixed_power(T base, M exponent) {
  if constexpr (!std::is_integral_v<T>) {
    return store<T>(math::Pow::value(load(base), exponent));
  } else if constexpr (std::is_integral_v<M>) {
    return math::Pow::integer(base, exponent);
  } else {
    return math::truncate_saturating<T>(math::pow(static_cast<double>(base), exponent));
  }
}

/// Pow with an exponent of another type.
template <class T, class M>
Prepared mixed_pow_kernel(const KernelCall& call, Exponents<M> convert) {
  Runs plan = plan_broadcast({call.inputs[0].shape, call.inputs[1].shape}, call.outputs[0].shape);
  const bool share = is_elementwise(call, 0);
  const auto size_b = static_cast<int64_t>(size_of(call.inputs[1].dtype));
  const auto body = [=, plan = std::move(plan),
                     threads = call.threads](const KernelBuffers& buffers) {
    const T* a = buffers.in<T>(0);
    T* y = buffers.out<T>(0);
    parallel_blocks(plan.count, kChunk, threads, [&](int64_t begin, int64_t end) {
      M exponents[kChunk];
      walk_runs<2>(plan, begin, end, [&](int64_t at, const auto& offsets, int64_t length) {
        const int64_t step = plan.step(1);
        convert(buffers.inputs[1] + offsets[1] * size_b, exponents, step != 0 ? length : 1);
        for (int64_t i = 0; i < length; ++i) {
          y[at + i] = mixed_power(a[offsets[0] + i * plan.step(0)], exponents[i * step]);
        }
      });
    });
  };
  return make_kernel(body, 0, [=](size_t input, size_t) { return input == 0 && share; });
}

template <class T, class M>
Prepared prepare_mixed_pow(const KernelCall& call) {
  return for_any_type(call.inputs[1].dtype, [&]<class E>() -> Prepared {
    return mixed_pow_kernel<T, M>(call, convert_exponents<E, M>);
  });
}

Prepared prepare_pow(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1)) return Prepared::no("an operand is missing");
  if (call.inputs[0].dtype == call.inputs[1].dtype) {
    return prepare_binary<math::Pow, kNumbers>(call);
  }
  if (call.outputs[0].dtype != call.inputs[0].dtype)
    return Prepared::no("wrong type of the output");
  const bool float_exponent = is_float(call.inputs[1].dtype);
  return for_any_type(call.inputs[0].dtype, [&]<class T>() -> Prepared {
    if constexpr (std::is_same_v<T, bool>) {
      return Prepared::no("not for bool");
    } else if constexpr (!std::is_integral_v<T>) {
      return prepare_mixed_pow<T, Math<T>>(call);
    } else {
      return float_exponent ? prepare_mixed_pow<T, double>(call)
                            : prepare_mixed_pow<T, int64_t>(call);
    }
  });
}

}  // namespace

std::vector<KernelRow> binary_rows() {
  return {
      {"", "Add", "reference", prepare_binary<math::Add, kNumbers>},
      {"", "And", "reference", prepare_binary<math::BitAnd, kBools>},
      {"", "BitShift", "reference", prepare_shift},
      {"", "BitwiseAnd", "reference", prepare_binary<math::BitAnd, kIntegers>},
      {"", "BitwiseOr", "reference", prepare_binary<math::BitOr, kIntegers>},
      {"", "BitwiseXor", "reference", prepare_binary<math::BitXor, kIntegers>},
      {"", "Div", "reference", prepare_binary<math::Div, kNumbers>},
      {"", "Equal", "reference", prepare_comparison<math::Equal>},
      {"", "Greater", "reference", prepare_comparison<math::Greater>},
      {"", "GreaterOrEqual", "reference", prepare_comparison<math::GreaterOrEqual>},
      {"", "Less", "reference", prepare_comparison<math::Less>},
      {"", "LessOrEqual", "reference", prepare_comparison<math::LessOrEqual>},
      {"", "Mod", "reference", prepare_mod},
      {"", "Mul", "reference", prepare_binary<math::Mul, kNumbers>},
      {"", "Or", "reference", prepare_binary<math::BitOr, kBools>},
      {"", "PRelu", "reference", prepare_binary<math::PRelu, kNumbers>},
      {"", "Pow", "reference", prepare_pow},
      {"", "Sub", "reference", prepare_binary<math::Sub, kNumbers>},
      {"", "Xor", "reference", prepare_binary<math::BitXor, kBools>},
  };
}

}  // namespace halfnote::cpu
