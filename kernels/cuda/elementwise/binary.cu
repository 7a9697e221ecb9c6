// Ops of two broadcast operands of one type: the formulas of kernels/math/binary.h under one walk.
// Floats are computed in f32 or f64; which float type is in memory, a kernel is told when it runs.
#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cpu/reals.h"
#include "kernels/cuda/elementwise/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/math/binary.h"

namespace halfnote::HN_CUDA {

namespace {

// The element types of an op.
enum Kinds : unsigned { kFloats = 1, kIntegers = 2, kBools = 4, kNumbers = 3, kAll = 7 };

template <class T>
constexpr unsigned kind_of() {
  if (std::is_same_v<T, bool>) return kBools;
  return std::is_integral_v<T> ? kIntegers : kFloats;
}

template <class Op>
constexpr bool kDivides = std::is_same_v<Op, math::Div> || std::is_same_v<Op, math::Mod> ||
                          std::is_same_v<Op, math::Fmod>;

/// Elements as T: of that type, or for f32 and f64 of any float type.
template <class T>
struct Source {
  static constexpr bool kFloat = std::is_floating_point_v<T>;
  std::conditional_t<kFloat, RealPointer, const T*> data;

  Source(const KernelBuffers& buffers, size_t input, [[maybe_unused]] DType dtype) {
    if constexpr (kFloat) {
      data = {buffers.inputs[input], dtype};
    } else {
      data = buffers.in<T>(input);
    }
  }
  __device__ T operator[](int64_t at) const {
    if constexpr (kFloat) {
      return data.template load<T>(at);
    } else {
      return data[at];
    }
  }
};

/// The same of results.
template <class R>
struct Target {
  static constexpr bool kFloat = std::is_floating_point_v<R>;
  std::conditional_t<kFloat, RealOutput, R*> data;

  Target(const KernelBuffers& buffers, [[maybe_unused]] DType dtype) {
    if constexpr (kFloat) {
      data = {buffers.outputs[0], dtype};
    } else {
      data = buffers.out<R>(0);
    }
  }
  __device__ void write(int64_t at, R value) const {
    if constexpr (kFloat) {
      data.write(at, value);
    } else {
      data[at] = value;
    }
  }
};

template <class Op, class T, class R>
struct Broadcast {
  Source<T> a, b;
  Target<R> y;
  Strided<2> walk;
  DeviceFault* fault;
  __device__ void operator()(int64_t i) const {
    int64_t offset[2];
    walk.offsets(i, offset);
    const T left = a[offset[0]], right = b[offset[1]];
    if constexpr (kDivides<Op> && std::is_integral_v<T>) {
      if (right == 0) {
        note_fault(fault, DeviceFault::kDivision, 0, 0);
        y.write(i, 0);
        return;
      }
    }
    y.write(i, Op::value(left, right));
  }
};

template <class Op, class T, class R>
Prepared binary_kernel(const KernelCall& call) {
  const DType dtype = call.inputs[0].dtype;
  const DType result = std::is_same_v<R, T> ? dtype : dtype_of<R>();
  if (call.outputs[0].dtype != result) return Prepared::no("wrong type of the output");
  const Runs runs =
      cpu::plan_broadcast({call.inputs[0].shape, call.inputs[1].shape}, call.outputs[0].shape);
  Strided<2> walk;
  if (!as_strided(runs, walk)) return Prepared::no(too_many_dims());
  const bool share_a = cpu::is_elementwise(call, 0), share_b = cpu::is_elementwise(call, 1);
  const auto body = [=](const KernelBuffers& buffers) {
    for_each(stream_of(buffers), walk.count,
             Broadcast<Op, T, R>{{buffers, 0, dtype},
                                 {buffers, 1, dtype},
                                 {buffers, result},
                                 walk,
                                 stream_of(buffers).fault()});
  };
  return make_kernel(body, 0, [=](size_t input, size_t) { return input == 0 ? share_a : share_b; });
}

/// The reason why a call does not have two operands of one type, or an empty string.
std::string uneven(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0)) {
    return "an operand is missing";
  }
  return call.inputs[0].dtype == call.inputs[1].dtype ? "" : "operands of different types";
}

template <class Op, unsigned kKinds, bool kCompares = false>
Prepared prepare(const KernelCall& call) {
  if (std::string why = uneven(call); !why.empty()) return Prepared::no(why);
  const DType dtype = call.inputs[0].dtype;
  const auto typed = [&]<class T>() -> Prepared {
    if constexpr ((kind_of<T>() & kKinds) != 0) {
      return binary_kernel<Op, T, std::conditional_t<kCompares, bool, T>>(call);
    } else {
      return Prepared::no("not for elements of type " + std::string(short_name(dtype)));
    }
  };
  if (dtype == DType::kI32) return typed.template operator()<int32_t>();
  if (dtype == DType::kI64) return typed.template operator()<int64_t>();
  if (dtype == DType::kBool) return typed.template operator()<bool>();
  return cpu::for_math_type(dtype, typed);
}

Prepared prepare_mod(const KernelCall& call) {
  if (attributes_of(call).get_int("fmod", 0) != 0) return prepare<math::Fmod, kNumbers>(call);
  return prepare<math::Mod, kIntegers>(call);
}

}  // namespace

std::vector<KernelRow> binary_rows() {
  return {
      {"", "Add", "own.binary", prepare<math::Add, kNumbers>},
      {"", "And", "own.binary", prepare<math::BitAnd, kBools>},
      {"", "Div", "own.binary", prepare<math::Div, kNumbers>},
      {"", "Equal", "own.binary", prepare<math::Equal, kAll, true>},
      {"", "Greater", "own.binary", prepare<math::Greater, kAll, true>},
      {"", "GreaterOrEqual", "own.binary", prepare<math::GreaterOrEqual, kAll, true>},
      {"", "Less", "own.binary", prepare<math::Less, kAll, true>},
      {"", "LessOrEqual", "own.binary", prepare<math::LessOrEqual, kAll, true>},
      {"", "Mod", "own.binary", prepare_mod},
      {"", "Mul", "own.binary", prepare<math::Mul, kNumbers>},
      {"", "Or", "own.binary", prepare<math::BitOr, kBools>},
      {"", "PRelu", "own.binary", prepare<math::PRelu, kFloats>},
      {"", "Pow", "own.binary", prepare<math::Pow, kFloats>},
      {"", "Sub", "own.binary", prepare<math::Sub, kNumbers>},
      {"", "Xor", "own.binary", prepare<math::BitXor, kBools>},
  };
}

}  // namespace halfnote::HN_CUDA
