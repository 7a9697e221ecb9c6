// Ops along one axis: ArgMax, ArgMin, CumSum, TopK. The data is seen as (outer, dim, inner).
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "kernels/cpu/reduction/parts.h"
#include "kernels/cpu/support.h"
#include "kernels/math/binary.h"

namespace halfnote::cpu {

namespace {

struct Along {
  int64_t outer = 1, dim = 1, inner = 1;

  /// Lines along the axis; line i starts at start(i), its elements are `inner` apart.
  int64_t lines() const { return outer * inner; }
  int64_t start(int64_t line) const { return line / inner * dim * inner + line % inner; }
  int64_t grain() const { return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, dim)); }
};

Along plan_along(const Shape& shape, int64_t axis) {
  const auto at = static_cast<size_t>(normalize_axis(axis, static_cast<int64_t>(shape.size())));
  const std::span<const int64_t> dims(shape);
  return {element_count(dims.first(at)), shape[at], element_count(dims.subspan(at + 1))};
}

Error size_error(const KernelCall& call, int64_t expected, int64_t got) {
  return Error(ErrorCode::kModel, "wrong output shape")
      .at({.op = std::string(call.op)})
      .expected(std::to_string(expected) + " elements", std::to_string(got));
}

template <class M>
bool is_nan(M value) {
  if constexpr (std::is_floating_point_v<M>) return std::isnan(value);
  return false;
}

/// Does `a` come before `b`? NaN is larger than every number, as in NumPy and PyTorch.
template <class M>
bool ranks_before(M a, M b, bool largest) {
  if (is_nan(a) || is_nan(b)) return largest ? is_nan(a) && !is_nan(b) : !is_nan(a) && is_nan(b);
  return largest ? a > b : a < b;
}

/// ArgMin picks the first NaN too, as NumPy does: a NaN is to be seen, not to be skipped.
template <class M>
bool beats(M candidate, M best, bool largest, bool last) {
  if (is_nan(best)) return last && is_nan(candidate);
  if (is_nan(candidate)) return true;
  if (candidate == best) return last;
  return largest ? candidate > best : candidate < best;
}

template <class T>
Prepared arg_kernel(const KernelCall& call, bool largest) {
  const Attributes& attributes = attributes_of(call);
  const bool last = attributes.get_int("select_last_index", 0) != 0;
  const Along along = plan_along(call.inputs[0].shape, attributes.get_int("axis", 0));
  if (call.outputs[0].size() != along.lines()) {
    throw size_error(call, along.lines(), call.outputs[0].size());
  }
  if (along.dim == 0 && along.lines() != 0) return Prepared::no("no element along the axis");
  return make_kernel([=, threads = call.threads](const KernelBuffers& buffers) {
    const T* x = buffers.in<T>(0);
    int64_t* y = buffers.out<int64_t>(0);
    parallel_blocks(along.lines(), along.grain(), threads, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const T* at = x + along.start(line);
        int64_t best = 0;
        for (int64_t i = 1; i < along.dim; ++i) {
          if (beats(load(at[i * along.inner]), load(at[best * along.inner]), largest, last))
            best = i;
        }
        y[line] = best;
      }
    });
  });
}

template <bool kLargest>
Prepared prepare_arg(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  if (call.outputs[0].dtype != DType::kI64) return Prepared::no("wrong type of the output");
  return for_any_type(call.inputs[0].dtype,
                      [&]<class T>() { return arg_kernel<T>(call, kLargest); });
}

/// Running sums in f64 (integers: their own type), each rounded on writing.
template <class T>
Prepared cum_sum_kernel(const KernelCall& call, int64_t axis) {
  using M = Math<T>;
  using A = std::conditional_t<std::is_floating_point_v<M>, double, M>;
  const bool exclusive = attributes_of(call).get_int("exclusive", 0) != 0;
  const bool reverse = attributes_of(call).get_int("reverse", 0) != 0;
  const Along along = plan_along(call.inputs[0].shape, axis);
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    const T* x = buffers.in<T>(0);
    T* y = buffers.out<T>(0);
    parallel_blocks(along.lines(), along.grain(), threads, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        A sum = 0;
        for (int64_t i = 0; i < along.dim; ++i) {
          const int64_t place = reverse ? along.dim - 1 - i : i;
          const int64_t at = along.start(line) + place * along.inner;
          const A next = math::Add::value(sum, static_cast<A>(load(x[at])));
          y[at] = store<T>(static_cast<M>(exclusive ? sum : next));
          sum = next;
        }
      }
    });
  };
  return make_kernel(body, 0, [](size_t input, size_t) { return input == 0; });
}

Prepared prepare_cum_sum(const KernelCall& call) {
  if (!call.has_input(1) || !call.has_output(0)) return Prepared::no("an operand is missing");
  if (!call.inputs[1].constant) return Prepared::no("the axis is not known before the first step");
  if (call.outputs[0].size() != call.inputs[0].size()) {
    throw size_error(call, call.inputs[0].size(), call.outputs[0].size());
  }
  const int64_t axis = call.inputs[1].constant->at_as_int(0);
  return for_any_type(call.inputs[0].dtype, [&]<class T>() -> Prepared {
    if constexpr (std::is_same_v<T, bool>) {
      return Prepared::no("not for bool");
    } else {
      return cum_sum_kernel<T>(call, axis);
    }
  });
}

/// The k first of each line, equal elements in the order of their indices; `sorted` is always
/// honoured.
template <class T>
Prepared top_k_kernel(const KernelCall& call) {
  const Attributes& attributes = attributes_of(call);
  const int64_t axis = attributes.get_int("axis", -1);
  const bool largest = attributes.get_int("largest", 1) != 0;
  const Along along = plan_along(call.inputs[0].shape, axis);
  const Along picked = plan_along(call.outputs[0].shape, axis);
  if (picked.lines() != along.lines() || picked.dim > along.dim) {
    throw size_error(call, along.lines() * picked.dim, call.outputs[0].size());
  }
  const bool with_indices = call.has_output(1);
  const auto body = [=](const KernelBuffers& buffers) {
    const T* x = buffers.in<T>(0);
    auto* order = reinterpret_cast<int64_t*>(buffers.workspace);
    for (int64_t line = 0; line < along.lines(); ++line) {
      const T* at = x + along.start(line);
      std::iota(order, order + along.dim, int64_t{0});
      std::partial_sort(order, order + picked.dim, order + along.dim, [&](int64_t a, int64_t b) {
        const auto left = load(at[a * along.inner]), right = load(at[b * along.inner]);
        if (ranks_before(left, right, largest)) return true;
        return !ranks_before(right, left, largest) && a < b;
      });
      for (int64_t i = 0; i < picked.dim; ++i) {
        const int64_t to = picked.start(line) + i * picked.inner;
        buffers.out<T>(0)[to] = at[order[i] * along.inner];
        if (with_indices) buffers.out<int64_t>(1)[to] = order[i];
      }
    }
  };
  return make_kernel(body, static_cast<size_t>(along.dim) * sizeof(int64_t));
}

Prepared prepare_top_k(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  return for_any_type(call.inputs[0].dtype, [&]<class T>() { return top_k_kernel<T>(call); });
}

}  // namespace

std::vector<KernelRow> along_rows() {
  return {
      {"", "ArgMax", "reference", prepare_arg<true>},
      {"", "ArgMin", "reference", prepare_arg<false>},
      {"", "CumSum", "reference", prepare_cum_sum},
      {"", "TopK", "reference", prepare_top_k},
  };
}

}  // namespace halfnote::cpu
