#include "kernels/cpu/contraction/recurrent/backward_plan.h"

#include <algorithm>

#include "kernels/cpu/contraction/recurrent/cells.h"

namespace halfnote::cpu {
namespace {

std::vector<DType> types_of(const std::vector<Operand>& operands, size_t count) {
  std::vector<DType> types(count, DType::kUndefined);
  for (size_t i = 0; i < operands.size() && i < count; ++i) types[i] = operands[i].dtype;
  return types;
}

std::vector<Side> sides_of(const BackwardCall& b) {
  const int64_t n = b.p.hidden, width = b.p.width();
  if (!b.gru()) return {{0, width, false}};
  if (b.p.r.linear_before_reset) return {{0, width, true}};
  return {{0, 2 * n, true}, {2 * n, n, true}};
}

/// The products of a call; the reason if one has no kernel. `bytes` is the largest workspace.
std::string prepare_products(const KernelCall& call, std::string_view only, DType math,
                             BackwardCall& b, size_t& bytes) {
  const RecurrentPlan& p = b.p;
  std::string refusal;
  const auto product = [&](const ProductShape& shape, DType out) {
    InnerProduct made = InnerProduct::prepare(shape, b.type, out, call.threads, only);
    if (!made.ready()) refusal = made.refusal();
    bytes = std::max(bytes, made.workspace_bytes());
    return made;
  };
  const auto out_type = [&](size_t index) {
    return call.has_output(index) ? call.outputs[index].dtype : math;
  };
  b.input_x = product({p.rows(), p.inputs, p.width()}, math);
  b.weight_w = product({p.width(), p.inputs, p.rows(), true, false}, out_type(1));
  for (const Side& side : b.sides) {
    b.product_back.push_back(product({p.batch, p.hidden, side.width}, math));
    b.weight_r.push_back(product({side.width, p.hidden, p.rows(), true, false}, out_type(2)));
  }
  return refusal;
}

}  // namespace

std::string lay_out_backward(const KernelCall& call, std::string_view only, DType math,
                             BackwardCall& b, WorkspacePlan& workspace) {
  const RecurrentPlan& p = b.p;
  b.slots = grad_slots(p.r.op);
  b.type = call.inputs[0].dtype;
  b.element = size_of(b.type);
  b.threads = call.threads;
  b.input_types = types_of(call.inputs, RecurrentGradSlots::kNone + 1);
  b.output_types = types_of(call.outputs, RecurrentGradSlots::kNone + 1);
  b.p_type = b.input_types[b.slots.p];
  b.sides = sides_of(b);
  size_t product_bytes = 0;
  if (std::string why = prepare_products(call, only, math, b, product_bytes); !why.empty()) {
    return why;
  }

  const auto in_math = [&](int64_t count) {
    return workspace.add(static_cast<size_t>(count) * size_of(math));
  };
  const auto in_type = [&](int64_t count) {
    return workspace.add(static_cast<size_t>(count) * b.element);
  };
  const int64_t cells = p.batch * p.hidden, all = p.rows() * p.hidden;
  if (p.r.batch_first) b.x = in_type(p.rows() * p.inputs);
  b.da = in_math(p.rows() * p.width());
  b.da_typed = b.type == math ? b.da : in_type(p.rows() * p.width());
  for (Side& side : b.sides) {
    side.math = side.own ? in_math(p.rows() * side.width) : b.da;
    side.typed = !side.own        ? b.da_typed
                 : b.type == math ? side.math
                                  : in_type(p.rows() * side.width);
  }
  b.old_state = in_type(all);
  if (b.resets_first()) {
    b.reset_state = in_type(all);
    b.reset_back = in_math(cells);
  }
  b.dh = in_math(cells);
  b.back = in_math(cells);
  if (b.lstm()) {
    b.dc = in_math(cells);
    b.c0 = in_math(cells);
    b.peepholes = in_math(3 * p.hidden);
  }
  b.dx = in_math(p.rows() * p.inputs);
  b.dx_one = in_math(p.rows() * p.inputs);
  b.sums = in_math(std::max(2 * p.width(), 3 * p.hidden));
  b.scratch = in_math(std::max<int64_t>(1, p.batch) * kCellScratch * p.hidden);
  b.product = workspace.add(product_bytes);
  return {};
}

}  // namespace halfnote::cpu
