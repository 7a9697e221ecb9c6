// What one call of RNN, GRU or LSTM needs: its products, and the places of its workspace. Product
// is the device's: InnerProduct on the CPU.
#pragma once

#include <algorithm>
#include <string>

#include "kernels/cpu/contraction/recurrent/cells.h"
#include "kernels/cpu/contraction/recurrent/plan.h"
#include "kernels/cpu/contraction/recurrent/product.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

template <class Product>
struct ForwardCall {
  RecurrentPlan p;
  DType type = DType::kF32;
  DType b_type = DType::kUndefined, p_type = DType::kUndefined, c_type = DType::kUndefined;
  size_t element = 4;  // bytes of an element of X
  int threads = 1;
  Product input, step, reset;  // reset: the last gate of a GRU that resets first
  size_t x = 0, gates = 0, recurrent = 0, state = 0, reset_state = 0, h = 0, c = 0, bias = 0,
         peepholes = 0, scratch = 0, product = 0;
  size_t product_bytes = 0;

  bool lstm() const { return p.r.op == RecurrentOp::kLstm; }
  bool gru() const { return p.r.op == RecurrentOp::kGru; }
  bool resets_first() const { return p.resets_first(); }
  size_t gates_output() const { return lstm() ? 3 : 2; }
  /// The stash of all directions: a result, or behind the gates in the reserve; null: not kept.
  template <class M>
  M* stash(const KernelBuffers& buffers) const {
    if (p.r.reserve == 0) return buffers.out<M>(gates_output() + 1);
    M* const reserve = buffers.out<M>(gates_output());
    return reserve == nullptr || !p.has_stash() ? nullptr : reserve + p.gate_elements();
  }
  /// Rows of R that the product of every step takes: all, or those of z and r.
  int64_t step_width() const { return resets_first() ? 2 * p.hidden : p.width(); }
};

/// Fills `f`, whose plan is set; the reason if a product has no kernel.
template <class Product>
std::string lay_out_forward(const KernelCall& call, std::string_view only, DType math,
                            ForwardCall<Product>& f, WorkspacePlan& workspace) {
  const RecurrentPlan& p = f.p;
  const auto input_type = [&](size_t index) {
    return call.has_input(index) ? call.inputs[index].dtype : DType::kUndefined;
  };
  f.type = call.inputs[recurrent::kX].dtype;
  f.element = size_of(f.type);
  f.threads = call.threads;
  f.b_type = input_type(recurrent::kB);
  if (f.lstm()) {
    f.c_type = input_type(recurrent::kInitialC);
    f.p_type = input_type(recurrent::kP);
  }
  const auto product = [&](int64_t m, int64_t n, int64_t k) {
    return Product::prepare({m, n, k, false, true}, f.type, math, call.threads, only);
  };
  f.input = product(p.rows(), p.width(), p.inputs);
  f.step = product(p.batch, f.step_width(), p.hidden);
  f.reset = f.resets_first() ? product(p.batch, p.hidden, p.hidden) : f.step;
  for (const Product* each : {&f.input, &f.step, &f.reset}) {
    if (!each->ready()) return each->refusal();
    f.product_bytes = std::max(f.product_bytes, each->workspace_bytes());
  }
  const int64_t cells = p.batch * p.hidden;
  const auto in_math = [&](int64_t count) {
    return workspace.add(static_cast<size_t>(count) * size_of(math));
  };
  const auto in_type = [&](int64_t count) {
    return workspace.add(static_cast<size_t>(count) * f.element);
  };
  if (p.r.batch_first) f.x = in_type(p.rows() * p.inputs);
  if (!call.has_output(f.gates_output())) f.gates = in_math(p.rows() * p.width());
  f.recurrent = in_math(p.batch * p.width());
  f.state = in_type(cells);
  f.reset_state = in_type(cells);
  f.h = in_math(cells);
  f.c = in_math(cells);
  f.bias = in_math(p.width() + p.hidden);
  f.peepholes = in_math(3 * p.hidden);
  f.scratch = in_math(std::max<int64_t>(1, p.batch) * kCellScratch * p.hidden);
  f.product = workspace.add(f.product_bytes);
  return {};
}

}  // namespace halfnote::cpu
