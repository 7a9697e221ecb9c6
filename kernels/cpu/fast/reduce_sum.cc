// ReduceSum and ReduceMean of small floats (the gradients of biases, mostly): the plan, the units
// and the order of every sum are those of the reference (reduction/reduce.cc), sums are in f64, so
// the bits are the same; the loops are written with vectors, for AVX-512 too.
#include <array>

#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/fast/reduction/loops.h"
#include "kernels/cpu/reduction/plan.h"

namespace halfnote::cpu::fast {

namespace {

constexpr int64_t kLanes = ReduceLoops::kLanes;
constexpr int64_t kRows = 4;  // taken into the column sums at once

using Floats = float __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
using Doubles = double __attribute__((vector_size(8 * kLanes), aligned(8), may_alias));

/// Rows in f32, and those that come next, in elements as they are stored: asked for while these are
/// added. Pieces of rows are too short for the processor to foresee them, and cost three times as
/// much unasked; asked for all at once, they are waited for.
struct Rows {
  std::array<const float*, kRows> at{};
  std::array<const std::byte*, kRows> soon{};
  int64_t soon_bytes = 0;  // of an element
};

[[gnu::always_inline]] inline void add_rows_loop(const Rows& from, int64_t count, int64_t n,
                                                 double* sums) {
  const float* const* rows = from.at.data();
  int64_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (const std::byte* soon : from.soon) __builtin_prefetch(soon + j * from.soon_bytes);
    Doubles sum = *reinterpret_cast<const Doubles*>(sums + j);
    for (int64_t r = 0; r < count; ++r) {
      sum += __builtin_convertvector(*reinterpret_cast<const Floats*>(rows[r] + j), Doubles);
    }
    *reinterpret_cast<Doubles*>(sums + j) = sum;
  }
  for (; j < n; ++j) {
    for (int64_t r = 0; r < count; ++r) sums[j] += static_cast<double>(rows[r][j]);
  }
}

struct SumLoops {
  /// Adds `count` rows of n elements to n sums, row by row.
  void (*add_rows)(const Rows& rows, int64_t count, int64_t n, double* sums);
};

constexpr SumLoops kBaselineLoops = {
    [](const Rows& rows, int64_t count, int64_t n, double* sums) {
      add_rows_loop(rows, count, n, sums);
    },
};

#if defined(__x86_64__)
[[gnu::target("avx512f,avx512dq,avx512vl")]] void add_rows_avx512(const Rows& rows, int64_t count,
                                                                  int64_t n, double* sums) {
  add_rows_loop(rows, count, n, sums);
}

constexpr SumLoops kAvx512Loops = {add_rows_avx512};
#endif

const SumLoops& sum_loops() {
#if defined(__x86_64__)
  if (vector_isa() == VectorIsa::kAvx512) return kAvx512Loops;
#endif
  return kBaselineLoops;
}

/// One result from the positions [begin, end) of its reduced runs, which are adjacent elements.
template <class T>
double sum_one(const ReducePlan& plan, const T* x, int64_t begin, int64_t end) {
  alignas(64) std::array<double, kLanes> lanes{};
  std::array<float, kChunk> room;
  double sum = 0;
  walk_runs<1>(plan.reduced, begin, end, [&](int64_t, const auto& offset, int64_t length) {
    for (int64_t from = 0; from < length; from += kChunk) {
      const int64_t n = std::min(kChunk, length - from);
      const float* run = load_block(x + offset[0] + from, n, room.data());
      sum = reduce_loops().add_run(run, n, lanes.data());
    }
  });
  return sum;
}

/// `count` adjacent results: every reduced position gives one row of elements.
template <class T>
void sum_columns(const ReducePlan& plan, const T* x, int64_t count, int64_t begin, int64_t end,
                 const SumLoops& loops, double* sums) {
  std::fill_n(sums, count, 0.0);
  const int64_t step = plan.reduced.step(0);
  std::array<std::array<float, ReducePlan::kColumns>, kRows> room;
  Rows rows;
  rows.soon_bytes = sizeof(T);
  walk_runs<1>(plan.reduced, begin, end, [&](int64_t, const auto& offset, int64_t length) {
    for (int64_t i = 0; i < length; i += kRows) {
      const int64_t some = std::min(kRows, length - i);
      for (int64_t r = 0; r < kRows; ++r) {
        const T* soon = x + offset[0] + std::min(i + kRows + r, length - 1) * step;
        rows.soon[r] = reinterpret_cast<const std::byte*>(soon);
      }
      for (int64_t r = 0; r < some; ++r)
        rows.at[r] = load_block(x + offset[0] + (i + r) * step, count, room[r].data());
      loops.add_rows(rows, some, count, sums);
    }
  });
}

/// `count`: what the sums are divided by.
template <class T, class U>
Prepared sum_kernel(const KernelCall& call, const ReducePlan& plan, int64_t count) {
  const size_t workspace = static_cast<size_t>(plan.results() * plan.blocks) * sizeof(double);
  const auto body = [plan, divisor = static_cast<double>(count),
                     threads = call.threads](const KernelBuffers& buffers) {
    const SumLoops& loops = sum_loops();
    double* partials = reinterpret_cast<double*>(buffers.workspace);
    run_reduce_units(plan, partials, threads,
                     [&](int64_t row, int64_t column, int64_t width, int64_t begin, int64_t end,
                         double* partial) {
                       const T* x = buffers.in<T>(0) + outer_offset(plan, row) + column;
                       if (plan.width == 1) {
                         *partial = sum_one(plan, x, begin, end);
                       } else {
                         sum_columns(plan, x, width, begin, end, loops, partial);
                       }
                     });
    const int64_t results = plan.results();
    for (int64_t i = 0; i < results; ++i) {
      double sum = partials[i];
      for (int64_t block = 1; block < plan.blocks; ++block) sum += partials[block * results + i];
      buffers.out<U>(0)[i] = store<U>(static_cast<float>(sum / divisor));
    }
  };
  return make_kernel(body, workspace);
}

template <bool is_mean>
Prepared prepare_sum(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const DType from = call.inputs[0].dtype, to = call.outputs[0].dtype;
  if (from != to && (call.domain.empty() || to != DType::kF32))
    return Prepared::no("operands of different types");
  std::set<int64_t> axes;
  if (std::string why = read_reduce_axes(call, axes); !why.empty()) return Prepared::no(why);
  const ReducePlan plan = plan_reduce(call.inputs[0].shape, axes);
  check_reduced_shape(call, plan);
  if (plan.width == 1 && plan.reduced.count > 1 && plan.reduced.step(0) != 1)
    return Prepared::no("single elements far from each other");
  const int64_t count = is_mean ? plan.reduced.count : 1;
  if (count == 0) return Prepared::no("a mean of nothing");
  return for_small_float(from, [&]<class T>() {
    return from == to ? sum_kernel<T, T>(call, plan, count)
                      : sum_kernel<T, float>(call, plan, count);
  });
}

}  // namespace

std::vector<KernelRow> reduce_sum_rows() {
  return {{"", "ReduceSum", "fast.reduce_sum", prepare_sum<false>},
          {"", "ReduceMean", "fast.reduce_sum", prepare_sum<true>},
          {"ai.halfnote", "ReduceSum", "fast.reduce_sum", prepare_sum<false>}};
}

}  // namespace halfnote::cpu::fast
