// Where, Clip and its gradient, and Cast between all types that hold numbers, and bool.
#include "base/low_bit.h"
#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cpu/elementwise/cast.h"
#include "kernels/cpu/reals.h"
#include "kernels/cuda/any_number.h"
#include "kernels/cuda/elementwise/parts.h"
#include "kernels/cuda/packs.h"
#include "kernels/cuda/support.h"
#include "kernels/math/binary.h"

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

/// Bounds without data do not bound.
template <class C>
struct ClipElement {
  NumberPointer<C> x, low, high;
  NumberOutput<C> y;
  __device__ void operator()(int64_t i) const {
    C value = x[i];
    if (low.data != nullptr) value = math::Max::value(value, low[0]);
    if (high.data != nullptr) value = math::Min::value(value, high[0]);
    y.write(i, value);
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
  const DType dtype = call.inputs[0].dtype;
  if (dtype == DType::kBool) return Prepared::no("not for bool");
  return for_computed_type(dtype, [&]<class C>() {
    const auto body = [=, count = call.inputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               ClipElement<C>{{buffers.inputs[0], dtype},
                              {buffers.in<std::byte>(1), dtype},
                              {buffers.in<std::byte>(2), dtype},
                              {buffers.outputs[0], dtype}});
    };
    return make_kernel(body, 0, [](size_t input, size_t) { return input == 0; });
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

/// Compiled for what the operand is read as; 8-bit floats and 4-bit integers go through f64.
template <class C, class From>
struct CastElement {
  From x;
  AnyOutput y;
  __device__ void operator()(int64_t i) const {
    if constexpr (std::is_same_v<From, AnyPointer>) {
      y.write(i, x.template load<C>(i));
    } else {
      y.write(i, x[i]);
    }
  }
};

/// The casts of a training step are compiled for both types: they wait for memory alone.
template <class From, class To>
struct FloatCast {
  const From* x;
  To* y;
  __device__ void operator()(int64_t i) const { y[i] = store_number<To>(load_number(x[i])); }
};

/// Eight at once.
template <class From, class To>
struct FloatCastPack {
  static constexpr int V = 8;
  const From* x;
  To* y;
  __device__ void operator()(int64_t pack) const {
    const Packed<From, V> from = load_packed<V>(x + pack * V);
    Math<To> numbers[V];
    HN_UNROLL
    for (int v = 0; v < V; ++v) numbers[v] = load_number(from.of[v]);
    store_packed(y + pack * V, pack_of<To>(numbers));
  }
};

template <class From, class To>
void run_cast(const KernelBuffers& buffers, int64_t count) {
  constexpr int V = FloatCastPack<From, To>::V;
  const From* x = buffers.in<From>(0);
  To* y = buffers.out<To>(0);
  const int64_t packed = are_aligned<2>({x, y}) ? count / V * V : 0;
  if (packed > 0) for_each(stream_of(buffers), packed / V, FloatCastPack<From, To>{x, y});
  if (packed < count)
    for_each(stream_of(buffers), count - packed, FloatCast<From, To>{x + packed, y + packed});
}

/// Between f32, f16 and bf16; no kernel for other types, and where nothing changes.
Prepared cast_of_step(const KernelCall& call) {
  return for_float_type(call.inputs[0].dtype, [&]<class From>() {
    return for_float_type(call.outputs[0].dtype, [&]<class To>() -> Prepared {
      constexpr bool kWide = std::is_same_v<From, double> || std::is_same_v<To, double>;
      if constexpr (kWide || std::is_same_v<From, To>) {
        return {};
      } else {
        return make_kernel([count = call.inputs[0].size()](const KernelBuffers& buffers) {
          run_cast<From, To>(buffers, count);
        });
      }
    });
  });
}

template <class C, class From = NumberPointer<C>>
Prepared cast_kernel(const KernelCall& call, const cpu::CastRules& rules) {
  return make_kernel([=, from = call.inputs[0].dtype, to = call.outputs[0].dtype,
                      count = call.inputs[0].size()](const KernelBuffers& buffers) {
    for_each(stream_of(buffers), count,
             CastElement<C, From>{{buffers.inputs[0], from},
                                  {buffers.outputs[0], to, rules.overflow, rules.rounding}});
  });
}

Prepared prepare_cast(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const DType from = call.inputs[0].dtype, to = call.outputs[0].dtype;
  const bool known = is_whole(to) || cpu::is_real(to) || to == DType::kBool || is_low_bit(to);
  if (!known) {
    return Prepared::no("no kernel for elements of type " + std::string(short_name(to)));
  }
  if (Prepared kernel = cast_of_step(call)) return kernel;
  const cpu::CastRules rules = cpu::cast_rules(call);
  if (is_low_bit(from)) return cast_kernel<double, AnyPointer>(call, rules);
  return for_computed_type(from, [&]<class C>() { return cast_kernel<C>(call, rules); });
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
