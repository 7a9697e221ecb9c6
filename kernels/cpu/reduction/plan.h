// The geometry of a reduction over any set of axes, and the walk that carries it out.
//
// The result is a matrix: `outer` kept positions × `width` adjacent kept elements (width 1 where
// the innermost dim is reduced). The work is cut into units: a block of columns × a block of
// reduced positions, whose borders depend on the shapes alone. Each unit leaves partial results in
// the workspace and these are merged in order, so the result has the same bits on any number of
// threads.
#pragma once

#include <set>
#include <string>

#include "kernels/cpu/runs.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu {

struct ReducePlan {
  Runs outer;    // kept positions but for the innermost block, with their offsets in the input
  Runs reduced;  // the positions of one result, with their offsets
  int64_t width = 1;
  int64_t columns = 1;  // of a block, at most kColumns
  int64_t block = 1;    // reduced positions of a unit
  int64_t blocks = 1;   // units along the reduced positions, at least 1
  int64_t column_blocks = 1;

  static constexpr int64_t kColumns = 1024;
  /// Elements of a unit of so many columns, about: it decides which partial sums are taken.
  static constexpr int64_t kUnit = int64_t{1} << 15;
  static constexpr int64_t kUnitColumns = 256;

  int64_t results() const { return outer.count * width; }
  int64_t units() const { return outer.count * column_blocks * blocks; }
};

/// `axes` are within the rank of `shape`.
ReducePlan plan_reduce(const Shape& shape, const std::set<int64_t>& axes);

/// The axes of a Reduce* call, from input 1 or the attribute; the reason why they cannot be read,
/// or an empty string.
std::string read_reduce_axes(const KernelCall& call, std::set<int64_t>& axes);

/// Throws Error(kModel) if the output has another number of elements than the plan has results.
void check_reduced_shape(const KernelCall& call, const ReducePlan& plan);

/// Runs the units of `plan`. For unit results [column, column + count) of `row`, `body(row, column,
/// count, begin, end, partial)` reduces the positions [begin, end); `partial` is its place in the
/// workspace (elements of A).
template <class A, class Body>
void run_reduce_units(const ReducePlan& plan, A* workspace, int threads, Body&& body) {
  parallel_blocks(plan.units(), 1, threads, [&](int64_t unit, int64_t) {
    const int64_t block = unit % plan.blocks;
    const int64_t place = unit / plan.blocks;
    const int64_t row = place / plan.column_blocks;
    const int64_t column = place % plan.column_blocks * plan.columns;
    const int64_t count = std::min(plan.columns, plan.width - column);
    const int64_t begin = block * plan.block;
    const int64_t end = std::min(plan.reduced.count, begin + plan.block);
    body(row, column, count, begin, end,
         workspace + block * plan.results() + row * plan.width + column);
  });
}

/// The offset in the input of kept position `row`.
inline int64_t outer_offset(const ReducePlan& plan, int64_t row) {
  int64_t offset = 0;
  walk_runs<1>(plan.outer, row, row + 1, [&](int64_t, const auto& at, int64_t) { offset = at[0]; });
  return offset;
}

}  // namespace halfnote::cpu
