// Reduce* over any axes, and the global pools. Floats are summed in f64 and rounded through f32 to
// their type; integers wrap around. Over no elements a reduction gives its neutral element, as ONNX
// says.
#include <cmath>

#include "base/error.h"
#include "kernels/cpu/reduction/parts.h"
#include "kernels/cpu/reduction/plan.h"
#include "kernels/math/reduce.h"

namespace halfnote::cpu {

namespace {

using math::reduce::ReduceL1;
using math::reduce::ReduceL2;
using math::reduce::ReduceLogSum;
using math::reduce::ReduceLogSumExp;
using math::reduce::ReduceMax;
using math::reduce::ReduceMean;
using math::reduce::ReduceMin;
using math::reduce::ReduceProd;
using math::reduce::ReduceSum;
using math::reduce::ReduceSumSquare;

constexpr int64_t kLanes = 8;

/// A reduction of elements of M with accumulators of A, as functions over rows: the walk around
/// them is compiled once for M and A, not once for each reduction.
template <class M, class A>
struct Steps {
  A neutral;
  bool shifted;
  /// A run of adjacent elements into kLanes interleaved accumulators.
  void (*run)(const M* x, int64_t count, A shift, A* lanes);
  /// One row of elements into one accumulator each.
  void (*row)(const M* x, int64_t count, const A* shifts, A* partial);
  /// to[i] takes from[i] in.
  void (*merge)(A* to, const A* from, int64_t count);
  M (*finish)(A acc, int64_t count, A shift);
};

template <class R, class M, class A>
void reduce_run(const M* x, int64_t count, A shift, A* lanes) {
  A own[kLanes];  // in registers: lanes may be anywhere, also among the elements
  std::copy_n(lanes, kLanes, own);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) own[k] = R::template step<M>(own[k], x[i + k], shift);
  }
  for (int64_t k = 0; i < count; ++i, ++k) own[k] = R::template step<M>(own[k], x[i], shift);
  std::copy_n(own, kLanes, lanes);
}

template <class R, class M, class A>
void reduce_row(const M* x, int64_t count, const A* shifts, A* partial) {
  for (int64_t i = 0; i < count; ++i) {
    partial[i] = R::template step<M>(partial[i], x[i], R::kShifted ? shifts[i] : A{});
  }
}

template <class R, class A>
void merge_results(A* to, const A* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = R::merge(to[i], from[i]);
}

template <class R, class M>
Steps<M, typename R::template A<M>> steps_of() {
  using A = typename R::template A<M>;
  return {R::template neutral<M>(), R::kShifted,         reduce_run<R, M, A>,
          reduce_row<R, M, A>,      merge_results<R, A>, R::template finish<M>};
}

/// The input: elements of some storage type, brought to math precision a chunk at a time.
template <class M>
struct Source {
  const std::byte* data = nullptr;
  int64_t element_size = 0;
  const M* (*load)(const std::byte* from, int64_t count, M* buffer) = nullptr;

  const M* read(int64_t at, int64_t count, M* buffer) const {
    return load(data + at * element_size, count, buffer);
  }
  Source at(int64_t offset) const { return {data + offset * element_size, element_size, load}; }
};

template <class T>
const Math<T>* load_bytes(const std::byte* from, int64_t count, Math<T>* buffer) {
  return load_block(reinterpret_cast<const T*>(from), count, buffer);
}

/// One result from the positions [begin, end) of its reduced runs.
template <class M, class A>
A reduce_one(const ReducePlan& plan, const Steps<M, A>& steps, const Source<M>& x, int64_t begin,
             int64_t end, A shift) {
  A lanes[kLanes];
  std::fill_n(lanes, kLanes, steps.neutral);
  const int64_t step = plan.reduced.step(0);
  M chunk[kChunk];
  walk_runs<1>(plan.reduced, begin, end, [&](int64_t, const auto& offset, int64_t length) {
    for (int64_t from = 0; from < length; from += kChunk) {
      const int64_t n = std::min(kChunk, length - from);
      const int64_t at = offset[0] + from * step;
      const M* run = chunk;
      if (step == 1) {
        run = x.read(at, n, chunk);
      } else {
        for (int64_t i = 0; i < n; ++i) chunk[i] = *x.read(at + i * step, 1, chunk + i);
      }
      steps.run(run, n, shift, lanes);
    }
  });
  for (int64_t half = kLanes / 2; half > 0; half /= 2) steps.merge(lanes, lanes + half, half);
  return lanes[0];
}

/// `count` adjacent results at once: every reduced position gives one row of elements.
template <class M, class A>
void reduce_columns(const ReducePlan& plan, const Steps<M, A>& steps, const Source<M>& x,
                    int64_t count, int64_t begin, int64_t end, const A* shifts, A* partial) {
  std::fill_n(partial, count, steps.neutral);
  const int64_t step = plan.reduced.step(0);
  M chunk[ReducePlan::kColumns];
  walk_runs<1>(plan.reduced, begin, end, [&](int64_t, const auto& offset, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      steps.row(x.read(offset[0] + i * step, count, chunk), count, shifts, partial);
    }
  });
}

/// Reduces into partial results, and merges those of one result into the first of them.
template <class M, class A>
void reduce_all(const ReducePlan& plan, const Steps<M, A>& steps, const Source<M>& x,
                const A* shifts, A* partials, int threads) {
  const auto unit = [&](int64_t row, int64_t column, int64_t count, int64_t begin, int64_t end,
                        A* partial) {
    const Source<M> from = x.at(outer_offset(plan, row) + column);
    const A* shift = steps.shifted ? shifts + row * plan.width + column : nullptr;
    if (plan.width == 1) {
      *partial = reduce_one<M, A>(plan, steps, from, begin, end, shift ? *shift : A{});
    } else {
      reduce_columns<M, A>(plan, steps, from, count, begin, end, shift, partial);
    }
  };
  run_reduce_units(plan, partials, threads, unit);
  const int64_t results = plan.results();
  for (int64_t block = 1; block < plan.blocks; ++block) {
    steps.merge(partials, partials + block * results, results);
  }
}

/// The maximum of each result as its shift, or 0 where it is not finite. Works in `scratch`.
template <class M, class A>
void find_shifts(const ReducePlan& plan, const Source<M>& x, A* scratch, A* shifts, int threads) {
  static_assert(sizeof(M) <= sizeof(A));
  M* largest = reinterpret_cast<M*>(scratch);
  reduce_all<M, M>(plan, steps_of<ReduceMax, M>(), x, nullptr, largest, threads);
  for (int64_t i = 0; i < plan.results(); ++i) {
    shifts[i] = std::isfinite(largest[i]) ? static_cast<A>(largest[i]) : A(0);
  }
}

/// Loads elements of the storage type, and saves them.
template <class M>
struct Storage {
  decltype(Source<M>::load) load;
  void (*save)(const M* from, int64_t count, std::byte* to);
};

/// The workspace holds the partial results and then, if any, the shifts.
template <class M, class A>
Prepared reduce_kernel(const KernelCall& call, const std::set<int64_t>& axes,
                       const Steps<M, A>& steps, Storage<M> storage) {
  const ReducePlan plan = plan_reduce(call.inputs[0].shape, axes);
  check_reduced_shape(call, plan);
  const auto results = static_cast<size_t>(plan.results());
  const size_t partials = results * static_cast<size_t>(plan.blocks);
  const size_t workspace = (partials + (steps.shifted ? results : 0)) * sizeof(A);
  const auto size = static_cast<int64_t>(size_of(call.inputs[0].dtype));
  const auto result_size = static_cast<int64_t>(size_of(call.outputs[0].dtype));
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    const Source<M> x = {buffers.inputs[0], size, storage.load};
    A* acc = reinterpret_cast<A*>(buffers.workspace);
    A* shifts = steps.shifted ? acc + partials : nullptr;
    if constexpr (std::is_floating_point_v<M>) {
      if (shifts) find_shifts<M, A>(plan, x, acc, shifts, threads);
    }
    reduce_all<M, A>(plan, steps, x, shifts, acc, threads);
    for (int64_t i = 0; i < plan.results(); ++i) {
      const M result = steps.finish(acc[i], plan.reduced.count, shifts ? shifts[i] : A{});
      storage.save(&result, 1, buffers.outputs[0] + i * result_size);
    }
  };
  return make_kernel(body, workspace);
}

template <class T>
void save_bytes(const Math<T>* from, int64_t count, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) reinterpret_cast<T*>(to)[i] = store<T>(from[i]);
}

template <class R, class T>
Prepared kernel_for(const KernelCall& call, const std::set<int64_t>& axes) {
  using M = Math<T>;
  return reduce_kernel(call, axes, steps_of<R, M>(), Storage<M>{load_bytes<T>, save_bytes<T>});
}

/// The reason why the operands do not fit, or an empty string.
std::string unfit_operands(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  return call.inputs[0].dtype == call.outputs[0].dtype ? "" : "operands of different types";
}

// The element types of a reduction: floats; also the wide integers; or all, for the maximum and
// minimum.
enum class Types { kFloats, kNumbers, kAll };

template <class T>
constexpr bool takes(Types types) {
  if (types == Types::kAll || !std::is_integral_v<T>) return true;
  return types == Types::kNumbers && sizeof(T) >= 4;
}

template <class R, Types kTypes>
Prepared prepare_reduce(const KernelCall& call) {
  if (std::string reason = unfit_operands(call); !reason.empty()) return Prepared::no(reason);
  std::set<int64_t> axes;
  if (std::string why = read_reduce_axes(call, axes); !why.empty()) return Prepared::no(why);
  return for_any_type(call.inputs[0].dtype, [&]<class T>() -> Prepared {
    if constexpr (takes<T>(kTypes)) {
      return kernel_for<R, T>(call, axes);
    } else {
      return Prepared::no("not for elements of type " + std::string(short_name(dtype_of<T>())));
    }
  });
}

/// Our own sum, which may write another float type than it reads.
Prepared prepare_own_sum(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  std::set<int64_t> axes;
  if (std::string why = read_reduce_axes(call, axes); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return for_float_type(call.outputs[0].dtype, [&]<class U>() -> Prepared {
      if constexpr (std::is_same_v<Math<T>, Math<U>>) {
        return reduce_kernel(call, axes, steps_of<ReduceSum, Math<T>>(),
                             Storage<Math<T>>{load_bytes<T>, save_bytes<U>});
      } else {
        return Prepared::no("f64 with a narrower type");
      }
    });
  });
}

/// Global pooling reduces all axes behind (N, C).
template <class R>
Prepared prepare_global_pool(const KernelCall& call) {
  if (std::string reason = unfit_operands(call); !reason.empty()) return Prepared::no(reason);
  std::set<int64_t> axes;
  for (size_t d = 2; d < call.inputs[0].shape.size(); ++d) axes.insert(static_cast<int64_t>(d));
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return kernel_for<R, T>(call, axes); });
}

}  // namespace

std::vector<KernelRow> reduce_rows() {
  return {
      {"", "GlobalAveragePool", "reference", prepare_global_pool<ReduceMean>},
      {"", "GlobalMaxPool", "reference", prepare_global_pool<ReduceMax>},
      {"", "ReduceL1", "reference", prepare_reduce<ReduceL1, Types::kNumbers>},
      {"", "ReduceL2", "reference", prepare_reduce<ReduceL2, Types::kFloats>},
      {"", "ReduceLogSum", "reference", prepare_reduce<ReduceLogSum, Types::kFloats>},
      {"", "ReduceLogSumExp", "reference", prepare_reduce<ReduceLogSumExp, Types::kFloats>},
      {"", "ReduceMax", "reference", prepare_reduce<ReduceMax, Types::kAll>},
      {"", "ReduceMean", "reference", prepare_reduce<ReduceMean, Types::kNumbers>},
      {"", "ReduceMin", "reference", prepare_reduce<ReduceMin, Types::kAll>},
      {"", "ReduceProd", "reference", prepare_reduce<ReduceProd, Types::kNumbers>},
      {"", "ReduceSum", "reference", prepare_reduce<ReduceSum, Types::kNumbers>},
      {"", "ReduceSumSquare", "reference", prepare_reduce<ReduceSumSquare, Types::kNumbers>},
      {"ai.halfnote", "ReduceSum", "reference", prepare_own_sum},
  };
}

}  // namespace halfnote::cpu
