// Not, IsNaN, IsInf and unary ops on integers, an element a thread; and Max, Min, Sum and Mean of
// any number of operands that broadcast, folded one by one.
#include "kernels/cpu/elementwise/broadcast.h"
#include "kernels/cpu/elementwise/unary.h"
#include "kernels/cpu/reals.h"
#include "kernels/cuda/any_number.h"
#include "kernels/cuda/elementwise/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/math/binary.h"
#include "kernels/math/integer.h"

namespace halfnote::HN_CUDA {

namespace {

struct NotElement {
  const bool* x;
  bool* y;
  __device__ void operator()(int64_t i) const { y[i] = !x[i]; }
};

template <class M>
struct IsNanElement {
  RealPointer x;
  bool* y;
  __device__ void operator()(int64_t i) const {
    const M value = x.load<M>(i);
    y[i] = value != value;
  }
};

template <class M>
struct IsInfElement {
  RealPointer x;
  bool* y;
  bool negative, positive;
  __device__ void operator()(int64_t i) const {
    const M value = x.load<M>(i), infinity = INFINITY;
    y[i] = (positive && value == infinity) || (negative && value == -infinity);
  }
};

/// Unary ops on integers, chosen when the kernel runs: two kernels for all of them.
enum class IntegerOp : uint8_t { kAbs, kComplement, kNeg, kRelu, kSign };

template <class C>
struct IntegerElement {
  NumberPointer<C> x;
  NumberOutput<C> y;
  IntegerOp op;
  __device__ void operator()(int64_t i) const { y.write(i, value(x[i])); }
  __device__ C value(C at) const {
    switch (op) {
      case IntegerOp::kAbs:
        return math::IntegerAbs::value(at);
      case IntegerOp::kComplement:
        return math::Complement::value(at);
      case IntegerOp::kNeg:
        return math::IntegerNeg::value(at);
      case IntegerOp::kRelu:
        return math::IntegerRelu::value(at);
      default:
        return math::IntegerSign::value(at);
    }
  }
};

template <class C>
Prepared integer_kernel(const KernelCall& call, IntegerOp op) {
  const auto body = [=, dtype = call.inputs[0].dtype,
                     count = call.inputs[0].size()](const KernelBuffers& buffers) {
    for_each(stream_of(buffers), count,
             IntegerElement<C>{{buffers.inputs[0], dtype}, {buffers.outputs[0], dtype}, op});
  };
  return make_kernel(body, 0, [](size_t, size_t) { return true; });
}

template <IntegerOp kOp>
Prepared prepare_integer(const KernelCall& call) {
  if (std::string why = cpu::uneven_unary(call, 1); !why.empty()) return Prepared::no(why);
  const DType dtype = call.inputs[0].dtype;
  if (!is_whole(dtype)) return Prepared::no("no integer type: " + std::string(short_name(dtype)));
  return dtype == DType::kU64 ? integer_kernel<uint64_t>(call, kOp)
                              : integer_kernel<int64_t>(call, kOp);
}

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
  const DType dtype = call.inputs[0].dtype;
  return cpu::for_math_type(dtype, [&]<class M>() {
    return make_kernel([=, count = call.inputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               IsNanElement<M>{{buffers.inputs[0], dtype}, buffers.out<bool>(0)});
    });
  });
}

Prepared prepare_is_inf(const KernelCall& call) {
  if (std::string why = unfit_test(call); !why.empty()) return Prepared::no(why);
  const bool negative = attributes_of(call).get_int("detect_negative", 1) != 0;
  const bool positive = attributes_of(call).get_int("detect_positive", 1) != 0;
  const DType dtype = call.inputs[0].dtype;
  return cpu::for_math_type(dtype, [&]<class M>() {
    return make_kernel([=, count = call.inputs[0].size()](const KernelBuffers& buffers) {
      for_each(
          stream_of(buffers), count,
          IsInfElement<M>{{buffers.inputs[0], dtype}, buffers.out<bool>(0), negative, positive});
    });
  });
}

constexpr size_t kMostOperands = 16;  // of a launch

/// The operands of one launch, as a kernel's argument.
struct Operands {
  const void* at[kMostOperands];
  Strided<1> walks[kMostOperands];
  int count;
};

/// Takes the operands of a launch in. Of several launches all but the last leave what they have in
/// `sums`.
template <class Op, class C, bool kMean>
struct FoldElement {
  Operands x;
  NumberOutput<C> y;
  C* sums;
  int before, of;  // operands of earlier launches, and of all
  __device__ void operator()(int64_t i) const {
    C sum = before == 0 ? C{} : sums[i];
    for (int k = 0; k < x.count; ++k) {
      int64_t offset[1];
      x.walks[k].offsets(i, offset);
      const C value = NumberPointer<C>{x.at[k], y.dtype}[offset[0]];
      sum = before + k == 0 ? value : Op::value(sum, value);
    }
    if (before + x.count < of) {
      sums[i] = sum;
      return;
    }
    if constexpr (kMean) {
      if constexpr (std::is_integral_v<C>) sum = wrapped(sum, y.dtype);
      sum /= static_cast<C>(of);
    }
    y.write(i, sum);
  }
};

/// The launches of a fold; a reason if one has too many dims.
std::string plan_fold(const KernelCall& call, std::vector<Operands>& launches) {
  for (size_t k = 0; k < call.inputs.size(); ++k) {
    if (call.inputs[k].dtype != call.inputs[0].dtype) return "operands of different types";
    if (k % kMostOperands == 0) launches.emplace_back();
    Operands& last = launches.back();
    const Runs runs = cpu::plan_broadcast({call.inputs[k].shape}, call.outputs[0].shape);
    if (!as_strided(runs, last.walks[k % kMostOperands])) return too_many_dims();
    last.count = static_cast<int>(k % kMostOperands) + 1;
  }
  return {};
}

template <class Op, class C, bool kMean>
Prepared fold_kernel(const KernelCall& call) {
  std::vector<Operands> launches;
  if (std::string why = plan_fold(call, launches); !why.empty()) return Prepared::no(why);
  const int64_t count = call.outputs[0].size();
  const size_t workspace = launches.size() > 1 ? static_cast<size_t>(count) * sizeof(C) : 0;
  const auto body = [launches = std::move(launches), dtype = call.inputs[0].dtype, count,
                     of = call.inputs.size()](const KernelBuffers& buffers) {
    size_t before = 0;
    for (const Operands& operands : launches) {
      FoldElement<Op, C, kMean> fold{operands,
                                     {buffers.outputs[0], dtype},
                                     reinterpret_cast<C*>(buffers.workspace),
                                     static_cast<int>(before),
                                     static_cast<int>(of)};
      for (int k = 0; k < operands.count; ++k) fold.x.at[k] = buffers.inputs[before++];
      for_each(stream_of(buffers), count, fold);
    }
  };
  return make_kernel(body, workspace,
                     [shares = cpu::is_elementwise(call, 0)](size_t input, size_t) {
                       return input == 0 && shares;
                     });
}

template <class Op, bool kMean = false>
Prepared prepare_fold(const KernelCall& call) {
  if (call.inputs.empty() || !call.has_output(0)) return Prepared::no("an operand is missing");
  const DType dtype = call.inputs[0].dtype;
  if (dtype == DType::kBool) return Prepared::no("not for bool");
  return for_computed_type(dtype, [&]<class C>() { return fold_kernel<Op, C, kMean>(call); });
}

}  // namespace

std::vector<KernelRow> logic_rows() {
  return {
      {"", "Abs", "own.integer", prepare_integer<IntegerOp::kAbs>},
      {"", "BitwiseNot", "own.integer", prepare_integer<IntegerOp::kComplement>},
      {"", "IsInf", "own.test", prepare_is_inf},
      {"", "IsNaN", "own.test", prepare_is_nan},
      {"", "Max", "own.fold", prepare_fold<math::Max>},
      {"", "Mean", "own.fold", prepare_fold<math::Add, true>},
      {"", "Min", "own.fold", prepare_fold<math::Min>},
      {"", "Neg", "own.integer", prepare_integer<IntegerOp::kNeg>},
      {"", "Not", "own.test", prepare_not},
      {"", "Relu", "own.integer", prepare_integer<IntegerOp::kRelu>},
      {"", "Sign", "own.integer", prepare_integer<IntegerOp::kSign>},
      {"", "Sum", "own.fold", prepare_fold<math::Add>},
  };
}

}  // namespace halfnote::HN_CUDA
