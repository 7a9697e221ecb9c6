// Reduce* over the last axes and the global pools, on f32, f16 and bf16: rows that lie in one
// piece, many of them at once. Sums have the bits of the reference. What is reduced over other
// axes, or in rows of more than one unit of the reference, is for the rows behind these.
#include <cmath>

#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/fast/reduction/loops.h"
#include "kernels/cpu/pointwise/loops.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/plan.h"
#include "kernels/math/reduce.h"

namespace halfnote::cpu::fast {

namespace {

/// Elements of a block of rows, about.
constexpr int64_t kElements = 4096;

/// The rows of a tensor.
struct Rows {
  int64_t count = 0, length = 0;
  int64_t together = 1;  // of a block

  size_t room() const { return aligned(static_cast<size_t>(together * length) * sizeof(float)); }
};

struct Reduction {
  ReduceLoops::Rows ReduceLoops::*rows = nullptr;
  /// Turns the accumulators of rows of `length` elements into their results.
  void (*finish)(double* y, int64_t rows, int64_t length) = nullptr;
};

template <class R>
void finish(double* y, int64_t rows, int64_t length) {
  using Accumulator = typename R::template A<float>;
  for (int64_t i = 0; i < rows; ++i) {
    const float result = R::template finish<float>(static_cast<Accumulator>(y[i]), length, {});
    y[i] = static_cast<double>(result);
  }
}

/// `reduce(x, rows, y)` for blocks of rows in f32; y is then rounded to U.
template <class T, class U, class Reduce>
Prepared rows_kernel(const KernelCall& call, const Rows& rows, const Reduce& reduce) {
  const int64_t blocks = (rows.count + rows.together - 1) / rows.together;
  const int64_t grain = std::max<int64_t>(1, (blocks + call.threads - 1) / call.threads);
  const size_t x_room = std::is_same_v<T, float> ? 0 : rows.room();
  const size_t y_room = aligned(static_cast<size_t>(rows.together) * sizeof(double));
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    parallel_blocks(blocks, grain, threads, [&](int64_t begin, int64_t end) {
      std::byte* scratch =
          buffers.workspace + static_cast<size_t>(begin / grain) * (x_room + y_room);
      auto* y = reinterpret_cast<double*>(scratch + x_room);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * rows.together;
        const int64_t count = std::min(rows.together, rows.count - first);
        const float* x = load_block(buffers.in<T>(0) + first * rows.length, count * rows.length,
                                    reinterpret_cast<float*>(scratch));
        reduce(x, count, y);
        U* to = buffers.out<U>(0) + first;
        for (int64_t i = 0; i < count; ++i) to[i] = store<U>(static_cast<float>(y[i]));
      }
    });
  };
  return make_kernel(body, (x_room + y_room) * static_cast<size_t>(call.threads));
}

/// log Σ exp(x) with the maximum taken out. Where that is not finite it is the result.
void log_sum_exp(const float* x, int64_t rows, int64_t length, double* y) {
  const pointwise::Loops& loops = *pointwise::vector_loops();
  reduce_loops().maximum(x, rows, length, y);
  for (int64_t row = 0; row < rows; ++row) {
    if (!std::isfinite(y[row])) continue;
    const double sum = loops.sum_exponentials(x + row * length, length, static_cast<float>(y[row]));
    y[row] += std::log(sum);
  }
}

/// The rows of a call that reduces `axes`; the reason why it has none, or an empty string.
std::string plan_rows(const KernelCall& call, const std::set<int64_t>& axes, Rows& rows) {
  const Shape& shape = call.inputs[0].shape;
  const ReducePlan plan = plan_reduce(shape, axes);
  check_reduced_shape(call, plan);
  rows.count = plan.results();
  rows.length = plan.reduced.count;
  if (rows.count == 0 || rows.length == 0) return "no elements";
  if (rows.length > ReducePlan::kUnit) return "rows of several units";
  bool is_reduced = false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    if (is_reduced && !axes.contains(static_cast<int64_t>(d))) return "not the last axes";
    is_reduced = axes.contains(static_cast<int64_t>(d));
  }
  rows.together = std::max<int64_t>(1, kElements / rows.length);
  return {};
}

template <class T, class U>
Prepared reduction_kernel(const KernelCall& call, const Rows& rows, const Reduction& reduction) {
  return rows_kernel<T, U>(call, rows, [=](const float* x, int64_t count, double* y) {
    (reduce_loops().*reduction.rows)(x, count, rows.length, y);
    reduction.finish(y, count, rows.length);
  });
}

std::string unfit_operands(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  const DType from = call.inputs[0].dtype, to = call.outputs[0].dtype;
  const bool widens = !call.domain.empty() && to == DType::kF32;  // our own sum
  return from == to || widens ? "" : "operands of different types";
}

Prepared prepare_rows(const KernelCall& call, const std::set<int64_t>& axes,
                      const Reduction& reduction) {
  Rows rows;
  if (std::string why = plan_rows(call, axes, rows); !why.empty()) return Prepared::no(why);
  const bool same = call.inputs[0].dtype == call.outputs[0].dtype;
  return for_small_float(call.inputs[0].dtype, [&]<class T>() {
    return same ? reduction_kernel<T, T>(call, rows, reduction)
                : reduction_kernel<T, float>(call, rows, reduction);
  });
}

template <class R, ReduceLoops::Rows ReduceLoops::*kRows>
Prepared prepare_reduce(const KernelCall& call) {
  if (std::string why = unfit_operands(call); !why.empty()) return Prepared::no(why);
  std::set<int64_t> axes;
  if (std::string why = read_reduce_axes(call, axes); !why.empty()) return Prepared::no(why);
  return prepare_rows(call, axes, {kRows, finish<R>});
}

template <class R, ReduceLoops::Rows ReduceLoops::*kRows>
Prepared prepare_global_pool(const KernelCall& call) {
  if (std::string why = unfit_operands(call); !why.empty()) return Prepared::no(why);
  std::set<int64_t> axes;
  for (size_t d = 2; d < call.inputs[0].shape.size(); ++d) axes.insert(static_cast<int64_t>(d));
  return prepare_rows(call, axes, {kRows, finish<R>});
}

Prepared prepare_log_sum_exp(const KernelCall& call) {
  if (std::string why = unfit_operands(call); !why.empty()) return Prepared::no(why);
  if (!pointwise::vector_loops()) return Prepared::no("no vector instructions");
  std::set<int64_t> axes;
  if (std::string why = read_reduce_axes(call, axes); !why.empty()) return Prepared::no(why);
  Rows rows;
  if (std::string why = plan_rows(call, axes, rows); !why.empty()) return Prepared::no(why);
  return for_small_float(call.inputs[0].dtype, [&]<class T>() {
    return rows_kernel<T, T>(call, rows, [=](const float* x, int64_t count, double* y) {
      log_sum_exp(x, count, rows.length, y);
    });
  });
}

}  // namespace

std::vector<KernelRow> reduce_rows() {
  using namespace math::reduce;
  using Loops = ReduceLoops;
  constexpr std::string_view kName = "fast.reduce_rows";
  return {
      {"", "GlobalAveragePool", kName, prepare_global_pool<ReduceMean, &Loops::sum>},
      {"", "GlobalMaxPool", kName, prepare_global_pool<ReduceMax, &Loops::maximum>},
      {"", "ReduceL1", kName, prepare_reduce<ReduceL1, &Loops::sum_sizes>},
      {"", "ReduceL2", kName, prepare_reduce<ReduceL2, &Loops::sum_squares>},
      {"", "ReduceLogSumExp", kName, prepare_log_sum_exp},
      {"", "ReduceMax", kName, prepare_reduce<ReduceMax, &Loops::maximum>},
      {"", "ReduceMean", kName, prepare_reduce<ReduceMean, &Loops::sum>},
      {"", "ReduceMin", kName, prepare_reduce<ReduceMin, &Loops::minimum>},
      {"", "ReduceProd", kName, prepare_reduce<ReduceProd, &Loops::product>},
      {"", "ReduceSum", kName, prepare_reduce<ReduceSum, &Loops::sum>},
      {"", "ReduceSumSquare", kName, prepare_reduce<ReduceSumSquare, &Loops::sum_squares>},
      {"ai.halfnote", "ReduceSum", kName, prepare_reduce<ReduceSum, &Loops::sum>},
  };
}

}  // namespace halfnote::cpu::fast
