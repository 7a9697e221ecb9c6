// The optimizers of ai.halfnote: SGD, Momentum, Adam, AdamW; and what all of them ask of operands.
#include "kernels/math/optimizer.h"
#include "kernels/cpu/stateful/optimizer_state.h"
#include "kernels/cpu/stateful/parts.h"

namespace halfnote::cpu {

namespace {

/// Why the operands of device passes do not fit, or null.
const char* unfit_extras(const KernelCall& call, const Signature& signature, size_t states) {
  const DType param = call.inputs[0].dtype;
  const Operand& gradient = call.inputs[1];
  if (gradient.dtype != param && gradient.dtype != DType::kF32 && !is_16bit_float(gradient.dtype))
    return "a gradient wider than the parameter";
  if (gradient.size() != call.inputs[0].size()) return "operands of different sizes";
  for (size_t k = 0; k < kFactors; ++k) {
    if (!call.has_input(signature.factor(k))) continue;
    const Operand& factor = call.inputs[signature.factor(k)];
    if (factor.dtype != param || factor.size() != 1) return "a factor that is no number";
  }
  if (call.outputs.size() == states) return nullptr;
  const Operand& copy = call.outputs[states];
  const bool fits = is_16bit_float(copy.dtype) && copy.size() == call.inputs[0].size();
  return fits ? nullptr : "the copy is not the parameter in 16 bits";
}

}  // namespace

std::string unfit_state(const KernelCall& call, const Signature& signature) {
  const std::vector<size_t> old = signature.old_inputs();
  if (call.inputs.size() < signature.commit() || call.inputs.size() > kOptimizerInputs ||
      call.outputs.size() < old.size() || call.outputs.size() > old.size() + 1) {
    return "an operand is missing";
  }
  const Operand& param = call.inputs[0];
  const auto unfit = [&](const Operand& operand, int64_t size) -> const char* {
    if (operand.dtype != param.dtype) return "operands of different types";
    return operand.size() == size ? nullptr : "operands of different sizes";
  };
  size_t output = 0;
  for (size_t i = 0; i < signature.lr() + 1; ++i) {
    const bool is_slot = i >= 2 && i < signature.lr();
    if (is_slot && !signature.has(i - 2)) continue;
    if (!call.has_input(i)) return "an operand is missing";
    if (i == 1) continue;
    int64_t size = i == signature.lr() ? 1 : param.size();
    if (is_slot && !signature.sizes.empty()) size = signature.sizes[i - 2];
    if (const char* why = unfit(call.inputs[i], size)) return why;
    if (output >= old.size() || old[output] != i) continue;
    if (const char* why = unfit(call.outputs[output], size)) return why;
    ++output;
  }
  const auto is_one = [&](size_t input, DType dtype) {
    return call.has_input(input) && call.inputs[input].dtype == dtype &&
           call.inputs[input].size() == 1;
  };
  if (signature.has_step && !is_one(signature.step(), DType::kI64)) return "step is not one i64";
  if (call.has_input(signature.commit()) && !is_one(signature.commit(), DType::kBool)) {
    return "commit is not one bool";
  }
  const char* why = unfit_extras(call, signature, old.size());
  return why == nullptr ? std::string() : why;
}

GradientForm gradient_form(const KernelCall& call, const Signature& signature) {
  GradientForm form;
  form.dtype = call.inputs[1].dtype;
  for (size_t k = 0; k < kFactors; ++k) {
    if (call.has_input(signature.factor(k))) form.factors[form.count++] = signature.factor(k);
  }
  return form;
}

CopyForm copy_form(const KernelCall& call, const Signature& signature) {
  const size_t states = signature.old_inputs().size();
  if (call.outputs.size() == states) return {};
  return {call.outputs[states].dtype, states};
}

KeptState::KeptState(const KernelCall& call, const Signature& signature)
    : old_(signature.old_inputs()), commit_(signature.commit()) {
  for (size_t i = 0; i < old_.size(); ++i) {
    const Operand& output = call.outputs[i];
    bytes_.push_back(static_cast<size_t>(output.size()) * size_of(output.dtype));
  }
}

bool KeptState::keeps(const KernelBuffers& buffers) const {
  const bool* commit = buffers.in<bool>(commit_);
  if (commit == nullptr || *commit) return false;
  for (size_t output = 0; output < old_.size(); ++output) {
    const std::byte* from = buffers.inputs[old_[output]];
    std::byte* to = buffers.outputs[output];
    if (bytes_[output] != 0 && from != to) std::memmove(to, from, bytes_[output]);
  }
  return true;
}

math::AdamSettings adam_settings(const KernelCall& call, bool decoupled) {
  const Attributes& attributes = attributes_of(call);
  return {attributes.get_float("beta1", 0.9f),
          attributes.get_float("beta2", 0.999f),
          attributes.get_float("epsilon", 1e-8f),
          attributes.get_float("weight_decay", decoupled ? 0.01f : 0.0f),
          decoupled,
          !decoupled || attributes.get_int("correct_bias", 1) != 0,
          decoupled && attributes.get_int("adam_mode", 0) == 1};
}

namespace {

Prepared prepare_sgd(const KernelCall& call) {
  const Signature signature{0, false};
  if (std::string why = unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const float decay = attributes_of(call).get_float("weight_decay", 0);
  return for_state_type(call.inputs[0].dtype, [&]<class T>() {
    return optimizer_kernel<T>(
        call, signature, [](const KernelBuffers& buffers) { return *buffers.in<T>(2); },
        [=](T lr, const KernelBuffers& at, int64_t count) {
          const T *param = at.in<T>(0), *grad = at.in<T>(1);
          T* to = at.out<T>(0);
          for (int64_t i = 0; i < count; ++i) {
            to[i] = math::sgd(param[i], grad[i], lr, static_cast<T>(decay));
          }
        });
  });
}

Prepared prepare_momentum(const KernelCall& call) {
  const Signature signature{1, true};
  if (std::string why = unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const Attributes& attributes = attributes_of(call);
  const double momentum = attributes.get_float("momentum", 0.9f);
  const double dampening = attributes.get_float("dampening", 0);
  const double decay = attributes.get_float("weight_decay", 0);
  const bool nesterov = attributes.get_int("nesterov", 0) != 0;
  return for_state_type(call.inputs[0].dtype, [&]<class T>() {
    const auto share = [=](const KernelBuffers& buffers) {
      const bool first = *buffers.in<int64_t>(signature.step()) <= 1;
      return math::MomentumStep<T>{*buffers.in<T>(signature.lr()),
                                   static_cast<T>(momentum),
                                   static_cast<T>(1 - dampening),
                                   static_cast<T>(decay),
                                   first,
                                   nesterov};
    };
    return optimizer_kernel<T>(
        call, signature, share,
        [](const math::MomentumStep<T>& rule, const KernelBuffers& at, int64_t count) {
          const T *param = at.in<T>(0), *grad = at.in<T>(1), *old = at.in<T>(2);
          T *to = at.out<T>(0), *velocity = at.out<T>(1);
          for (int64_t i = 0; i < count; ++i) {
            T p = param[i], v = old[i];
            rule.update(p, grad[i], v);
            to[i] = p;
            velocity[i] = v;
          }
        });
  });
}

Prepared prepare_adam(const KernelCall& call, bool decoupled) {
  const Signature signature{2, true};
  if (std::string why = unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const math::AdamSettings settings = adam_settings(call, decoupled);
  return for_state_type(call.inputs[0].dtype, [&]<class T>() {
    const auto share = [=](const KernelBuffers& buffers) {
      return math::adam_step<T>(settings, static_cast<double>(*buffers.in<T>(signature.lr())),
                                static_cast<double>(*buffers.in<int64_t>(signature.step())));
    };
    return optimizer_kernel<T>(
        call, signature, share,
        [](const math::AdamStep<T>& rule, const KernelBuffers& at, int64_t count) {
          const T *param = at.in<T>(0), *grad = at.in<T>(1);
          const T *old_m = at.in<T>(2), *old_v = at.in<T>(3);
          T *to = at.out<T>(0), *new_m = at.out<T>(1), *new_v = at.out<T>(2);
          for (int64_t i = 0; i < count; ++i) {
            T p = param[i], m = old_m[i], v = old_v[i];
            rule.update(p, grad[i], m, v);
            to[i] = p;
            new_m[i] = m;
            new_v[i] = v;
          }
        });
  });
}

Prepared prepare_coupled_adam(const KernelCall& call) { return prepare_adam(call, false); }
Prepared prepare_adam_w(const KernelCall& call) { return prepare_adam(call, true); }

}  // namespace

std::vector<KernelRow> optimizer_rows() {
  return {
      {"ai.halfnote", "Adam", "reference", prepare_coupled_adam},
      {"ai.halfnote", "AdamW", "reference", prepare_adam_w},
      {"ai.halfnote", "Momentum", "reference", prepare_momentum},
      {"ai.halfnote", "SGD", "reference", prepare_sgd},
  };
}

}  // namespace halfnote::cpu
