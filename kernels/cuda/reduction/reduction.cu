// Reductions over any axes, in two stages and without atomics: each slice of the reduced positions
// leaves a partial result in the workspace, and a second kernel merges the slices in order. The
// order depends on the shapes alone, so the same bits come out on every run and every GPU. A
// shifted reduction (ReduceLogSumExp) finds the maxima first, in the same two stages.
#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/plan.h"
#include "kernels/cuda/channels_last/rows.h"
#include "kernels/cuda/columns.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/reduction/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/math/reduce.h"

namespace halfnote::HN_CUDA {

namespace {

namespace formulas = math::reduce;

constexpr int64_t kColumnSlice = 64;  // reduced positions of a thread
constexpr int64_t kRowSlice = 2048;   // and of a block
constexpr int64_t kMaxGridY = 65535;

template <class R>
constexpr bool kIsOrder =
    std::is_same_v<R, formulas::ReduceMax> || std::is_same_v<R, formulas::ReduceMin>;

struct ReduceShape {
  Strided<1> outer, reduced;
  int64_t width = 1, slice = 1, slices = 1;

  __host__ __device__ int64_t results() const { return outer.count * width; }
  /// Where result `i` begins in the input.
  __device__ int64_t start(int64_t i) const {
    int64_t offset[1];
    outer.offsets(i / width, offset);
    return offset[0] + i % width;
  }
  __device__ int64_t at(int64_t position) const {
    int64_t offset[1];
    reduced.offsets(position, offset);
    return offset[0];
  }
};

/// One result a thread: neighbours read neighbours where the kept dims are innermost.
template <class R, class X, class A>
__global__ void __launch_bounds__(kBlock)
    reduce_columns(X x, const A* shifts, A* parts, ReduceShape shape) {
  using M = typename X::M;
  const int64_t result = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (result >= shape.results()) return;
  const int64_t begin = int64_t{blockIdx.y} * shape.slice;
  const int64_t limit = begin + shape.slice;
  const int64_t end = limit < shape.reduced.count ? limit : shape.reduced.count;
  const int64_t from = shape.start(result);
  const A shift = R::kShifted ? shifts[result] : A{};
  A total = R::template neutral<M>();
  for (int64_t i = begin; i < end; ++i) {
    total = R::template step<M>(total, x[from + shape.at(i)], shift);
  }
  parts[int64_t{blockIdx.y} * shape.results() + result] = total;
}

template <class R>
struct MergeBy {
  template <class A>
  __device__ static A merge(A a, A b) {
    return R::merge(a, b);
  }
};

/// One result a block: its threads read neighbours where the reduced dims are innermost.
template <class R, class X, class A>
__global__ void __launch_bounds__(kBlock)
    reduce_rows(X x, const A* shifts, A* parts, ReduceShape shape) {
  using M = typename X::M;
  const int64_t begin = int64_t{blockIdx.y} * shape.slice;
  const int64_t limit = begin + shape.slice;
  const int64_t end = limit < shape.reduced.count ? limit : shape.reduced.count;
  for (int64_t result = blockIdx.x; result < shape.results(); result += gridDim.x) {
    const int64_t from = shape.start(result);
    const A shift = R::kShifted ? shifts[result] : A{};
    A total = R::template neutral<M>();
    for (int64_t i = begin + threadIdx.x; i < end; i += kBlock) {
      total = R::template step<M>(total, x[from + shape.at(i)], shift);
    }
    total = merge_block<MergeBy<R>, kBlock>(total);
    if (threadIdx.x == 0) parts[int64_t{blockIdx.y} * shape.results() + result] = total;
  }
}

/// The partial results of a reduction in M, a column for each result.
template <class R, class M, class A>
struct PartsOfSlices {
  using Sum = A;
  const A* parts;
  int64_t results;
  __device__ static A neutral() { return R::template neutral<M>(); }
  __device__ static A merge(A a, A b) { return R::merge(a, b); }
  __device__ A part(int64_t slice, int64_t result) const { return parts[slice * results + result]; }
};

template <class R, class T, class U, class A>
struct MergeSlices : PartsOfSlices<R, Math<T>, A> {
  const A* shifts;
  U* y;
  int64_t count;
  __device__ void finish(int64_t i, A total) const {
    y[i] =
        store_number<U>(R::template finish<Math<T>>(total, count, R::kShifted ? shifts[i] : A{}));
  }
};

/// Results of Integers. What wraps around has the low bits that it has in i64; a mean is of the sum
/// as it wraps in its type; the neutral element of an order is its outermost number in any type.
template <class R>
struct MergeIntegers : PartsOfSlices<R, int64_t, int64_t> {
  NumberOutput<int64_t> y;
  int64_t count, flip;
  __device__ void finish(int64_t i, int64_t total) const {
    if constexpr (std::is_same_v<R, formulas::ReduceMean>) {
      y.write(i, mean(wrapped(total, y.dtype)));
    } else if constexpr (kIsOrder<R>) {
      y.write(i, count == 0 ? neutral_of(y.dtype) : total ^ flip);
    } else {
      y.write(i, total);
    }
  }
  __device__ int64_t mean(int64_t total) const {
    if (count == 0) return 0;
    if (y.dtype != DType::kU64) return total / wrapped(count, y.dtype);
    return static_cast<int64_t>(static_cast<uint64_t>(total) / static_cast<uint64_t>(count));
  }
  __device__ static int64_t neutral_of(DType dtype) {
    const bool largest = std::is_same_v<R, formulas::ReduceMin>;
    if (dtype == DType::kBool) return largest ? 1 : 0;
    if (is_unsigned(dtype)) return largest ? -1 : 0;
    const auto bits = 8 * static_cast<int>(bytes_of(dtype));
    const auto top = static_cast<int64_t>(uint64_t{1} << (bits - 1));
    return largest ? ~top : top;  // its low bits are kept
  }
  __device__ static size_t bytes_of(DType dtype) {
    return dtype == DType::kI8 ? 1 : dtype == DType::kI16 ? 2 : dtype == DType::kI32 ? 4 : 8;
  }
};

/// The maximum as a shift, or 0 where it is not finite.
template <class M, class A>
struct FindShift : PartsOfSlices<formulas::ReduceMax, M, M> {
  A* shifts;
  __device__ void finish(int64_t i, M largest) const {
    shifts[i] = largest - largest == 0 ? static_cast<A>(largest) : A(0);
  }
};

/// The reason why the plan does not fit a kernel's arguments, or an empty string.
std::string shape_of(const cpu::ReducePlan& plan, ReduceShape& shape) {
  if (!as_strided(plan.outer, shape.outer) || !as_strided(plan.reduced, shape.reduced)) {
    return too_many_dims();
  }
  shape.width = plan.width;
  const int64_t positions = shape.reduced.count;
  shape.slice = plan.width > 1 ? kColumnSlice : kRowSlice;
  shape.slice = std::max(shape.slice, (positions + kMaxGridY - 1) / kMaxGridY);
  shape.slices = std::max<int64_t>(1, (positions + shape.slice - 1) / shape.slice);
  return {};
}

template <class R, class X, class A>
void run_slices(Stream& stream, const X& x, const A* shifts, A* parts, const ReduceShape& shape) {
  const int64_t results = shape.results();
  const auto slices = static_cast<unsigned>(shape.slices);
  if (shape.width > 1) {
    launch(stream, reduce_columns<R, X, A>, dim3(blocks_for(results, kBlock), slices), kBlock, 0, x,
           shifts, parts, shape);
  } else {
    const int64_t blocks = std::min<int64_t>(results, kMaxBlocks);
    launch(stream, reduce_rows<R, X, A>, dim3(static_cast<unsigned>(blocks), slices), kBlock, 0, x,
           shifts, parts, shape);
  }
}

/// On the shape as the operand lies.
cpu::ReducePlan plan_lying(const Operand& x, const std::set<int64_t>& axes) {
  if (!is_channels_last(x)) return cpu::plan_reduce(x.shape, axes);
  std::set<int64_t> lying;
  for (const int64_t axis : axes) {
    lying.insert(static_cast<int64_t>(lying_dim(static_cast<size_t>(axis), x.shape.size())));
  }
  return cpu::plan_reduce(lying_channels_last(x.shape), lying);
}

template <class R, class T, class U>
Prepared reduce_kernel(const KernelCall& call, const std::set<int64_t>& axes) {
  using A = typename R::template A<Math<T>>;
  const cpu::ReducePlan plan = plan_lying(call.inputs[0], axes);
  cpu::check_reduced_shape(call, plan);
  ReduceShape shape;
  if (std::string why = shape_of(plan, shape); !why.empty()) return Prepared::no(why);
  const auto parts_size = static_cast<size_t>(shape.results() * shape.slices) * sizeof(A);
  const auto body = [shape, parts_size](const KernelBuffers& buffers) {
    auto* parts = reinterpret_cast<A*>(buffers.workspace);
    auto* shifts = reinterpret_cast<A*>(buffers.workspace + parts_size);
    const int64_t results = shape.results();
    Stream& stream = stream_of(buffers);
    const Floats<T> x{buffers.in<T>(0)};
    if constexpr (R::kShifted) {
      using M = Math<T>;
      auto* largest = reinterpret_cast<M*>(parts);
      run_slices<formulas::ReduceMax, Floats<T>, M>(stream, x, nullptr, largest, shape);
      merge_columns(stream, FindShift<M, A>{{largest, results}, shifts}, results, shape.slices);
    }
    run_slices<R, Floats<T>, A>(stream, x, shifts, parts, shape);
    merge_columns(
        stream,
        MergeSlices<R, T, U, A>{{parts, results}, shifts, buffers.out<U>(0), shape.reduced.count},
        results, shape.slices);
  };
  const auto shifts_size = static_cast<size_t>(R::kShifted ? shape.results() : 0) * sizeof(A);
  return make_kernel(body, parts_size + shifts_size);
}

/// Of all integer types, and bool.
template <class R>
Prepared reduce_integers(const KernelCall& call, const std::set<int64_t>& axes) {
  const cpu::ReducePlan plan = plan_lying(call.inputs[0], axes);
  cpu::check_reduced_shape(call, plan);
  ReduceShape shape;
  if (std::string why = shape_of(plan, shape); !why.empty()) return Prepared::no(why);
  const DType dtype = call.inputs[0].dtype;
  const auto body = [=](const KernelBuffers& buffers) {
    auto* parts = reinterpret_cast<int64_t*>(buffers.workspace);
    const int64_t results = shape.results();
    const Integers x =
        Integers::of(buffers.inputs[0], dtype, kIsOrder<R> ? Use::kOrder : Use::kSum);
    run_slices<R, Integers, int64_t>(stream_of(buffers), x, nullptr, parts, shape);
    merge_columns(stream_of(buffers),
                  MergeIntegers<R>{
                      {parts, results}, {buffers.outputs[0], dtype}, shape.reduced.count, x.flip},
                  results, shape.slices);
  };
  return make_kernel(body, static_cast<size_t>(shape.results() * shape.slices) * sizeof(int64_t));
}

// The element types of a reduction: floats; also the wide integers; or all, as on the CPU.
enum class Types { kFloats, kNumbers, kAll };

bool takes(DType dtype, Types types) {
  if (types == Types::kAll) return is_whole(dtype) || dtype == DType::kBool;
  return types == Types::kNumbers && is_whole(dtype) && size_of(dtype) >= 4;
}

template <class R, Types kTypes = Types::kFloats>
Prepared prepare_reduce(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const DType dtype = call.inputs[0].dtype;
  if (dtype != call.outputs[0].dtype) return Prepared::no("operands of different types");
  std::set<int64_t> axes;
  if (std::string why = cpu::read_reduce_axes(call, axes); !why.empty()) return Prepared::no(why);
  if constexpr (kTypes != Types::kFloats) {
    if (takes(dtype, kTypes)) return reduce_integers<R>(call, axes);
  }
  if (!cpu::is_real(dtype)) {
    return Prepared::no("not for elements of type " + std::string(short_name(dtype)));
  }
  return for_float_type(dtype, [&]<class T>() { return reduce_kernel<R, T, T>(call, axes); });
}

/// |x| of u64 is x, where i64 has a sign.
Prepared prepare_l1(const KernelCall& call) {
  const bool is_u64 = call.has_input(0) && call.inputs[0].dtype == DType::kU64;
  return is_u64 ? prepare_reduce<formulas::ReduceSum, Types::kNumbers>(call)
                : prepare_reduce<formulas::ReduceL1, Types::kNumbers>(call);
}

/// Global pooling reduces all axes behind (N, C).
template <class R>
Prepared prepare_global_pool(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  if (call.inputs[0].dtype != call.outputs[0].dtype) {
    return Prepared::no("operands of different types");
  }
  std::set<int64_t> axes;
  for (size_t d = 2; d < call.inputs[0].shape.size(); ++d) axes.insert(static_cast<int64_t>(d));
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return reduce_kernel<R, T, T>(call, axes); });
}

/// Our own sum, which may write another float type than it reads.
Prepared prepare_own_sum(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  std::set<int64_t> axes;
  if (std::string why = cpu::read_reduce_axes(call, axes); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    return for_float_type(call.outputs[0].dtype, [&]<class U>() -> Prepared {
      if constexpr (std::is_same_v<Math<T>, Math<U>>) {
        return reduce_kernel<formulas::ReduceSum, T, U>(call, axes);
      } else {
        return Prepared::no("f64 with a narrower type");
      }
    });
  });
}

}  // namespace

std::vector<KernelRow> reduction_kernels() {
  std::vector<KernelRow> rows;
  for (const auto part : {pool_rows, along_rows, running_sum_rows, resize_rows, roi_align_rows}) {
    const std::vector<KernelRow> more = part();
    rows.insert(rows.end(), more.begin(), more.end());
  }
  const std::vector<KernelRow> reductions = {
      {"", "GlobalAveragePool", "own.reduce", prepare_global_pool<formulas::ReduceMean>},
      {"", "GlobalMaxPool", "own.reduce", prepare_global_pool<formulas::ReduceMax>},
      {"", "ReduceL1", "own.reduce", prepare_l1},
      {"", "ReduceL2", "own.reduce", prepare_reduce<formulas::ReduceL2>},
      {"", "ReduceLogSum", "own.reduce", prepare_reduce<formulas::ReduceLogSum>},
      {"", "ReduceLogSumExp", "own.reduce", prepare_reduce<formulas::ReduceLogSumExp>},
      {"", "ReduceMax", "own.reduce", prepare_reduce<formulas::ReduceMax, Types::kAll>},
      {"", "ReduceMean", "own.reduce", prepare_reduce<formulas::ReduceMean, Types::kNumbers>},
      {"", "ReduceMin", "own.reduce", prepare_reduce<formulas::ReduceMin, Types::kAll>},
      {"", "ReduceProd", "own.reduce", prepare_reduce<formulas::ReduceProd, Types::kNumbers>},
      {"", "ReduceSum", "own.reduce", prepare_reduce<formulas::ReduceSum, Types::kNumbers>},
      {"", "ReduceSumSquare", "own.reduce",
       prepare_reduce<formulas::ReduceSumSquare, Types::kNumbers>},
      {"ai.halfnote", "ReduceSum", "own.reduce", prepare_own_sum},
  };
  rows.insert(rows.end(), reductions.begin(), reductions.end());
  return rows;
}

}  // namespace halfnote::HN_CUDA
