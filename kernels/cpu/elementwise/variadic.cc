// Min, Max, Sum and Mean of any number of broadcast operands: a fold over the inputs in math
// precision, rounded once.
#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cpu/elementwise/parts.h"
#include "kernels/cpu/support.h"
#include "kernels/math/binary.h"

namespace halfnote::cpu {

namespace {

enum class Finish { kNone, kMean };

/// acc[i] = acc[i] ∘ x[i·step], where the step is 0 or 1.
template <class M>
using Fold = void (*)(M* acc, const M* x, int64_t step, int64_t count);

template <class Op, class M>
void fold(M* acc, const M* x, int64_t step, int64_t count) {
  if (step != 0) {
    for (int64_t i = 0; i < count; ++i) acc[i] = Op::value(acc[i], x[i]);
    return;
  }
  const M right = *x;
  for (int64_t i = 0; i < count; ++i) acc[i] = Op::value(acc[i], right);
}

/// Compiled once for a type; what differs between the ops is `fold` and the end.
template <class T>
Prepared variadic_kernel(const KernelCall& call, Fold<Math<T>> fold, Finish finish) {
  std::vector<Runs> plans;  // one for each input
  for (const Operand& input : call.inputs) {
    if (input.dtype != call.inputs[0].dtype) return Prepared::no("operands of different types");
    plans.push_back(plan_broadcast({input.shape}, call.outputs[0].shape));
  }
  const auto body = [plans = std::move(plans), fold, finish,
                     threads = call.threads](const KernelBuffers& buffers) {
    using M = Math<T>;
    T* y = buffers.out<T>(0);
    parallel_blocks(plans[0].count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      M acc[kChunk], chunk[kChunk];
      for (int64_t from = begin; from < end; from += kChunk) {
        const int64_t n = std::min(kChunk, end - from);
        for (size_t k = 0; k < plans.size(); ++k) {
          const T* x = buffers.in<T>(k);
          const int64_t step = plans[k].step(0);
          walk_runs<1>(plans[k], from, from + n, [&](int64_t at, const auto& offset, int64_t run) {
            const M* values = load_block(x + offset[0], step != 0 ? run : 1, chunk);
            M* to = acc + (at - from);
            if (k != 0) {
              fold(to, values, step, run);
            } else if (step != 0) {
              std::copy_n(values, run, to);
            } else {
              std::fill_n(to, run, *values);
            }
          });
        }
        if (finish == Finish::kMean) {
          for (int64_t i = 0; i < n; ++i) acc[i] /= static_cast<M>(plans.size());
        }
        for (int64_t i = 0; i < n; ++i) y[from + i] = store<T>(acc[i]);
      }
    });
  };
  return make_kernel(body, 0,
                     [count = call.inputs.size(), call_shares = is_elementwise(call, 0)](
                         size_t input, size_t) { return input == 0 && call_shares; });
}

template <class Op, Finish kFinish>
Prepared prepare_variadic(const KernelCall& call) {
  if (call.inputs.empty() || call.outputs.empty()) return Prepared::no("an operand is missing");
  return for_any_type(call.inputs[0].dtype, [&]<class T>() -> Prepared {
    if constexpr (std::is_same_v<T, bool>) {
      return Prepared::no("not for bool");
    } else {
      return variadic_kernel<T>(call, fold<Op, Math<T>>, kFinish);
    }
  });
}

}  // namespace

std::vector<KernelRow> variadic_rows() {
  return {
      {"", "Max", "reference", prepare_variadic<math::Max, Finish::kNone>},
      {"", "Mean", "reference", prepare_variadic<math::Add, Finish::kMean>},
      {"", "Min", "reference", prepare_variadic<math::Min, Finish::kNone>},
      {"", "Sum", "reference", prepare_variadic<math::Add, Finish::kNone>},
  };
}

}  // namespace halfnote::cpu
