// Reductions as formulas, written once for the CPU and for CUDA. M is the type that math on the
// elements is done in.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/math/binary.h"
#include "kernels/math/host_device.h"

namespace halfnote::math::reduce {

/// Sums of floats are kept in f64, of integers in their own type.
template <class M>
using Sum = std::conditional_t<std::is_floating_point_v<M>, double, M>;

// A reduction: `A<M>` what it accumulates in, `neutral`, `step` takes one element, `merge` another
// partial result, `finish` knows the number of elements. kShifted reductions subtract the maximum
// first.
struct SumBase {
  template <class M>
  using A = Sum<M>;
  static constexpr bool kShifted = false;
  template <class M>
  HN_HD static A<M> neutral() {
    return 0;
  }
  template <class M>
  HN_HD static A<M> step(A<M> acc, M x, A<M>) {
    return Add::value(acc, static_cast<A<M>>(x));
  }
  template <class Acc>
  HN_HD static Acc merge(Acc a, Acc b) {
    return Add::value(a, b);
  }
  template <class M>
  HN_HD static M finish(A<M> acc, int64_t, A<M>) {
    return static_cast<M>(acc);
  }
};

struct ReduceSum : SumBase {};

struct ReduceMean : SumBase {
  template <class M>
  HN_HD static M finish(A<M> acc, int64_t count, A<M>) {
    if constexpr (std::is_integral_v<M>) {
      return count == 0 ? M(0) : static_cast<M>(acc / static_cast<M>(count));
    } else {
      return static_cast<M>(acc / static_cast<double>(count));
    }
  }
};

struct ReduceSumSquare : SumBase {
  template <class M>
  HN_HD static A<M> step(A<M> acc, M x, A<M>) {
    const A<M> wide = static_cast<A<M>>(x);
    return Add::value(acc, Mul::value(wide, wide));
  }
};

struct ReduceL1 : SumBase {
  template <class M>
  HN_HD static A<M> step(A<M> acc, M x, A<M>) {
    const A<M> wide = static_cast<A<M>>(x);
    return Add::value(acc, x < 0 ? Sub::value(A<M>(0), wide) : wide);
  }
};

struct ReduceL2 : ReduceSumSquare {
  template <class M>
  HN_HD static M finish(A<M> acc, int64_t, A<M>) {
    return static_cast<M>(sqrt(static_cast<double>(acc)));
  }
};

struct ReduceLogSum : SumBase {
  template <class M>
  HN_HD static M finish(A<M> acc, int64_t, A<M>) {
    return static_cast<M>(log(static_cast<double>(acc)));
  }
};

struct ReduceLogSumExp : SumBase {
  static constexpr bool kShifted = true;
  template <class M>
  HN_HD static A<M> step(A<M> acc, M x, A<M> shift) {
    return acc + static_cast<A<M>>(exp(static_cast<double>(x) - static_cast<double>(shift)));
  }
  template <class M>
  HN_HD static M finish(A<M> acc, int64_t, A<M> shift) {
    return static_cast<M>(log(static_cast<double>(acc)) + static_cast<double>(shift));
  }
};

struct ReduceProd : SumBase {
  template <class M>
  HN_HD static A<M> neutral() {
    return 1;
  }
  template <class M>
  HN_HD static A<M> step(A<M> acc, M x, A<M>) {
    return Mul::value(acc, static_cast<A<M>>(x));
  }
  template <class Acc>
  HN_HD static Acc merge(Acc a, Acc b) {
    return Mul::value(a, b);
  }
};

template <class Op>
struct ReduceExtreme {
  template <class M>
  using A = M;
  static constexpr bool kShifted = false;
  template <class M>
  HN_HD static M neutral() {
    using Limits = std::numeric_limits<M>;
    constexpr bool kLargest = std::is_same_v<Op, Max>;
    if constexpr (Limits::has_infinity) {
      return kLargest ? -Limits::infinity() : Limits::infinity();
    } else {
      return kLargest ? Limits::lowest() : Limits::max();
    }
  }
  template <class M>
  HN_HD static M step(M acc, M x, M) {
    return Op::value(acc, x);
  }
  template <class M>
  HN_HD static M merge(M a, M b) {
    return Op::value(a, b);
  }
  template <class M>
  HN_HD static M finish(M acc, int64_t, M) {
    return acc;
  }
};

using ReduceMax = ReduceExtreme<Max>;
using ReduceMin = ReduceExtreme<Min>;

}  // namespace halfnote::math::reduce
