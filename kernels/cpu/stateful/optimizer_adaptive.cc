// The optimizers of ai.halfnote that scale each element by its own history, or take its sign:
// Adagrad, RMSprop, Lion.
#include "kernels/cpu/stateful/optimizer_state.h"
#include "kernels/cpu/stateful/parts.h"
#include "kernels/math/optimizer.h"

namespace halfnote::cpu {

math::AdagradSettings adagrad_settings(const KernelCall& call) {
  const Attributes& attributes = attributes_of(call);
  return {attributes.get_float("epsilon", 1e-10f), attributes.get_float("lr_decay", 0),
          attributes.get_float("weight_decay", 0)};
}

math::RMSpropSettings rmsprop_settings(const KernelCall& call) {
  const Attributes& attributes = attributes_of(call);
  return {attributes.get_float("alpha", 0.99f), attributes.get_float("epsilon", 1e-8f),
          attributes.get_float("momentum", 0), attributes.get_float("weight_decay", 0),
          attributes.get_int("centered", 0) != 0};
}

Signature rmsprop_signature(const math::RMSpropSettings& settings) {
  return {3, false, (settings.centered ? 0u : 2u) | (settings.momentum != 0 ? 0u : 4u)};
}

math::LionSettings lion_settings(const KernelCall& call) {
  const Attributes& attributes = attributes_of(call);
  return {attributes.get_float("beta1", 0.9f), attributes.get_float("beta2", 0.99f),
          attributes.get_float("weight_decay", 0)};
}

namespace {

Prepared prepare_adagrad(const KernelCall& call) {
  const Signature signature{1, true};
  if (std::string why = unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const math::AdagradSettings settings = adagrad_settings(call);
  return for_state_type(call.inputs[0].dtype, [&]<class T>() {
    const auto share = [=](const KernelBuffers& buffers) {
      return math::adagrad_step<T>(settings, static_cast<double>(*buffers.in<T>(signature.lr())),
                                   static_cast<double>(*buffers.in<int64_t>(signature.step())));
    };
    return optimizer_kernel<T>(
        call, signature, share,
        [](const math::AdagradStep<T>& rule, const KernelBuffers& at, int64_t count) {
          const T *param = at.in<T>(0), *grad = at.in<T>(1), *old = at.in<T>(2);
          T *to = at.out<T>(0), *sum = at.out<T>(1);
          for (int64_t i = 0; i < count; ++i) {
            T p = param[i], s = old[i];
            rule.update(p, grad[i], s);
            to[i] = p;
            sum[i] = s;
          }
        });
  });
}

/// The tensors of RMSprop's optional slots and where their new values go; null if absent.
template <class T>
struct OptionalState {
  const T* old = nullptr;
  T* fresh = nullptr;

  T read(int64_t i) const { return old == nullptr ? T(0) : old[i]; }
  void write(int64_t i, T value) const {
    if (fresh != nullptr) fresh[i] = value;
  }
};

template <class T>
void rmsprop_elements(const math::RMSpropStep<T>& rule, const KernelBuffers& buffers,
                      int64_t count) {
  const T *param = buffers.in<T>(0), *grad = buffers.in<T>(1), *old = buffers.in<T>(2);
  T *to = buffers.out<T>(0), *square = buffers.out<T>(1);
  OptionalState<T> mean, velocity;
  size_t output = 2;
  if (rule.centered) mean = {buffers.in<T>(3), buffers.out<T>(output++)};
  if (rule.has_momentum) velocity = {buffers.in<T>(4), buffers.out<T>(output)};
  for (int64_t i = 0; i < count; ++i) {
    T p = param[i], s = old[i], m = mean.read(i), v = velocity.read(i);
    rule.update(p, grad[i], s, m, v);
    to[i] = p;
    square[i] = s;
    mean.write(i, m);
    velocity.write(i, v);
  }
}

Prepared prepare_rmsprop(const KernelCall& call) {
  const math::RMSpropSettings settings = rmsprop_settings(call);
  const Signature signature = rmsprop_signature(settings);
  if (std::string why = unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  return for_state_type(call.inputs[0].dtype, [&]<class T>() {
    const auto share = [=](const KernelBuffers& buffers) {
      return math::rmsprop_step<T>(settings, static_cast<double>(*buffers.in<T>(signature.lr())));
    };
    return optimizer_kernel<T>(call, signature, share, rmsprop_elements<T>);
  });
}

Prepared prepare_lion(const KernelCall& call) {
  const Signature signature{1, false};
  if (std::string why = unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const math::LionSettings settings = lion_settings(call);
  return for_state_type(call.inputs[0].dtype, [&]<class T>() {
    const auto share = [=](const KernelBuffers& buffers) {
      return math::lion_step<T>(settings, static_cast<double>(*buffers.in<T>(signature.lr())));
    };
    return optimizer_kernel<T>(
        call, signature, share,
        [](const math::LionStep<T>& rule, const KernelBuffers& at, int64_t count) {
          const T *param = at.in<T>(0), *grad = at.in<T>(1), *old = at.in<T>(2);
          T *to = at.out<T>(0), *fresh = at.out<T>(1);
          for (int64_t i = 0; i < count; ++i) {
            T p = param[i], m = old[i];
            rule.update(p, grad[i], m);
            to[i] = p;
            fresh[i] = m;
          }
        });
  });
}

}  // namespace

std::vector<KernelRow> adaptive_optimizer_rows() {
  return {
      {"ai.halfnote", "Adagrad", "reference", prepare_adagrad},
      {"ai.halfnote", "Lion", "reference", prepare_lion},
      {"ai.halfnote", "RMSprop", "reference", prepare_rmsprop},
  };
}

}  // namespace halfnote::cpu
