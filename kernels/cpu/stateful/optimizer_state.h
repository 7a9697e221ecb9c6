// What the optimizers share: where their operands are, why operands do not fit, and a kernel that
// gives the old state back bit for bit where `commit` is false.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/support.h"
#include "kernels/math/optimizer.h"

namespace halfnote::cpu {

/// Where the operands of an optimizer are. Inputs: param, grad, `slots` state tensors, lr, [step],
/// [commit]. Outputs: the new param, then the new tensors of the slots that are present.
struct Signature {
  size_t slots = 0;
  bool has_step = true;
  uint32_t absent = 0;              // bit i: slot i is absent
  std::vector<int64_t> sizes = {};  // of the slots; empty: that of param

  size_t lr() const { return 2 + slots; }
  size_t step() const { return 3 + slots; }
  size_t commit() const { return has_step ? 4 + slots : 3 + slots; }
  bool has(size_t slot) const { return (absent >> slot & 1u) == 0; }
  /// The inputs whose new values the outputs are, in order.
  std::vector<size_t> old_inputs() const {
    std::vector<size_t> inputs = {0};
    for (size_t slot = 0; slot < slots; ++slot) {
      if (has(slot)) inputs.push_back(2 + slot);
    }
    return inputs;
  }
};

/// Why the operands do not fit, or an empty string.
std::string unfit_state(const KernelCall& call, const Signature& signature);

/// The attributes of Adam or, decoupled, of AdamW.
math::AdamSettings adam_settings(const KernelCall& call, bool decoupled);

/// A kernel around `update(buffers, count, threads)`, which is called only for steps that commit.
template <class T, class Update>
Prepared optimizer_kernel(const KernelCall& call, const Signature& signature, Update update,
                          size_t workspace = 0) {
  std::vector<size_t> bytes;
  for (const Operand& output : call.outputs) {
    bytes.push_back(static_cast<size_t>(output.size()) * sizeof(T));
  }
  const std::vector<size_t> old = signature.old_inputs();
  const auto body = [=, commit_at = signature.commit(), count = call.inputs[0].size(),
                     threads = call.threads](const KernelBuffers& buffers) {
    const bool* commit = buffers.in<bool>(commit_at);
    if (!commit || *commit) {
      update(buffers, count, threads);
      return;
    }
    for (size_t output = 0; output < old.size(); ++output) {
      const std::byte* from = buffers.inputs[old[output]];
      std::byte* to = buffers.outputs[output];
      if (bytes[output] != 0 && from != to) std::memmove(to, from, bytes[output]);
    }
  };
  return make_kernel(body, workspace, [old](size_t input, size_t output) {
    return output < old.size() && input == old[output];
  });
}

/// f32 and f64 only: state has no 16-bit form.
template <class Body>
Prepared for_state_type(DType dtype, Body&& body) {
  if (dtype == DType::kF32) return body.template operator()<float>();
  if (dtype == DType::kF64) return body.template operator()<double>();
  return Prepared::no("optimizer state is neither f32 nor f64");
}

/// How many partial sums `parallel_sum` needs.
inline int64_t sum_blocks(int64_t count) { return (count + kElementGrain - 1) / kElementGrain; }

/// Σ term(i) for i < count in f64: a partial sum a block, added up in order, so that the result
/// does not depend on the number of threads.
template <class Term>
double parallel_sum(int64_t count, int threads, double* partials, Term term) {
  parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += term(i);
    partials[begin / kElementGrain] = sum;
  });
  double sum = 0;
  for (int64_t i = 0; i < sum_blocks(count); ++i) sum += partials[i];
  return sum;
}

}  // namespace halfnote::cpu
