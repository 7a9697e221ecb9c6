// CumSum on f32, f16 and bf16, with the bits of the reference: sums in f64, one after another.
// Along the last axis a few rows are turned into columns, so that their sums run side by side;
// along others adjacent elements do anyway.
#include <array>

#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/fast/reduction/loops.h"
#include "kernels/cpu/reduction/along.h"

namespace halfnote::cpu::fast {

namespace {

constexpr int64_t kElements = 4096;  // of a block
constexpr int64_t kColumns = 512;    // of a block of lines along an outer axis
constexpr int64_t kFewRows = 4;      // are worth turning

using Room = std::array<float, kElements>;

/// Where part of an axis begins whose elements are summed after `done` others.
int64_t begin_of(const CumSumPlan& plan, int64_t done, int64_t count) {
  return plan.reverse ? plan.along.dim - done - count : done;
}

/// `rows` of `columns` elements, `step` apart, to or from a room without gaps.
template <class T>
void load_rows(const T* x, int64_t rows, int64_t columns, int64_t step, float* room) {
  if (columns == step) return void(load_block(x, rows * columns, room));
  for (int64_t row = 0; row < rows; ++row)
    load_block(x + row * step, columns, room + row * columns);
}

template <class T>
void store_rows(const float* room, int64_t rows, int64_t columns, int64_t step, T* y) {
  if (columns == step) return store_block(room, rows * columns, y);
  for (int64_t row = 0; row < rows; ++row)
    store_block(room + row * columns, columns, y + row * step);
}

/// running_sums(), in the order of the plan.
void sum_up(const CumSumPlan& plan, RunningRows rows, const float* x, double* sums, float* y) {
  const int64_t first = plan.reverse ? (rows.count - 1) * rows.step : 0;
  if (plan.reverse) rows.step = -rows.step;
  reduce_loops().running_sums(rows, x + first, sums, y + first);
}

/// Adjacent lines, of all elements along the axis.
template <class T>
void sum_lines(const CumSumPlan& plan, int64_t columns, const T* x, T* y) {
  const auto& [outer, dim, inner] = plan.along;
  [[maybe_unused]] Room room;
  std::array<double, kColumns> sums;
  std::fill_n(sums.begin(), columns, 0.0);
  const int64_t together = kElements / columns;
  for (int64_t done = 0; done < dim; done += together) {
    const int64_t rows = std::min(together, dim - done);
    const int64_t at = begin_of(plan, done, rows) * inner;
    if constexpr (std::is_same_v<T, float>) {
      sum_up(plan, {rows, columns, inner, plan.exclusive}, x + at, sums.data(), y + at);
    } else {
      load_rows(x + at, rows, columns, inner, room.data());
      sum_up(plan, {rows, columns, columns, plan.exclusive}, room.data(), sums.data(), room.data());
      store_rows(room.data(), rows, columns, inner, y + at);
    }
  }
}

/// At most kLine rows along the last axis.
template <class T>
void sum_rows(const CumSumPlan& plan, int64_t rows, const T* x, T* y) {
  constexpr int64_t kPart = kElements / kLine;
  const int64_t dim = plan.along.dim;
  [[maybe_unused]] Room room;
  Room turned;
  if (rows < kLine) turned.fill(0);
  std::array<double, kLine> sums{};
  for (int64_t done = 0; done < dim; done += kPart) {
    const int64_t count = std::min(kPart, dim - done);
    const int64_t at = begin_of(plan, done, count);
    const RunningRows columns{count, kLine, kLine, plan.exclusive};
    if constexpr (std::is_same_v<T, float>) {
      resize_loops().turn(x + at, rows, count, dim, turned.data(), kLine);
      sum_up(plan, columns, turned.data(), sums.data(), turned.data());
      resize_loops().turn(turned.data(), count, rows, kLine, y + at, dim);
    } else {
      load_rows(x + at, rows, count, dim, room.data());
      resize_loops().turn(room.data(), rows, count, count, turned.data(), kLine);
      sum_up(plan, columns, turned.data(), sums.data(), turned.data());
      resize_loops().turn(turned.data(), count, rows, kLine, room.data(), count);
      store_rows(room.data(), rows, count, dim, y + at);
    }
  }
}

template <class T>
Prepared kernel(const KernelCall& call, const CumSumPlan& plan) {
  const Along& along = plan.along;
  const int64_t inner = along.inner, dim = along.dim;
  const int64_t width = inner == 1 ? kLine : kColumns;  // lines of a unit
  const int64_t lines = inner == 1 ? along.outer : inner;
  const int64_t units = (lines + width - 1) / width;
  const int64_t grain = std::max<int64_t>(1, kElementGrain / (std::min(lines, width) * dim));
  const auto run = [=, threads = call.threads](const KernelBuffers& buffers) {
    const T* x = buffers.in<T>(0);
    T* y = buffers.out<T>(0);
    const auto last_axis = [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        int64_t line = unit * width;
        const int64_t line_end = std::min(lines, line + width);
        if (line_end - line >= kFewRows)
          sum_rows(plan, line_end - line, x + line * dim, y + line * dim);
        else
          for (; line < line_end; ++line) sum_lines(plan, 1, x + line * dim, y + line * dim);
      }
    };
    const auto other_axis = [&](int64_t begin, int64_t end) {
      for (int64_t unit = begin; unit < end; ++unit) {
        const int64_t column = unit % units * width;
        const int64_t at = unit / units * dim * inner + column;
        sum_lines(plan, std::min(width, inner - column), x + at, y + at);
      }
    };
    if (inner == 1) return parallel_blocks(units, grain, threads, last_axis);
    parallel_blocks(along.outer * units, grain, threads, other_axis);
  };
  return make_kernel(run, 0, [](size_t input, size_t) { return input == 0; });
}

Prepared prepare(const KernelCall& call) {
  CumSumPlan plan;
  if (std::string why = plan_cum_sum(call, plan); !why.empty()) return Prepared::no(why);
  if (plan.along.lines() * plan.along.dim == 0) return Prepared::no("no elements");
  if (call.outputs[0].dtype != call.inputs[0].dtype) return Prepared::no("mixed types");
  return for_small_float(call.inputs[0].dtype, [&]<class T>() { return kernel<T>(call, plan); });
}

}  // namespace

std::vector<KernelRow> cum_sum_rows() {
  return {
      {"", "CumSum", "fast.cum_sum", prepare},
  };
}

}  // namespace halfnote::cpu::fast
