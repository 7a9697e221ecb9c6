// Not, IsNaN and IsInf, an element a thread; and Max, Min, Sum and Mean of any number of operands
// that broadcast, folded one by one.
#include <memory>

#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cuda/elementwise/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/math/binary.h"

namespace halfnote::HN_CUDA {

namespace {

struct NotElement {
  const bool* x;
  bool* y;
  __device__ void operator()(int64_t i) const { y[i] = !x[i]; }
};

template <class T>
struct IsNanElement {
  const T* x;
  bool* y;
  __device__ void operator()(int64_t i) const {
    const Math<T> value = load_number(x[i]);
    y[i] = value != value;
  }
};

template <class T>
struct IsInfElement {
  const T* x;
  bool* y;
  bool negative, positive;
  __device__ void operator()(int64_t i) const {
    const Math<T> value = load_number(x[i]);
    const Math<T> infinity = INFINITY;
    y[i] = (positive && value == infinity) || (negative && value == -infinity);
  }
};

std::string unfit_test(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  return call.outputs[0].dtype == DType::kBool ? "" : "the result is not bool";
}

Prepared prepare_not(const KernelCall& call) {
  if (std::string why = unfit_test(call); !why.empty()) return Prepared::no(why);
  if (call.inputs[0].dtype != DType::kBool) return Prepared::no("not bool");
  const auto body = [count = call.inputs[0].size()](const KernelBuffers& buffers) {
    for_each(stream_of(buffers), count, NotElement{buffers.in<bool>(0), buffers.out<bool>(0)});
  };
  return make_kernel(body, 0, [](size_t, size_t) { return true; });
}

Prepared prepare_is_nan(const KernelCall& call) {
  if (std::string why = unfit_test(call); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([count = call.inputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count, IsNanElement<T>{buffers.in<T>(0), buffers.out<bool>(0)});
    });
  });
}

Prepared prepare_is_inf(const KernelCall& call) {
  if (std::string why = unfit_test(call); !why.empty()) return Prepared::no(why);
  const bool negative = attributes_of(call).get_int("detect_negative", 1) != 0;
  const bool positive = attributes_of(call).get_int("detect_positive", 1) != 0;
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return make_kernel([=, count = call.inputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               IsInfElement<T>{buffers.in<T>(0), buffers.out<bool>(0), negative, positive});
    });
  });
}

constexpr size_t kMostOperands = 16;

/// The operands of one fold, as a kernel's argument.
template <class T>
struct Operands {
  const T* at[kMostOperands];
  Strided<1> walks[kMostOperands];
  int count;
};

template <class Op, class T, bool kMean>
struct FoldElement {
  Operands<T> x;
  T* y;
  __device__ void operator()(int64_t i) const {
    Math<T> sum{};
    for (int k = 0; k < x.count; ++k) {
      int64_t offset[1];
      x.walks[k].offsets(i, offset);
      const Math<T> value = load_number(x.at[k][offset[0]]);
      sum = k == 0 ? value : Op::value(sum, value);
    }
    if (kMean) sum /= static_cast<Math<T>>(x.count);
    y[i] = store_number<T>(sum);
  }
};

template <class Op, class T, bool kMean>
Prepared fold_kernel(const KernelCall& call) {
  const auto operands = std::make_shared<Operands<T>>();
  operands->count = static_cast<int>(call.inputs.size());
  for (size_t k = 0; k < call.inputs.size(); ++k) {
    if (call.inputs[k].dtype != call.inputs[0].dtype) {
      return Prepared::no("operands of different types");
    }
    const Runs runs = cpu::plan_broadcast({call.inputs[k].shape}, call.outputs[0].shape);
    if (!as_strided(runs, operands->walks[k])) return Prepared::no(too_many_dims());
  }
  const auto body = [operands, count = call.outputs[0].size()](const KernelBuffers& buffers) {
    FoldElement<Op, T, kMean> fold{*operands, buffers.out<T>(0)};
    for (int k = 0; k < fold.x.count; ++k) {
      fold.x.at[k] = buffers.in<T>(static_cast<size_t>(k));
    }
    for_each(stream_of(buffers), count, fold);
  };
  return make_kernel(body, 0, [shares = cpu::is_elementwise(call, 0)](size_t input, size_t) {
    return input == 0 && shares;
  });
}

template <class Op, bool kMean = false>
Prepared prepare_fold(const KernelCall& call) {
  if (call.inputs.empty() || !call.has_output(0)) return Prepared::no("an operand is missing");
  if (call.inputs.size() > kMostOperands) {
    return Prepared::no("more than " + std::to_string(kMostOperands) + " operands");
  }
  return for_common_type(call.inputs[0].dtype, [&]<class T>() -> Prepared {
    if constexpr (std::is_same_v<T, bool>) {
      return Prepared::no("not for bool");
    } else {
      return fold_kernel<Op, T, kMean>(call);
    }
  });
}

}  // namespace

std::vector<KernelRow> logic_rows() {
  return {
      {"", "IsInf", "own.test", prepare_is_inf},
      {"", "IsNaN", "own.test", prepare_is_nan},
      {"", "Max", "own.fold", prepare_fold<math::Max>},
      {"", "Mean", "own.fold", prepare_fold<math::Add, true>},
      {"", "Min", "own.fold", prepare_fold<math::Min>},
      {"", "Not", "own.test", prepare_not},
      {"", "Sum", "own.fold", prepare_fold<math::Add>},
  };
}

}  // namespace halfnote::HN_CUDA
