// Ops of two broadcast operands of one type: the formulas of kernels/math/binary.h under one walk.
// Operands of equal shape, or repeated whole, need no index arithmetic.
#include "kernels/cpu/elementwise/broadcast.h"
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

template <class Op, class T, class R>
__device__ R combine(T a, T b, [[maybe_unused]] DeviceFault* fault) {
  if constexpr (kDivides<Op> && std::is_integral_v<T>) {
    if (b == 0) {
      note_fault(fault, DeviceFault::kDivision, 0, 0);
      return 0;
    }
  }
  if constexpr (std::is_same_v<R, T>) {
    return store_number<T>(Op::value(load_number(a), load_number(b)));
  } else {
    return Op::value(load_number(a), load_number(b));
  }
}

/// Each operand goes on with the positions, or stays at its first element.
template <class Op, class T, class R>
struct Even {
  const T* a;
  const T* b;
  R* y;
  int64_t step_a, step_b;
  DeviceFault* fault;
  __device__ void operator()(int64_t i) const {
    y[i] = combine<Op, T, R>(a[i * step_a], b[i * step_b], fault);
  }
};

template <class Op, class T, class R>
struct Broadcast {
  const T* a;
  const T* b;
  R* y;
  Strided<2> walk;
  DeviceFault* fault;
  __device__ void operator()(int64_t i) const {
    int64_t offset[2];
    walk.offsets(i, offset);
    y[i] = combine<Op, T, R>(a[offset[0]], b[offset[1]], fault);
  }
};

template <class Op, class T, class R>
Prepared binary_kernel(const KernelCall& call) {
  if (call.outputs[0].dtype != dtype_of<R>()) return Prepared::no("wrong type of the output");
  const Runs runs =
      cpu::plan_broadcast({call.inputs[0].shape, call.inputs[1].shape}, call.outputs[0].shape);
  Strided<2> walk;
  if (!as_strided(runs, walk)) return Prepared::no(too_many_dims());
  const bool share_a = cpu::is_elementwise(call, 0), share_b = cpu::is_elementwise(call, 1);
  const auto body = [walk](const KernelBuffers& buffers) {
    const T *a = buffers.in<T>(0), *b = buffers.in<T>(1);
    R* y = buffers.out<R>(0);
    DeviceFault* fault = stream_of(buffers).fault();
    if (walk.rank == 1) {
      for_each(stream_of(buffers), walk.count,
               Even<Op, T, R>{a, b, y, walk.strides[0][0], walk.strides[1][0], fault});
    } else {
      for_each(stream_of(buffers), walk.count, Broadcast<Op, T, R>{a, b, y, walk, fault});
    }
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
  return for_common_type(call.inputs[0].dtype, [&]<class T>() -> Prepared {
    if constexpr ((kind_of<T>() & kKinds) != 0) {
      return binary_kernel<Op, T, std::conditional_t<kCompares, bool, T>>(call);
    } else {
      return Prepared::no("not for elements of type " + std::string(short_name(dtype_of<T>())));
    }
  });
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
