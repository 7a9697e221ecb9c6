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

template <class T>
struct SgdElement {
  const T *param, *grad, *lr;
  T* to;
  const bool* commit;
  T decay;
  __device__ void operator()(int64_t i) const {
    const bool moves = commit == nullptr || *commit;
    to[i] = moves ? math::sgd(param[i], grad[i], *lr, decay) : param[i];
  }
};

/// The form with which an update runs here: gradients of the weight's type, unscaled and clipped,
/// and no 16-bit copy.
std::string unfit_update(const KernelCall& call, const Signature& signature) {
  if (std::string why = cpu::unfit_state(call, signature); !why.empty()) return why;
  if (call.inputs[1].dtype != call.inputs[0].dtype) return "a gradient of another type";
  if (call.has_input(signature.factor(0))) return "factors of the gradient";
  if (call.outputs.size() > signature.old_inputs().size()) return "a 16-bit copy of the weight";
  return "";
}

Prepared prepare_sgd(const KernelCall& call) {
  const Signature signature{0, false};
  if (std::string why = unfit_update(call, signature); !why.empty()) return Prepared::no(why);
  const float decay = attributes_of(call).get_float("weight_decay", 0);
  return cpu::for_state_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [decay, commit = signature.commit(),
                       count = call.inputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               SgdElement<T>{buffers.in<T>(0), buffers.in<T>(1), buffers.in<T>(2),
                             buffers.out<T>(0), buffers.in<bool>(commit), static_cast<T>(decay)});
    };
    return make_kernel(body, 0, [](size_t input, size_t) { return input == 0; });
  });
}

/// Old and new tensors of a rule with N slots.
template <class T, int N>
struct Tensors {
  const T *param, *grad;
  const T* old[N];
  T* to;
  T* fresh[N];
  const bool* commit;
};

template <class T, int N>
Tensors<T, N> tensors_of(const KernelBuffers& buffers, const Signature& signature) {
  Tensors<T, N> t{buffers.in<T>(0),
                  buffers.in<T>(1),
                  {},
                  buffers.out<T>(0),
                  {},
                  buffers.in<bool>(signature.commit())};
  for (size_t k = 0; k < static_cast<size_t>(N); ++k) {
    t.old[k] = buffers.in<T>(2 + k);
    t.fresh[k] = buffers.out<T>(1 + k);
  }
  return t;
}

template <class T, int N, class Rule>
struct UpdateElement {
  Tensors<T, N> t;
  const Rule* rule;
  __device__ void operator()(int64_t i) const {
    T p = t.param[i], slots[N];
    for (int k = 0; k < N; ++k) slots[k] = t.old[k][i];
    if (t.commit == nullptr || *t.commit) {
      if constexpr (N == 1) {
        rule->update(p, t.grad[i], slots[0]);
      } else {
        rule->update(p, t.grad[i], slots[0], slots[1]);
      }
    }
    t.to[i] = p;
    for (int k = 0; k < N; ++k) t.fresh[k][i] = slots[k];
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
  const auto body = [=, count = call.inputs[0].size()](const KernelBuffers& buffers) {
    auto* rule = reinterpret_cast<Rule*>(buffers.workspace);
    for_each(stream_of(buffers), 1, make(buffers, rule));
    for_each(stream_of(buffers), count,
             UpdateElement<T, N, Rule>{tensors_of<T, N>(buffers, signature), rule});
  };
  return make_kernel(body, sizeof(Rule), [old = signature.old_inputs()](size_t input, size_t out) {
    return out < old.size() && input == old[out];
  });
}

Prepared prepare_momentum(const KernelCall& call) {
  const Signature signature{1, true};
  if (std::string why = unfit_update(call, signature); !why.empty()) return Prepared::no(why);
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
  if (std::string why = unfit_update(call, signature); !why.empty()) return Prepared::no(why);
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
