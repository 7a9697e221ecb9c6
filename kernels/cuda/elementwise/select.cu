// Where, Clip and its gradient, and Cast between numeric types and bool.
#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cuda/elementwise/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/math/binary.h"
#include "kernels/math/convert.h"

namespace halfnote::HN_CUDA {

namespace {

template <class T>
struct Choose {
  const bool* condition;
  const T* yes;
  const T* no;
  T* y;
  Strided<3> walk;
  __device__ void operator()(int64_t i) const {
    int64_t offset[3];
    walk.offsets(i, offset);
    y[i] = condition[offset[0]] ? yes[offset[1]] : no[offset[2]];
  }
};

Prepared prepare_where(const KernelCall& call) {
  if (!call.has_input(2) || !call.has_output(0)) return Prepared::no("an operand is missing");
  if (call.inputs[0].dtype != DType::kBool) return Prepared::no("the condition is not bool");
  if (call.inputs[1].dtype != call.inputs[2].dtype) {
    return Prepared::no("operands of different types");
  }
  Strided<3> walk;
  const Runs runs = cpu::plan_broadcast(
      {call.inputs[0].shape, call.inputs[1].shape, call.inputs[2].shape}, call.outputs[0].shape);
  if (!as_strided(runs, walk)) return Prepared::no(too_many_dims());
  return for_element_size(call.outputs[0].dtype, [&]<class T>() {
    const bool share_1 = cpu::is_elementwise(call, 1), share_2 = cpu::is_elementwise(call, 2);
    const auto body = [walk](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), walk.count,
               Choose<T>{buffers.in<bool>(0), buffers.in<T>(1), buffers.in<T>(2), buffers.out<T>(0),
                         walk});
    };
    return make_kernel(body, 0, [=](size_t input, size_t) {
      return input == 1 ? share_1 : input == 2 && share_2;
    });
  });
}

/// The reason why a bound (min or max, a scalar of the type of X) does not fit, or an empty string.
std::string unfit_bounds(const KernelCall& call, size_t first) {
  for (size_t i = first; i < first + 2; ++i) {
    if (!call.has_input(i)) continue;
    if (call.inputs[i].dtype != call.inputs[0].dtype) return "operands of different types";
    if (call.inputs[i].size() != 1) return "a bound is not a scalar";
  }
  return {};
}

/// Bounds that are null do not bound.
template <class T>
struct ClipElement {
  const T *x, *low, *high;
  T* y;
  __device__ void operator()(int64_t i) const {
    Math<T> value = load_number(x[i]);
    if (low != nullptr) value = math::Max::value(value, load_number(*low));
    if (high != nullptr) value = math::Min::value(value, load_number(*high));
    y[i] = store_number<T>(value);
  }
};

template <class T>
struct ClipGradElement {
  const T *dy, *x, *low, *high;
  T* dx;
  __device__ void operator()(int64_t i) const {
    const Math<T> at = load_number(x[i]);
    const bool inside = (low == nullptr || at >= load_number(*low)) &&
                        (high == nullptr || at <= load_number(*high));
    dx[i] = inside ? dy[i] : T{};
  }
};

Prepared prepare_clip(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  if (std::string why = unfit_bounds(call, 1); !why.empty()) return Prepared::no(why);
  return for_common_type(call.inputs[0].dtype, [&]<class T>() -> Prepared {
    if constexpr (std::is_same_v<T, bool>) {
      return Prepared::no("not for bool");
    } else {
      const auto body = [count = call.inputs[0].size()](const KernelBuffers& buffers) {
        for_each(stream_of(buffers), count,
                 ClipElement<T>{buffers.in<T>(0), buffers.in<T>(1), buffers.in<T>(2),
                                buffers.out<T>(0)});
      };
      return make_kernel(body, 0, [](size_t input, size_t) { return input == 0; });
    }
  });
}

Prepared prepare_clip_grad(const KernelCall& call) {
  if (!call.has_input(1) || !call.has_output(0)) return Prepared::no("an operand is missing");
  if (call.inputs[0].size() != call.inputs[1].size()) {
    return Prepared::no("operands of different sizes");
  }
  if (std::string why = unfit_bounds(call, 2); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [count = call.inputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               ClipGradElement<T>{buffers.in<T>(0), buffers.in<T>(1), buffers.in<T>(2),
                                  buffers.in<T>(3), buffers.out<T>(0)});
    };
    return make_kernel(body, 0, [](size_t input, size_t) { return input < 2; });
  });
}

template <class To, class From>
__device__ To cast_number(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (math::is_16bit<From>) {
    return cast_number<To>(load_number(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != 0;
  } else if constexpr (math::is_16bit<To>) {
    if constexpr (std::is_same_v<From, bool>) {
      return store_number<To>(value ? 1.0f : 0.0f);
    } else if constexpr (std::is_same_v<From, float>) {
      return store_number<To>(value);
    } else if constexpr (std::is_same_v<From, double>) {
      return round_to_16bit<To>(value);
    } else {
      return round_to_16bit<To>(math::to_double_for_rounding(value));
    }
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<From>) {
    return math::truncate_saturating<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <class From, class To>
struct CastElement {
  const From* x;
  To* y;
  __device__ void operator()(int64_t i) const { y[i] = cast_number<To>(x[i]); }
};

Prepared prepare_cast(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  return for_common_type(call.inputs[0].dtype, [&]<class From>() {
    return for_common_type(call.outputs[0].dtype, [&]<class To>() {
      return make_kernel([count = call.inputs[0].size()](const KernelBuffers& buffers) {
        for_each(stream_of(buffers), count,
                 CastElement<From, To>{buffers.in<From>(0), buffers.out<To>(0)});
      });
    });
  });
}

}  // namespace

std::vector<KernelRow> select_rows() {
  return {
      {"", "Cast", "own.cast", prepare_cast},
      {"", "CastLike", "own.cast", prepare_cast},
      {"", "Clip", "own.clip", prepare_clip},
      {"", "Where", "own.where", prepare_where},
      {"ai.halfnote", "ClipGrad", "own.clip", prepare_clip_grad},
  };
}

}  // namespace halfnote::HN_CUDA
