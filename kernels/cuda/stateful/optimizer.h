// What the optimizers share: operands as the device reads them, and the kernel around a rule that
// goes element by element. Learning rate, step and commit are read on the device; what a step
// shares is computed by one thread beforehand. Where `commit` is false the old state is given back
// bit for bit.
#pragma once

#include "kernels/cpu/stateful/optimizer_state.h"
#include "kernels/cuda/stateful/parts.h"
#include "kernels/cuda/support.h"
#include "kernels/math/optimizer.h"

namespace halfnote::HN_CUDA {

using cpu::Signature;

/// A gradient of any float type as one of T: times the factors one after the other, each product
/// rounded, as Cast and Mul would give.
template <class T>
struct Gradient {
  const void* data;
  DType dtype;
  const T* factors[cpu::kFactors];
  int count;

  template <class G>
  __device__ T load(int64_t i) const {
    return static_cast<T>(load_number(static_cast<const G*>(data)[i]));
  }
  __device__ T stored(int64_t i) const {
    if (dtype == DType::kF16) return load<Half>(i);
    if (dtype == DType::kBF16) return load<BFloat16>(i);
    return dtype == DType::kF32 ? load<float>(i) : load<T>(i);
  }
  __device__ T operator[](int64_t i) const {
    T value = stored(i);
    for (int k = 0; k < count; ++k) value = value * *factors[k];
    return value;
  }
};

/// The 16-bit copy of a parameter.
struct CopyPointer {
  void* data = nullptr;  // null: none is asked for
  DType dtype = DType::kUndefined;

  template <class To, class T>
  __device__ void store(int64_t i, T value) const {
    if constexpr (std::is_same_v<T, float>) {
      static_cast<To*>(data)[i] = store_number<To>(value);
    } else {
      static_cast<To*>(data)[i] = round_to_16bit<To>(value);
    }
  }
  template <class T>
  __device__ void write(int64_t i, T value) const {
    if (data == nullptr) return;
    if (dtype == DType::kF16) {
      store<Half>(i, value);
    } else {
      store<BFloat16>(i, value);
    }
  }
};

/// What every update reads and writes beside its slots.
template <class T>
struct Update {
  const T* param;
  Gradient<T> grad;
  T* to;
  CopyPointer copy;
  const bool* commit;

  __device__ bool moves() const { return commit == nullptr || *commit; }
  __device__ void write(int64_t i, T value) const {
    to[i] = value;
    copy.write(i, value);
  }
};

/// Where the operands of a call are, whatever the buffers.
struct UpdateForm {
  cpu::GradientForm gradient;
  cpu::CopyForm copy;
  size_t commit;

  UpdateForm(const KernelCall& call, const Signature& signature)
      : gradient(cpu::gradient_form(call, signature)),
        copy(cpu::copy_form(call, signature)),
        commit(signature.commit()) {}

  template <class T>
  Update<T> update(const KernelBuffers& buffers) const {
    Update<T> u{buffers.in<T>(0),
                {buffers.inputs[1], gradient.dtype, {}, static_cast<int>(gradient.count)},
                buffers.out<T>(0),
                {},
                buffers.in<bool>(commit)};
    for (size_t k = 0; k < gradient.count; ++k) {
      u.grad.factors[k] = buffers.in<T>(gradient.factors[k]);
    }
    if (copy) u.copy = {buffers.outputs[copy.output], copy.dtype};
    return u;
  }
};

/// Slot k of N, which may be absent.
template <class T>
struct Slot {
  const T* old = nullptr;
  T* fresh = nullptr;

  __device__ T read(int64_t i) const { return old == nullptr ? T(0) : old[i]; }
  __device__ void write(int64_t i, T value) const {
    if (fresh != nullptr) fresh[i] = value;
  }
};

/// A rule with N slots, at one element.
template <class T, int N, class Rule>
struct UpdateElement {
  Update<T> u;
  Slot<T> slots[N];
  const Rule* rule;
  __device__ void operator()(int64_t i) const {
    T p = u.param[i], s[N];
    for (int k = 0; k < N; ++k) s[k] = slots[k].read(i);
    if (u.moves()) {
      if constexpr (N == 1) {
        rule->update(p, u.grad[i], s[0]);
      } else if constexpr (N == 2) {
        rule->update(p, u.grad[i], s[0], s[1]);
      } else {
        rule->update(p, u.grad[i], s[0], s[1], s[2]);
      }
    }
    u.write(i, p);
    for (int k = 0; k < N; ++k) slots[k].write(i, s[k]);
  }
};

/// Has one thread write the rule of this step: `settings.template step<T>(lr, step)`.
template <class T, class Rule, class Settings>
struct MakeRule {
  Settings settings;
  const T* lr;
  const int64_t* step;  // null: the rule does not depend on it
  Rule* to;
  __device__ void operator()(int64_t) const {
    *to = settings(static_cast<double>(*lr), step == nullptr ? 1 : static_cast<double>(*step));
  }
};

/// Writes the rule of a step into the workspace. `settings(lr, step)`: a struct of plain members.
template <class T, class Rule, class Settings>
Rule* make_rule(const KernelBuffers& buffers, const Signature& signature, const Settings& settings,
                std::byte* to) {
  auto* rule = reinterpret_cast<Rule*>(to);
  const int64_t* step = signature.has_step ? buffers.in<int64_t>(signature.step()) : nullptr;
  for_each(stream_of(buffers), 1,
           MakeRule<T, Rule, Settings>{settings, buffers.in<T>(signature.lr()), step, rule});
  return rule;
}

/// May an output lie over the input whose new value it is?
inline auto shares_old(const Signature& signature) {
  return [old = signature.old_inputs()](size_t input, size_t out) {
    return out < old.size() && input == old[out];
  };
}

/// A kernel that applies the rule of a step to every element.
template <class T, int N, class Rule, class Settings>
Prepared rule_kernel(const KernelCall& call, const Signature& signature, Settings settings) {
  const auto body = [=, form = UpdateForm(call, signature),
                     count = call.inputs[0].size()](const KernelBuffers& buffers) {
    const Rule* rule = make_rule<T, Rule>(buffers, signature, settings, buffers.workspace);
    UpdateElement<T, N, Rule> element{form.update<T>(buffers), {}, rule};
    size_t output = 1;
    for (size_t k = 0; k < static_cast<size_t>(N); ++k) {
      if (signature.has(k)) element.slots[k] = {buffers.in<T>(2 + k), buffers.out<T>(output++)};
    }
    for_each(stream_of(buffers), count, element);
  };
  return make_kernel(body, sizeof(Rule), shares_old(signature));
}

}  // namespace halfnote::HN_CUDA
