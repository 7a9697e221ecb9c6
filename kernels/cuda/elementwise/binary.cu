// Ops of two broadcast operands: the formulas of kernels/math/binary.h under one walk. A kernel is
// compiled for what it computes in (kernels/cuda/any_number.h); which type is in memory, it is told
// when it runs.
#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cpu/reals.h"
#include "kernels/cuda/any_number.h"
#include "kernels/cuda/elementwise/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/math/binary.h"

namespace halfnote::HN_CUDA {

namespace {

// The element types of an op.
enum Kinds : unsigned {
  kFloats = 1,
  kSigned = 2,
  kUnsigned = 4,
  kBools = 8,
  kIntegers = kSigned | kUnsigned,
  kNumbers = kFloats | kIntegers,
  kAll = kNumbers | kBools,
};

unsigned kind_of(DType dtype) {
  if (dtype == DType::kBool) return kBools;
  if (cpu::is_real(dtype)) return kFloats;
  if (!is_whole(dtype)) return 0;
  return is_unsigned(dtype) ? kUnsigned : kSigned;
}

template <class Op>
constexpr bool kDivides = std::is_same_v<Op, math::Div> || std::is_same_v<Op, math::Mod> ||
                          std::is_same_v<Op, math::Fmod>;

/// Ops whose low bits depend on low bits alone: those of u64 are those of i64.
template <class Op>
constexpr bool kWraps = std::is_same_v<Op, math::Add> || std::is_same_v<Op, math::Sub> ||
                        std::is_same_v<Op, math::Mul> || std::is_same_v<Op, math::BitAnd> ||
                        std::is_same_v<Op, math::BitOr> || std::is_same_v<Op, math::BitXor> ||
                        std::is_same_v<Op, math::Equal>;

template <class Op, class C, class R>
struct Broadcast {
  NumberPointer<C> a, b;
  NumberOutput<R> y;
  Strided<2> walk;
  FaultPlace fault;
  __device__ void operator()(int64_t i) const {
    int64_t offset[2];
    walk.offsets(i, offset);
    const C left = a[offset[0]], right = b[offset[1]];
    if constexpr (kDivides<Op> && std::is_integral_v<C>) {
      if (right == 0) {
        note_fault(fault, DeviceFault::kDivision, 0, 0);
        y.write(i, 0);
        return;
      }
    }
    y.write(i, static_cast<R>(Op::value(left, right)));
  }
};

/// The walk over two operands, and which of them the result may be written over.
struct TwoOperands {
  Strided<2> walk;
  bool share_a = false, share_b = false;
};

std::string plan_two(const KernelCall& call, TwoOperands& plan) {
  const Runs runs =
      cpu::plan_broadcast({call.inputs[0].shape, call.inputs[1].shape}, call.outputs[0].shape);
  plan.share_a = cpu::is_elementwise(call, 0);
  plan.share_b = cpu::is_elementwise(call, 1);
  return as_strided(runs, plan.walk) ? "" : too_many_dims();
}

/// Computes in C. Comparisons give bool, which is stored as an integer is.
template <class Op, class C, bool kCompares = false>
Prepared binary_kernel(const KernelCall& call) {
  const DType dtype = call.inputs[0].dtype, result = kCompares ? DType::kBool : dtype;
  if (call.outputs[0].dtype != result) return Prepared::no("wrong type of the output");
  TwoOperands plan;
  if (std::string why = plan_two(call, plan); !why.empty()) return Prepared::no(why);
  using R = std::conditional_t<kCompares, int64_t, C>;
  const auto body = [=](const KernelBuffers& buffers) {
    for_each(stream_of(buffers), plan.walk.count,
             Broadcast<Op, C, R>{{buffers.inputs[0], dtype},
                                 {buffers.inputs[1], dtype},
                                 {buffers.outputs[0], result},
                                 plan.walk,
                                 stream_of(buffers).fault()});
  };
  return make_kernel(
      body, 0, [=](size_t input, size_t) { return input == 0 ? plan.share_a : plan.share_b; });
}

/// The reason why a call does not have two operands of one type that is among `kinds`, or an empty
/// string.
std::string unfit(const KernelCall& call, unsigned kinds) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0)) {
    return "an operand is missing";
  }
  const DType dtype = call.inputs[0].dtype;
  if (dtype != call.inputs[1].dtype) return "operands of different types";
  if ((kind_of(dtype) & kinds) != 0) return {};
  return "not for elements of type " + std::string(short_name(dtype));
}

template <class Op, unsigned kKinds, bool kCompares = false>
Prepared prepare(const KernelCall& call) {
  if (std::string why = unfit(call, kKinds); !why.empty()) return Prepared::no(why);
  return for_computed_type(call.inputs[0].dtype, [&]<class C>() -> Prepared {
    if constexpr (std::is_floating_point_v<C>) {
      if constexpr ((kKinds & kFloats) != 0) return binary_kernel<Op, C, kCompares>(call);
      return Prepared::no("not for floats");
    } else if constexpr (std::is_same_v<C, uint64_t> && kWraps<Op>) {
      return binary_kernel<Op, int64_t, kCompares>(call);
    } else if constexpr ((kKinds & kAll) != kFloats) {
      return binary_kernel<Op, C, kCompares>(call);
    } else {
      return Prepared::no("not for integers");
    }
  });
}

Prepared prepare_mod(const KernelCall& call) {
  if (attributes_of(call).get_int("fmod", 0) != 0) return prepare<math::Fmod, kNumbers>(call);
  return prepare<math::Mod, kIntegers>(call);
}

/// Compiled for u64 alone: what is narrower is 0 above its bits, so that whatever leaves them is
/// gone, as math::ShiftLeft and math::ShiftRight say.
Prepared prepare_shift(const KernelCall& call) {
  if (std::string why = unfit(call, kUnsigned); !why.empty()) return Prepared::no(why);
  const std::string direction = attributes_of(call).get_string("direction", "");
  if (direction == "LEFT") return binary_kernel<math::ShiftLeft, uint64_t>(call);
  if (direction == "RIGHT") return binary_kernel<math::ShiftRight, uint64_t>(call);
  return Prepared::no("direction is neither LEFT nor RIGHT");
}

/// base ** exponent of another type: computed in the base's type C if E is its math type; integers
/// with integer exponents in i64, with float ones in f64.
template <class C, class E>
struct MixedPower {
  NumberPointer<C> a;
  AnyPointer b;
  AnyOutput y;
  Strided<2> walk;
  __device__ void operator()(int64_t i) const {
    int64_t offset[2];
    walk.offsets(i, offset);
    const C base = a[offset[0]];
    if constexpr (std::is_floating_point_v<C>) {
      y.write(i, math::Pow::value(base, b.load<C>(offset[1])));
    } else if constexpr (std::is_integral_v<E>) {
      const E exponent = load_whole<E>(b.data, b.dtype, offset[1]);
      store_whole(y.data, y.dtype, i, math::Pow::integer(base, exponent));
    } else {
      const E exponent = b.load<E>(offset[1]), power = math::pow(static_cast<E>(base), exponent);
      // Whole powers of integers are integers, which a GPU's pow() may miss by its last bit.
      const bool is_whole_power = exponent >= 0 && exponent == math::rint(exponent);
      y.write(i, is_whole_power ? math::rint(power) : power);
    }
  }
};

template <class C, class E>
Prepared mixed_pow_kernel(const KernelCall& call) {
  TwoOperands plan;
  if (std::string why = plan_two(call, plan); !why.empty()) return Prepared::no(why);
  const auto body = [plan, dtype = call.inputs[0].dtype,
                     exponent = call.inputs[1].dtype](const KernelBuffers& buffers) {
    for_each(stream_of(buffers), plan.walk.count,
             MixedPower<C, E>{{buffers.inputs[0], dtype},
                              {buffers.inputs[1], exponent},
                              {buffers.outputs[0], dtype},
                              plan.walk});
  };
  return make_kernel(body, 0, [=](size_t input, size_t) { return input == 0 && plan.share_a; });
}

Prepared prepare_pow(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0)) {
    return Prepared::no("an operand is missing");
  }
  const DType base = call.inputs[0].dtype, exponent = call.inputs[1].dtype;
  if (base == exponent) return prepare<math::Pow, kNumbers>(call);
  if (call.outputs[0].dtype != base) return Prepared::no("wrong type of the output");
  if (base == DType::kBool) return Prepared::no("not for bool");
  if (kind_of(exponent) == 0) {
    return Prepared::no("an exponent of type " + std::string(short_name(exponent)));
  }
  return for_computed_type(base, [&]<class C>() -> Prepared {
    if constexpr (std::is_floating_point_v<C>) {
      return mixed_pow_kernel<C, C>(call);
    } else {
      return cpu::is_real(exponent) ? mixed_pow_kernel<C, double>(call)
                                    : mixed_pow_kernel<C, int64_t>(call);
    }
  });
}

}  // namespace

std::vector<KernelRow> binary_rows() {
  return {
      {"", "Add", "own.binary", prepare<math::Add, kNumbers>},
      {"", "And", "own.binary", prepare<math::BitAnd, kBools>},
      {"", "BitShift", "own.binary", prepare_shift},
      {"", "BitwiseAnd", "own.binary", prepare<math::BitAnd, kIntegers>},
      {"", "BitwiseOr", "own.binary", prepare<math::BitOr, kIntegers>},
      {"", "BitwiseXor", "own.binary", prepare<math::BitXor, kIntegers>},
      {"", "Div", "own.binary", prepare<math::Div, kNumbers>},
      {"", "Equal", "own.binary", prepare<math::Equal, kAll, true>},
      {"", "Greater", "own.binary", prepare<math::Greater, kAll, true>},
      {"", "GreaterOrEqual", "own.binary", prepare<math::GreaterOrEqual, kAll, true>},
      {"", "Less", "own.binary", prepare<math::Less, kAll, true>},
      {"", "LessOrEqual", "own.binary", prepare<math::LessOrEqual, kAll, true>},
      {"", "Mod", "own.binary", prepare_mod},
      {"", "Mul", "own.binary", prepare<math::Mul, kNumbers>},
      {"", "Or", "own.binary", prepare<math::BitOr, kBools>},
      {"", "PRelu", "own.binary", prepare<math::PRelu, kNumbers>},
      {"", "Pow", "own.binary", prepare_pow},
      {"", "Sub", "own.binary", prepare<math::Sub, kNumbers>},
      {"", "Xor", "own.binary", prepare<math::BitXor, kBools>},
  };
}

}  // namespace halfnote::HN_CUDA
