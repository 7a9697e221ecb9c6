// SGD, Momentum, Adam and AdamW: the rules of kernels/math/optimizer.h. Learning rate, step and
// commit are read on the device; what a step shares is computed by one thread beforehand. Where
// `commit` is false the old state is given back bit for bit.
#include "kernels/math/optimizer.h"

#include "kernels/cpu/stateful/optimizer_state.h"
#include "kernels/cuda/stateful/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

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

template <class T>
struct SgdElement {
  Update<T> u;
  const T* lr;
  T decay;
  __device__ void operator()(int64_t i) const {
    u.write(i, u.moves() ? math::sgd(u.param[i], u.grad[i], *lr, decay) : u.param[i]);
  }
};

Prepared prepare_sgd(const KernelCall& call) {
  const Signature signature{0, false};
  if (std::string why = cpu::unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const float decay = attributes_of(call).get_float("weight_decay", 0);
  return cpu::for_state_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [decay, form = UpdateForm(call, signature), lr = signature.lr(),
                       count = call.inputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               SgdElement<T>{form.update<T>(buffers), buffers.in<T>(lr), static_cast<T>(decay)});
    };
    return make_kernel(body, 0, [](size_t input, size_t out) { return input == 0 && out == 0; });
  });
}

/// A rule with N slots, at one element.
template <class T, int N, class Rule>
struct UpdateElement {
  Update<T> u;
  const T* old[N];
  T* fresh[N];
  const Rule* rule;
  __device__ void operator()(int64_t i) const {
    T p = u.param[i], slots[N];
    for (int k = 0; k < N; ++k) slots[k] = old[k][i];
    if (u.moves()) {
      if constexpr (N == 1) {
        rule->update(p, u.grad[i], slots[0]);
      } else {
        rule->update(p, u.grad[i], slots[0], slots[1]);
      }
    }
    u.write(i, p);
    for (int k = 0; k < N; ++k) fresh[k][i] = slots[k];
  }
};

template <class T>
struct MakeMomentum {
  math::MomentumStep<T> rule;  // but for what the device knows
  const T* lr;
  const int64_t* step;
  math::MomentumStep<T>* to;
  __device__ void operator()(int64_t) const {
    *to = rule;
    to->lr = *lr;
    to->first = *step <= 1;
  }
};

template <class T>
struct MakeAdam {
  math::AdamSettings settings;
  const T* lr;
  const int64_t* step;
  math::AdamStep<T>* to;
  __device__ void operator()(int64_t) const {
    *to = math::adam_step<T>(settings, static_cast<double>(*lr), static_cast<double>(*step));
  }
};

/// A kernel that has `make(rule, buffers)` write the rule and applies it to every element.
template <class T, int N, class Rule, class Make>
Prepared rule_kernel(const KernelCall& call, const Signature& signature, Make make) {
  const auto body = [make, form = UpdateForm(call, signature),
                     count = call.inputs[0].size()](const KernelBuffers& buffers) {
    auto* rule = reinterpret_cast<Rule*>(buffers.workspace);
    for_each(stream_of(buffers), 1, make(buffers, rule));
    UpdateElement<T, N, Rule> element{form.update<T>(buffers), {}, {}, rule};
    for (size_t k = 0; k < static_cast<size_t>(N); ++k) {
      element.old[k] = buffers.in<T>(2 + k);
      element.fresh[k] = buffers.out<T>(1 + k);
    }
    for_each(stream_of(buffers), count, element);
  };
  return make_kernel(body, sizeof(Rule), [old = signature.old_inputs()](size_t input, size_t out) {
    return out < old.size() && input == old[out];
  });
}

Prepared prepare_momentum(const KernelCall& call) {
  const Signature signature{1, true};
  if (std::string why = cpu::unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const Attributes& attributes = attributes_of(call);
  const double momentum = attributes.get_float("momentum", 0.9f);
  const double dampening = attributes.get_float("dampening", 0);
  const double decay = attributes.get_float("weight_decay", 0);
  const bool nesterov = attributes.get_int("nesterov", 0) != 0;
  return cpu::for_state_type(call.inputs[0].dtype, [&]<class T>() {
    using Rule = math::MomentumStep<T>;
    const Rule rule{T(0),
                    static_cast<T>(momentum),
                    static_cast<T>(1 - dampening),
                    static_cast<T>(decay),
                    false,
                    nesterov};
    const auto make = [=](const KernelBuffers& buffers, Rule* to) {
      return MakeMomentum<T>{rule, buffers.in<T>(signature.lr()),
                             buffers.in<int64_t>(signature.step()), to};
    };
    return rule_kernel<T, 1, Rule>(call, signature, make);
  });
}

template <bool kDecoupled>
Prepared prepare_adam(const KernelCall& call) {
  const Signature signature{2, true};
  if (std::string why = cpu::unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const math::AdamSettings settings = cpu::adam_settings(call, kDecoupled);
  return cpu::for_state_type(call.inputs[0].dtype, [&]<class T>() {
    using Rule = math::AdamStep<T>;
    const auto make = [=](const KernelBuffers& buffers, Rule* to) {
      return MakeAdam<T>{settings, buffers.in<T>(signature.lr()),
                         buffers.in<int64_t>(signature.step()), to};
    };
    return rule_kernel<T, 2, Rule>(call, signature, make);
  });
}

}  // namespace

std::vector<KernelRow> optimizer_rows() {
  return {
      {"ai.halfnote", "Adam", "own.optimizer", prepare_adam<false>},
      {"ai.halfnote", "AdamW", "own.optimizer", prepare_adam<true>},
      {"ai.halfnote", "Momentum", "own.optimizer", prepare_momentum},
      {"ai.halfnote", "SGD", "own.optimizer", prepare_sgd},
  };
}

}  // namespace halfnote::HN_CUDA
