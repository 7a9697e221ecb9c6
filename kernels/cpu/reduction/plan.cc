// Splits the dims of a reduction into kept and reduced ones and cuts the work into units.
#include "kernels/cpu/reduction/plan.h"

#include "base/error.h"

namespace halfnote::cpu {

namespace {

/// Units of about kUnit elements, or of as many rows but more columns: long pieces of a row are
/// read faster, and which rows are summed first does not change. A reduction without positions
/// still has one unit, which writes the neutral element.
void cut_units(ReducePlan& plan) {
  plan.columns = std::max<int64_t>(1, std::min(plan.width, ReducePlan::kColumns));
  plan.column_blocks = (plan.width + plan.columns - 1) / plan.columns;
  plan.block =
      std::max<int64_t>(1, ReducePlan::kUnit / std::min(plan.columns, ReducePlan::kUnitColumns));
  plan.blocks = std::max<int64_t>(1, (plan.reduced.count + plan.block - 1) / plan.block);
}

}  // namespace

ReducePlan plan_reduce(const Shape& shape, const std::set<int64_t>& axes) {
  const Shape strides = strides_of(shape);
  Shape kept, kept_strides, reduced, reduced_strides;
  for (size_t d = 0; d < shape.size(); ++d) {
    const bool is_reduced = axes.contains(static_cast<int64_t>(d));
    (is_reduced ? reduced : kept).push_back(shape[d]);
    (is_reduced ? reduced_strides : kept_strides).push_back(strides[d]);
  }
  ReducePlan plan;
  // The innermost kept dims form a row if no reduced dim larger than 1 lies within or behind them.
  while (!kept.empty() && (kept.back() == 1 || kept_strides.back() == plan.width)) {
    plan.width *= kept.back();
    kept.pop_back();
    kept_strides.pop_back();
    if (plan.width == 0) break;
  }
  plan.outer = plan_runs(kept, {kept_strides});
  plan.reduced = plan_runs(reduced, {reduced_strides});
  cut_units(plan);
  return plan;
}

std::string read_reduce_axes(const KernelCall& call, std::set<int64_t>& axes) {
  const Attributes& attributes = attributes_of(call);
  std::vector<int64_t> given = attributes.get_ints("axes");
  if (call.has_input(1)) {
    if (!call.inputs[1].constant) return "axes are not known before the first step";
    given = call.inputs[1].constant->to_ints();
  }
  const auto rank = static_cast<int64_t>(call.inputs[0].shape.size());
  for (const int64_t axis : given) axes.insert(normalize_axis(axis, rank));
  if (given.empty() && attributes.get_int("noop_with_empty_axes", 0) == 0) {
    for (int64_t d = 0; d < rank; ++d) axes.insert(d);
  }
  return {};
}

void check_reduced_shape(const KernelCall& call, const ReducePlan& plan) {
  if (call.outputs[0].size() == plan.results()) return;
  throw Error(ErrorCode::kModel, "wrong output shape")
      .at({.op = std::string(call.op)})
      .expected(std::to_string(plan.results()) + " elements", to_string(call.outputs[0].shape));
}

}  // namespace halfnote::cpu
