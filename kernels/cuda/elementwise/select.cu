// Where, and Cast between numeric types and bool.
#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cuda/elementwise/parts.h"
#include "kernels/cuda/support.h"
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
      {"", "Where", "own.where", prepare_where},
  };
}

}  // namespace halfnote::HN_CUDA
