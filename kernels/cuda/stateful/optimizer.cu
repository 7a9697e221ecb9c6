// The optimizers that go element by element: the rules of kernels/math/optimizer.h.
#include "kernels/cuda/stateful/optimizer.h"

namespace halfnote::HN_CUDA {

namespace {

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

template <class T>
struct MomentumRule {
  math::MomentumStep<T> rule;  // but for what the device knows
  __device__ math::MomentumStep<T> operator()(double lr, double step) const {
    math::MomentumStep<T> result = rule;
    result.lr = static_cast<T>(lr);
    result.first = step <= 1;
    return result;
  }
};

template <class T>
struct AdamRule {
  math::AdamSettings settings;
  __device__ math::AdamStep<T> operator()(double lr, double step) const {
    return math::adam_step<T>(settings, lr, step);
  }
};

template <class T>
struct AdagradRule {
  math::AdagradSettings settings;
  __device__ math::AdagradStep<T> operator()(double lr, double step) const {
    return math::adagrad_step<T>(settings, lr, step);
  }
};

template <class T>
struct RMSpropRule {
  math::RMSpropSettings settings;
  __device__ math::RMSpropStep<T> operator()(double lr, double) const {
    return math::rmsprop_step<T>(settings, lr);
  }
};

template <class T>
struct LionRule {
  math::LionSettings settings;
  __device__ math::LionStep<T> operator()(double lr, double) const {
    return math::lion_step<T>(settings, lr);
  }
};

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
    return rule_kernel<T, 1, Rule>(call, signature, MomentumRule<T>{rule});
  });
}

template <bool kDecoupled>
Prepared prepare_adam(const KernelCall& call) {
  const Signature signature{2, true};
  if (std::string why = cpu::unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const math::AdamSettings settings = cpu::adam_settings(call, kDecoupled);
  return cpu::for_state_type(call.inputs[0].dtype, [&]<class T>() {
    return rule_kernel<T, 2, math::AdamStep<T>>(call, signature, AdamRule<T>{settings});
  });
}

Prepared prepare_adagrad(const KernelCall& call) {
  const Signature signature{1, true};
  if (std::string why = cpu::unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const math::AdagradSettings settings = cpu::adagrad_settings(call);
  return cpu::for_state_type(call.inputs[0].dtype, [&]<class T>() {
    return rule_kernel<T, 1, math::AdagradStep<T>>(call, signature, AdagradRule<T>{settings});
  });
}

Prepared prepare_rmsprop(const KernelCall& call) {
  const math::RMSpropSettings settings = cpu::rmsprop_settings(call);
  const Signature signature = cpu::rmsprop_signature(settings);
  if (std::string why = cpu::unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  return cpu::for_state_type(call.inputs[0].dtype, [&]<class T>() {
    return rule_kernel<T, 3, math::RMSpropStep<T>>(call, signature, RMSpropRule<T>{settings});
  });
}

Prepared prepare_lion(const KernelCall& call) {
  const Signature signature{1, false};
  if (std::string why = cpu::unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const math::LionSettings settings = cpu::lion_settings(call);
  return cpu::for_state_type(call.inputs[0].dtype, [&]<class T>() {
    return rule_kernel<T, 1, math::LionStep<T>>(call, signature, LionRule<T>{settings});
  });
}

}  // namespace

std::vector<KernelRow> optimizer_rows() {
  return {
      {"ai.halfnote", "Adagrad", "own.optimizer", prepare_adagrad},
      {"ai.halfnote", "Adam", "own.optimizer", prepare_adam<false>},
      {"ai.halfnote", "AdamW", "own.optimizer", prepare_adam<true>},
      {"ai.halfnote", "Lion", "own.optimizer", prepare_lion},
      {"ai.halfnote", "Momentum", "own.optimizer", prepare_momentum},
      {"ai.halfnote", "RMSprop", "own.optimizer", prepare_rmsprop},
      {"ai.halfnote", "SGD", "own.optimizer", prepare_sgd},
  };
}

}  // namespace halfnote::HN_CUDA
