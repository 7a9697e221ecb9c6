// Where, Clip and ClipGrad.
#include <array>

#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cpu/elementwise/parts.h"
#include "kernels/cpu/support.h"
#include "kernels/math/binary.h"

namespace halfnote::cpu {

namespace {

/// Moves bits only, so T is any type of the element's size.
template <class T>
Prepared where_kernel(const KernelCall& call) {
  Runs plan = plan_broadcast({call.inputs[0].shape, call.inputs[1].shape, call.inputs[2].shape},
                             call.outputs[0].shape);
  const std::array<bool, 3> share = {is_elementwise(call, 0), is_elementwise(call, 1),
                                     is_elementwise(call, 2)};
  const auto body = [plan = std::move(plan), threads = call.threads](const KernelBuffers& buffers) {
    const bool* condition = buffers.in<bool>(0);
    const T *yes = buffers.in<T>(1), *no = buffers.in<T>(2);
    T* to = buffers.out<T>(0);
    parallel_blocks(plan.count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      walk_runs<3>(plan, begin, end, [&](int64_t at, const auto& offsets, int64_t length) {
        for (int64_t i = 0; i < length; ++i) {
          to[at + i] = condition[offsets[0] + i * plan.step(0)] ? yes[offsets[1] + i * plan.step(1)]
                                                                : no[offsets[2] + i * plan.step(2)];
        }
      });
    });
  };
  return make_kernel(body, 0, [=](size_t input, size_t) { return input < 3 && share[input]; });
}

Prepared prepare_where(const KernelCall& call) {
  if (!call.has_input(2) || !call.has_output(0)) return Prepared::no("an operand is missing");
  if (call.inputs[0].dtype != DType::kBool) return Prepared::no("the condition is not bool");
  if (call.inputs[1].dtype != call.inputs[2].dtype) {
    return Prepared::no("operands of different types");
  }
  return for_element_size(call.outputs[0].dtype, [&]<class T>() { return where_kernel<T>(call); });
}

/// The reason why a bound (min or max, a scalar of the type of X) does not fit, or an empty string.
std::string unfit_bound(const KernelCall& call, DType dtype, size_t index) {
  if (!call.has_input(index)) return {};
  if (call.inputs[index].dtype != dtype) return "operands of different types";
  return call.inputs[index].size() == 1 ? "" : "a bound is not a scalar";
}

template <class T>
Prepared clip_kernel(const KernelCall& call) {
  const auto body = [count = call.inputs[0].size(),
                     threads = call.threads](const KernelBuffers& buffers) {
    const T *x = buffers.in<T>(0), *low = buffers.in<T>(1), *high = buffers.in<T>(2);
    T* y = buffers.out<T>(0);
    const Math<T> min = low ? load(*low) : Math<T>{}, max = high ? load(*high) : Math<T>{};
    parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Math<T> value = load(x[i]);
        if (low) value = math::Max::value(value, min);
        if (high) value = math::Min::value(value, max);
        y[i] = store<T>(value);
      }
    });
  };
  return make_kernel(body, 0, [](size_t input, size_t) { return input == 0; });
}

Prepared prepare_clip(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const DType dtype = call.inputs[0].dtype;
  for (const size_t index : {1, 2}) {
    if (std::string reason = unfit_bound(call, dtype, index); !reason.empty()) {
      return Prepared::no(reason);
    }
  }
  return for_any_type(dtype, [&]<class T>() -> Prepared {
    if constexpr (std::is_same_v<T, bool>) {
      return Prepared::no("not for bool");
    } else {
      return clip_kernel<T>(call);
    }
  });
}

template <class T>
Prepared clip_grad_kernel(const KernelCall& call) {
  const auto body = [count = call.inputs[0].size(),
                     threads = call.threads](const KernelBuffers& buffers) {
    const T *dy = buffers.in<T>(0), *x = buffers.in<T>(1);
    const T *low = buffers.in<T>(2), *high = buffers.in<T>(3);
    T* dx = buffers.out<T>(0);
    const Math<T> min = low ? load(*low) : Math<T>{}, max = high ? load(*high) : Math<T>{};
    parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Math<T> at = load(x[i]);
        dx[i] = (!low || at >= min) && (!high || at <= max) ? dy[i] : T{};
      }
    });
  };
  return make_kernel(body, 0, [](size_t input, size_t) { return input < 2; });
}

Prepared prepare_clip_grad(const KernelCall& call) {
  if (!call.has_input(1) || !call.has_output(0)) return Prepared::no("an operand is missing");
  if (call.inputs[0].size() != call.inputs[1].size()) {
    return Prepared::no("operands of different sizes");
  }
  for (const size_t index : {2, 3}) {
    if (std::string reason = unfit_bound(call, call.inputs[0].dtype, index); !reason.empty()) {
      return Prepared::no(reason);
    }
  }
  return for_float_type(call.inputs[0].dtype, [&]<class T>() { return clip_grad_kernel<T>(call); });
}

}  // namespace

std::vector<KernelRow> select_rows() {
  return {
      {"", "Clip", "reference", prepare_clip},
      {"", "Where", "reference", prepare_where},
      {"ai.halfnote", "ClipGrad", "reference", prepare_clip_grad},
  };
}

}  // namespace halfnote::cpu
