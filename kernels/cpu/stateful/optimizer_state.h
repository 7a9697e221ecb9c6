// What the optimizers share: where their operands are, why operands do not fit, and the kernel
// around an update rule. It reads the gradient in its own type, scales it, keeps the old state bit
// for bit where `commit` is false, and rounds the new parameter to its 16-bit copy, all in one pass
// over memory.
#pragma once

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cpu/support.h"
#include "kernels/math/optimizer.h"

namespace halfnote::cpu {

/// Where the operands of an optimizer are. Inputs: param, grad, `slots` state tensors, lr, [step],
/// [commit], [factor], [second factor]. Outputs: the new param, then the new tensors of the slots
/// that are present, then [the 16-bit copy of the new param]. Factors and copy are those of device
/// passes (docs/operators.md).
struct Signature {
  size_t slots = 0;
  bool has_step = true;
  uint32_t absent = 0;              // bit i: slot i is absent
  std::vector<int64_t> sizes = {};  // of the slots; empty: that of param

  size_t lr() const { return 2 + slots; }
  size_t step() const { return 3 + slots; }
  size_t commit() const { return has_step ? 4 + slots : 3 + slots; }
  size_t factor(size_t index) const { return commit() + 1 + index; }
  bool has(size_t slot) const { return (absent >> slot & 1u) == 0; }
  /// The inputs whose new values the outputs are, in order, but for the copy.
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
math::AdagradSettings adagrad_settings(const KernelCall& call);
math::LionSettings lion_settings(const KernelCall& call);
math::RMSpropSettings rmsprop_settings(const KernelCall& call);
/// RMSprop's slots are square, mean (if centered) and velocity (if there is a momentum).
Signature rmsprop_signature(const math::RMSpropSettings& settings);

/// The most operands of an optimizer: param, grad, three slots, lr, step, commit, factors.
inline constexpr size_t kOptimizerInputs = 10, kOptimizerOutputs = 5;
inline constexpr size_t kFactors = 2;
/// Elements whose gradient is scaled, and whose parameter is rounded, while they are in the
/// second-level cache. Pieces for the first level (2048) start the prefetch of seven streams so
/// often that Adam takes 1.6 times as long.
inline constexpr int64_t kUpdatePiece = kElementGrain;

/// How a gradient becomes one of the parameter's type.
struct GradientForm {
  DType dtype = DType::kUndefined;
  std::array<size_t, kFactors> factors = {};  // inputs
  size_t count = 0;                           // of them

  /// Can the rule read the operand as it lies there?
  template <class T>
  bool plain() const {
    return dtype == dtype_of<T>() && count == 0;
  }
};

GradientForm gradient_form(const KernelCall& call, const Signature& signature);

/// `count` elements of the gradient from `begin` on, times the factors one after the other, each
/// product rounded: what Cast and Mul would give.
template <class T>
void load_gradient(const GradientForm& form, const KernelBuffers& buffers, int64_t begin,
                   int64_t count, T* to) {
  const auto size = static_cast<size_t>(count);
  const auto widen = [&]<class G>() {
    const G* from = buffers.in<G>(1) + begin;
    if constexpr (std::is_same_v<T, float> && !std::is_same_v<G, float>) {
      convert(std::span(from, size), std::span(to, size));
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(load(from[i]));
    }
  };
  if (form.dtype == dtype_of<T>()) {
    std::copy_n(buffers.in<T>(1) + begin, count, to);
  } else if (form.dtype == DType::kF32) {
    widen.template operator()<float>();
  } else if (form.dtype == DType::kF16) {
    widen.template operator()<Half>();
  } else {
    widen.template operator()<BFloat16>();
  }
  for (size_t k = 0; k < form.count; ++k) {
    const T factor = *buffers.in<T>(form.factors[k]);
    for (int64_t i = 0; i < count; ++i) to[i] = to[i] * factor;
  }
}

/// Rounds `count` elements of a parameter from `begin` on to its copy; f64 straight to 16 bits.
template <class T>
void store_copy(DType dtype, const T* from, int64_t begin, int64_t count, std::byte* copy) {
  const auto narrow = [&]<class To>() {
    To* to = reinterpret_cast<To*>(copy) + begin;
    if constexpr (std::is_same_v<T, float>) {
      convert(std::span<const float>(from, static_cast<size_t>(count)),
              std::span(to, static_cast<size_t>(count)));
    } else if constexpr (std::is_same_v<To, Half>) {
      for (int64_t i = 0; i < count; ++i) to[i] = to_f16(from[i]);
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
    }
  };
  if (dtype == DType::kF16) return narrow.template operator()<Half>();
  narrow.template operator()<BFloat16>();
}

/// The 16-bit copy that a call asks for.
struct CopyForm {
  DType dtype = DType::kUndefined;  // undefined: none
  size_t output = 0;

  explicit operator bool() const { return dtype != DType::kUndefined; }
};

CopyForm copy_form(const KernelCall& call, const Signature& signature);

/// Makes the whole copy.
template <class T>
void copy_all(const CopyForm& form, const T* from, const KernelBuffers& buffers, int64_t count,
              int threads) {
  if (!form) return;
  parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
    store_copy(form.dtype, from + begin, begin, end - begin, buffers.outputs[form.output]);
  });
}

/// What stays as it was in a step that does not commit: outputs by input, with their bytes.
class KeptState {
 public:
  KeptState(const KernelCall& call, const Signature& signature);
  /// Gives the old state back if the step does not commit; else false.
  bool keeps(const KernelBuffers& buffers) const;
  bool can_share(size_t input, size_t output) const {
    return output < old_.size() && input == old_[output];
  }

 private:
  std::vector<size_t> old_;  // inputs
  std::vector<size_t> bytes_;
  size_t commit_;
};

/// The buffers of `count` elements from `begin` on, for rules that go element by element.
struct UpdatePiece {
  std::array<const std::byte*, kOptimizerInputs> inputs;
  std::array<std::byte*, kOptimizerOutputs> outputs;

  UpdatePiece(const KernelBuffers& buffers, size_t tensors, size_t offset) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = i < buffers.inputs.size() ? buffers.inputs[i] : nullptr;
      if (i < tensors && inputs[i] != nullptr) inputs[i] += offset;
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      outputs[i] = i < buffers.outputs.size() ? buffers.outputs[i] + offset : nullptr;
    }
  }
};

/// A kernel around a rule that goes element by element: `elements(share(buffers), piece, count)` is
/// called only for steps that commit, with the state and the gradient of a piece.
template <class T, class Share, class Elements>
Prepared optimizer_kernel(const KernelCall& call, const Signature& signature, Share share,
                          Elements elements) {
  const KeptState kept(call, signature);
  const GradientForm form = gradient_form(call, signature);
  const CopyForm copy = copy_form(call, signature);
  const auto body = [=, tensors = signature.lr(), count = call.inputs[0].size(),
                     threads = call.threads](const KernelBuffers& buffers) {
    if (kept.keeps(buffers)) {
      copy_all(copy, buffers.in<T>(0), buffers, count, threads);
      return;
    }
    const auto rule = share(buffers);
    parallel_blocks(count, kUpdatePiece, threads, [&](int64_t begin, int64_t end) {
      std::array<T, kUpdatePiece> room;
      const int64_t size = end - begin;
      UpdatePiece at(buffers, tensors, static_cast<size_t>(begin) * sizeof(T));
      if (!form.plain<T>()) {
        load_gradient(form, buffers, begin, size, room.data());
        at.inputs[1] = reinterpret_cast<const std::byte*>(room.data());
      }
      elements(rule, KernelBuffers{at.inputs, at.outputs, nullptr}, size);
      if (!copy) return;
      const T* fresh = reinterpret_cast<const T*>(at.outputs[0]);
      store_copy(copy.dtype, fresh, begin, size, buffers.outputs[copy.output]);
    });
  };
  return make_kernel(body, 0, [kept](size_t in, size_t out) { return kept.can_share(in, out); });
}

/// A kernel around a rule that reads whole tensors more than once: `update(buffers, count,
/// threads)`, with the gradient in the parameter's type. `workspace` is the rule's.
template <class T, class Update>
Prepared whole_optimizer_kernel(const KernelCall& call, const Signature& signature, Update update,
                                size_t workspace) {
  const KeptState kept(call, signature);
  const GradientForm form = gradient_form(call, signature);
  const CopyForm copy = copy_form(call, signature);
  const int64_t count = call.inputs[0].size();
  const size_t gradient_at = (workspace + sizeof(double) - 1) / sizeof(double) * sizeof(double);
  const size_t room = form.plain<T>() ? 0 : static_cast<size_t>(count) * sizeof(T);
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    if (kept.keeps(buffers)) {
      copy_all(copy, buffers.in<T>(0), buffers, count, threads);
      return;
    }
    UpdatePiece all(buffers, 0, 0);
    if (!form.plain<T>()) {
      T* gradient = reinterpret_cast<T*>(buffers.workspace + gradient_at);
      parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
        load_gradient(form, buffers, begin, end - begin, gradient + begin);
      });
      all.inputs[1] = reinterpret_cast<const std::byte*>(gradient);
    }
    update(KernelBuffers{all.inputs, all.outputs, buffers.workspace}, count, threads);
    copy_all<T>(copy, buffers.out<T>(0), buffers, count, threads);
  };
  return make_kernel(body, room == 0 ? workspace : gradient_at + room,
                     [kept](size_t in, size_t out) { return kept.can_share(in, out); });
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
