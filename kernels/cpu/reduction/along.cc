// Ops along one axis: ArgMax, ArgMin, CumSum, TopK. The data is seen as (outer, dim, inner).
#include "kernels/cpu/reduction/along.h"

#include <numeric>

#include "base/error.h"
#include "kernels/cpu/reduction/parts.h"
#include "kernels/cpu/support.h"
#include "kernels/math/binary.h"

namespace halfnote::cpu {

namespace {

int64_t grain_of(const Along& along) {
  return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, along.dim));
}

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

template <class T>
Prepared arg_kernel(const KernelCall& call, const ArgPlan& plan) {
  return make_kernel([plan, threads = call.threads](const KernelBuffers& buffers) {
    const Along& along = plan.along;
    const T* x = buffers.in<T>(0);
    int64_t* y = buffers.out<int64_t>(0);
    parallel_blocks(along.lines(), grain_of(along), threads, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const T* at = x + along.start(line);
        int64_t best = 0;
        for (int64_t i = 1; i < along.dim; ++i) {
          if (plan.order.before(load(at[i * along.inner]), i, load(at[best * along.inner]), best))
            best = i;
        }
        y[line] = best;
      }
    });
  });
}

template <bool kLargest>
Prepared prepare_arg(const KernelCall& call) {
  ArgPlan plan;
  if (std::string why = plan_arg(call, kLargest, plan); !why.empty()) return Prepared::no(why);
  return for_any_type(call.inputs[0].dtype, [&]<class T>() { return arg_kernel<T>(call, plan); });
}

/// Running sums in f64 (integers: their own type), each rounded on writing.
template <class T>
Prepared cum_sum_kernel(const KernelCall& call, const CumSumPlan& plan) {
  using M = Math<T>;
  using A = std::conditional_t<std::is_floating_point_v<M>, double, M>;
  const auto body = [plan, threads = call.threads](const KernelBuffers& buffers) {
    const Along& along = plan.along;
    const T* x = buffers.in<T>(0);
    T* y = buffers.out<T>(0);
    parallel_blocks(along.lines(), grain_of(along), threads, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        A sum = 0;
        for (int64_t i = 0; i < along.dim; ++i) {
          const int64_t place = plan.reverse ? along.dim - 1 - i : i;
          const int64_t at = along.start(line) + place * along.inner;
          const A next = math::Add::value(sum, static_cast<A>(load(x[at])));
          y[at] = store<T>(static_cast<M>(plan.exclusive ? sum : next));
          sum = next;
        }
      }
    });
  };
  return make_kernel(body, 0, [](size_t input, size_t) { return input == 0; });
}

Prepared prepare_cum_sum(const KernelCall& call) {
  CumSumPlan plan;
  if (std::string why = plan_cum_sum(call, plan); !why.empty()) return Prepared::no(why);
  return for_any_type(call.inputs[0].dtype, [&]<class T>() -> Prepared {
    if constexpr (std::is_same_v<T, bool>) {
      return Prepared::no("not for bool");
    } else {
      return cum_sum_kernel<T>(call, plan);
    }
  });
}

/// The k first of each line; `sorted` is always honoured.
template <class T>
Prepared top_k_kernel(const KernelCall& call, const TopKPlan& plan) {
  const bool with_indices = call.has_output(1);
  const auto body = [plan, with_indices](const KernelBuffers& buffers) {
    const Along &along = plan.along, &picked = plan.picked;
    const T* x = buffers.in<T>(0);
    auto* order = reinterpret_cast<int64_t*>(buffers.workspace);
    for (int64_t line = 0; line < along.lines(); ++line) {
      const T* at = x + along.start(line);
      std::iota(order, order + along.dim, int64_t{0});
      std::partial_sort(order, order + picked.dim, order + along.dim, [&](int64_t a, int64_t b) {
        return plan.order.before(load(at[a * along.inner]), a, load(at[b * along.inner]), b);
      });
      for (int64_t i = 0; i < picked.dim; ++i) {
        const int64_t to = picked.start(line) + i * picked.inner;
        buffers.out<T>(0)[to] = at[order[i] * along.inner];
        if (with_indices) buffers.out<int64_t>(1)[to] = order[i];
      }
    }
  };
  return make_kernel(body, static_cast<size_t>(plan.along.dim) * sizeof(int64_t));
}

Prepared prepare_top_k(const KernelCall& call) {
  TopKPlan plan;
  if (std::string why = plan_top_k(call, plan); !why.empty()) return Prepared::no(why);
  return for_any_type(call.inputs[0].dtype, [&]<class T>() { return top_k_kernel<T>(call, plan); });
}

}  // namespace

/// ArgMin picks the first NaN too, as NumPy does: a NaN is to be seen, not to be skipped.
std::string plan_arg(const KernelCall& call, bool largest, ArgPlan& plan) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  if (call.outputs[0].dtype != DType::kI64) return "wrong type of the output";
  const Attributes& attributes = attributes_of(call);
  plan.order = {.largest = largest,
                .nan_first = true,
                .last_index = attributes.get_int("select_last_index", 0) != 0};
  plan.along = plan_along(call.inputs[0].shape, attributes.get_int("axis", 0));
  if (call.outputs[0].size() != plan.along.lines()) {
    throw size_error(call, plan.along.lines(), call.outputs[0].size());
  }
  return plan.along.dim == 0 && plan.along.lines() != 0 ? "no element along the axis" : "";
}

std::string plan_cum_sum(const KernelCall& call, CumSumPlan& plan) {
  if (!call.has_input(1) || !call.has_output(0)) return "an operand is missing";
  if (!call.inputs[1].constant) return "the axis is not known before the first step";
  if (call.outputs[0].size() != call.inputs[0].size()) {
    throw size_error(call, call.inputs[0].size(), call.outputs[0].size());
  }
  plan.exclusive = attributes_of(call).get_int("exclusive", 0) != 0;
  plan.reverse = attributes_of(call).get_int("reverse", 0) != 0;
  plan.along = plan_along(call.inputs[0].shape, call.inputs[1].constant->at_as_int(0));
  return {};
}

/// NaN is larger than every number, as in NumPy and PyTorch.
std::string plan_top_k(const KernelCall& call, TopKPlan& plan) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  const Attributes& attributes = attributes_of(call);
  const int64_t axis = attributes.get_int("axis", -1);
  const bool largest = attributes.get_int("largest", 1) != 0;
  plan.order = {.largest = largest, .nan_first = largest, .last_index = false};
  plan.along = plan_along(call.inputs[0].shape, axis);
  plan.picked = plan_along(call.outputs[0].shape, axis);
  if (plan.picked.lines() != plan.along.lines() || plan.picked.dim > plan.along.dim) {
    throw size_error(call, plan.along.lines() * plan.picked.dim, call.outputs[0].size());
  }
  return {};
}

std::vector<KernelRow> along_rows() {
  return {
      {"", "ArgMax", "reference", prepare_arg<true>},
      {"", "ArgMin", "reference", prepare_arg<false>},
      {"", "CumSum", "reference", prepare_cum_sum},
      {"", "TopK", "reference", prepare_top_k},
  };
}

}  // namespace halfnote::cpu
