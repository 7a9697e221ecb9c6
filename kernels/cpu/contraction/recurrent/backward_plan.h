// What one call of a recurrent gradient op needs: its products, and the places of its workspace.
// Product is the device's: InnerProduct on the CPU.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cpu/contraction/recurrent/cells.h"
#include "kernels/cpu/contraction/recurrent/plan.h"
#include "kernels/cpu/contraction/recurrent/product.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

/// Row blocks of R that take one product with the state: rows [first, first + width).
struct Side {
  int64_t first = 0, width = 0;
  bool own = false;            // its da is not that of the side of W
  size_t math = 0, typed = 0;  // (T·B, width) in the workspace
};

/// One side; two for a GRU that resets first: z and r, then the last gate.
std::vector<Side> sides_of(const RecurrentPlan& plan);

template <class Product>
struct BackwardCall {
  RecurrentPlan p;
  RecurrentGradSlots slots;
  DType type = DType::kF32, p_type = DType::kUndefined;
  std::vector<DType> input_types, output_types;
  size_t element = 4;  // bytes of an element of X
  int threads = 1;

  std::vector<Side> sides;
  Product input_x, weight_w;                    // da·W, daᵀ·X
  std::vector<Product> product_back, weight_r;  // a side each: da·R of a step, daᵀ·state
  size_t x = 0, da = 0, da_typed = 0, old_state = 0, reset_state = 0, dh = 0, dc = 0, c0 = 0,
         back = 0, reset_back = 0, peepholes = 0, dx = 0, dx_one = 0, sums = 0, scratch = 0,
         product = 0;

  bool lstm() const { return p.r.op == RecurrentOp::kLstm; }
  bool gru() const { return p.r.op == RecurrentOp::kGru; }
  bool resets_first() const { return p.resets_first(); }
  /// The stash of all directions: an operand, or behind the gates in the reserve.
  template <class M>
  const M* stash(const KernelBuffers& buffers) const {
    if (p.r.reserve == 0) return buffers.in<M>(slots.stash);
    return p.has_stash() ? buffers.in<M>(slots.gates) + p.gate_elements() : nullptr;
  }
};

/// The types of the first `count` operands, kUndefined for those that are absent.
std::vector<DType> types_of(const std::vector<Operand>& operands, size_t count);

/// The products of a call; the reason if one has no kernel. `bytes` is the largest workspace.
template <class Product>
std::string prepare_backward_products(const KernelCall& call, std::string_view only, DType math,
                                      BackwardCall<Product>& b, size_t& bytes) {
  const RecurrentPlan& p = b.p;
  std::string refusal;
  const auto product = [&](const ProductShape& shape, DType out) {
    Product made = Product::prepare(shape, b.type, out, call.threads, only);
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

/// Fills `b`, whose plan is set; the reason if a product has no kernel.
template <class Product>
std::string lay_out_backward(const KernelCall& call, std::string_view only, DType math,
                             BackwardCall<Product>& b, WorkspacePlan& workspace) {
  const RecurrentPlan& p = b.p;
  b.slots = grad_slots(p.r.op);
  b.type = call.inputs[0].dtype;
  b.element = size_of(b.type);
  b.threads = call.threads;
  b.input_types = types_of(call.inputs, RecurrentGradSlots::kNone + 1);
  b.output_types = types_of(call.outputs, RecurrentGradSlots::kNone + 1);
  b.p_type = b.input_types[b.slots.p];
  b.sides = sides_of(p);
  size_t product_bytes = 0;
  if (std::string why = prepare_backward_products(call, only, math, b, product_bytes);
      !why.empty()) {
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
