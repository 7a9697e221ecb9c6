// The optimizers of ai.halfnote: SGD, Momentum, Adam, AdamW. Where `commit` is false the old state
// is given back bit for bit.
#include <cstring>

#include "kernels/cpu/stateful/parts.h"
#include "kernels/cpu/support.h"
#include "kernels/math/optimizer.h"

namespace halfnote::cpu {

namespace {

/// Where the operands of an optimizer are. Inputs: param, grad, `moments` state tensors, lr,
/// [step], [commit].
struct Signature {
  size_t moments = 0;
  bool has_step = true;

  size_t lr() const { return 2 + moments; }
  size_t step() const { return 3 + moments; }
  size_t commit() const { return has_step ? 4 + moments : 3 + moments; }
  /// The input whose new value output `output` is.
  size_t old_of(size_t output) const { return output == 0 ? 0 : 1 + output; }
};

/// Why the operands do not fit, or an empty string.
std::string unfit_state(const KernelCall& call, const Signature& signature) {
  if (call.inputs.size() < signature.commit() || call.outputs.size() != 1 + signature.moments) {
    return "an operand is missing";
  }
  for (size_t i = 0; i < signature.lr() + 1; ++i) {
    if (!call.has_input(i)) return "an operand is missing";
    if (call.inputs[i].dtype != call.inputs[0].dtype) return "operands of different types";
    const int64_t size = i < signature.lr() ? call.inputs[0].size() : 1;
    if (call.inputs[i].size() != size) return "operands of different sizes";
  }
  for (const Operand& output : call.outputs) {
    if (output.dtype != call.inputs[0].dtype) return "operands of different types";
    if (output.size() != call.inputs[0].size()) return "operands of different sizes";
  }
  if (signature.has_step &&
      (!call.has_input(signature.step()) || call.inputs[signature.step()].dtype != DType::kI64)) {
    return "step is not i64";
  }
  if (call.has_input(signature.commit()) && call.inputs[signature.commit()].dtype != DType::kBool) {
    return "commit is not bool";
  }
  return {};
}

/// A kernel around `update(buffers, begin, end)`, which is called only for steps that commit.
template <class T, class Update>
Prepared optimizer_kernel(const KernelCall& call, const Signature& signature, Update update) {
  const auto body = [=, count = call.inputs[0].size(),
                     threads = call.threads](const KernelBuffers& buffers) {
    const bool* commit = buffers.in<bool>(signature.commit());
    if (!commit || *commit) {
      update(buffers, count, threads);
      return;
    }
    for (size_t output = 0; output <= signature.moments; ++output) {
      const T* old = buffers.in<T>(signature.old_of(output));
      if (count != 0 && old != buffers.out<T>(output)) {
        std::memmove(buffers.out<T>(output), old, static_cast<size_t>(count) * sizeof(T));
      }
    }
  };
  return make_kernel(body, 0, [signature](size_t input, size_t output) {
    return input == signature.old_of(output);
  });
}

/// f32 and f64 only: state has no 16-bit form.
template <class Body>
Prepared for_state_type(DType dtype, Body&& body) {
  if (dtype == DType::kF32) return body.template operator()<float>();
  if (dtype == DType::kF64) return body.template operator()<double>();
  return Prepared::no("optimizer state is neither f32 nor f64");
}

Prepared prepare_sgd(const KernelCall& call) {
  const Signature signature{0, false};
  if (std::string why = unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const float decay = attributes_of(call).get_float("weight_decay", 0);
  return for_state_type(call.inputs[0].dtype, [&]<class T>() {
    return optimizer_kernel<T>(
        call, signature, [=](const KernelBuffers& buffers, int64_t count, int threads) {
          const T *param = buffers.in<T>(0), *grad = buffers.in<T>(1);
          const T lr = *buffers.in<T>(2);
          T* to = buffers.out<T>(0);
          parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              to[i] = math::sgd(param[i], grad[i], lr, static_cast<T>(decay));
            }
          });
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
    return optimizer_kernel<T>(
        call, signature, [=](const KernelBuffers& buffers, int64_t count, int threads) {
          const bool first = *buffers.in<int64_t>(signature.step()) <= 1;
          const math::MomentumStep<T> rule = {*buffers.in<T>(signature.lr()),
                                              static_cast<T>(momentum),
                                              static_cast<T>(1 - dampening),
                                              static_cast<T>(decay),
                                              first,
                                              nesterov};
          const T *param = buffers.in<T>(0), *grad = buffers.in<T>(1), *old = buffers.in<T>(2);
          T *to = buffers.out<T>(0), *velocity = buffers.out<T>(1);
          parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              T p = param[i], v = old[i];
              rule.update(p, grad[i], v);
              to[i] = p;
              velocity[i] = v;
            }
          });
        });
  });
}

Prepared prepare_adam(const KernelCall& call, bool decoupled) {
  const Signature signature{2, true};
  if (std::string why = unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  const Attributes& attributes = attributes_of(call);
  const math::AdamSettings settings = {
      attributes.get_float("beta1", 0.9f), attributes.get_float("beta2", 0.999f),
      attributes.get_float("epsilon", 1e-8f),
      attributes.get_float("weight_decay", decoupled ? 0.01f : 0.0f), decoupled};
  return for_state_type(call.inputs[0].dtype, [&]<class T>() {
    return optimizer_kernel<T>(
        call, signature, [=](const KernelBuffers& buffers, int64_t count, int threads) {
          const auto rule =
              math::adam_step<T>(settings, static_cast<double>(*buffers.in<T>(signature.lr())),
                                 static_cast<double>(*buffers.in<int64_t>(signature.step())));
          const T *param = buffers.in<T>(0), *grad = buffers.in<T>(1);
          const T *old_m = buffers.in<T>(2), *old_v = buffers.in<T>(3);
          T *to = buffers.out<T>(0), *new_m = buffers.out<T>(1), *new_v = buffers.out<T>(2);
          parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              T p = param[i], m = old_m[i], v = old_v[i];
              rule.update(p, grad[i], m, v);
              to[i] = p;
              new_m[i] = m;
              new_v[i] = v;
            }
          });
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
