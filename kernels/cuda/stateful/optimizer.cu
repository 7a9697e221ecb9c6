// The optimizers that go element by element: the rules of kernels/math/optimizer.h.
#include "kernels/cuda/stateful/optimizer.h"

namespace halfnote::HN_CUDA {

namespace {

constexpr int kPack = 4;  // elements of a thread at a time

/// Gradients of T that are stored as G.
template <class G, class T, class Place>
__device__ Packed<T, kPack> widened(const void* from, const Place& place) {
  const Packed<G, kPack> stored = place.load(static_cast<const G*>(from));
  Packed<T, kPack> pack;
  HN_UNROLL
  for (int k = 0; k < kPack; ++k) pack.of[k] = static_cast<T>(load_number(stored.of[k]));
  return pack;
}

/// The same gradients as Gradient::operator[] gives, with the factors at hand.
template <class T, class Place>
__device__ Packed<T, kPack> load_gradients(const Gradient<T>& from,
                                           const T (&factors)[cpu::kFactors], const Place& place) {
  Packed<T, kPack> pack;
  if (from.dtype == DType::kF16) {
    pack = widened<Half, T>(from.data, place);
  } else if (from.dtype == DType::kBF16) {
    pack = widened<BFloat16, T>(from.data, place);
  } else if (from.dtype == DType::kF32) {
    pack = widened<float, T>(from.data, place);
  } else {
    pack = place.load(static_cast<const T*>(from.data));
  }
  HN_UNROLL
  for (int f = 0; f < static_cast<int>(cpu::kFactors); ++f) {
    if (f >= from.count) continue;
    HN_UNROLL
    for (int k = 0; k < kPack; ++k) pack.of[k] = pack.of[k] * factors[f];
  }
  return pack;
}

template <class To, class T, class Place>
__device__ void store_rounded(void* to, const Packed<T, kPack>& values, const Place& place) {
  Packed<To, kPack> pack;
  HN_UNROLL
  for (int k = 0; k < kPack; ++k) pack.of[k] = CopyPointer::rounded<To>(values.of[k]);
  place.store(static_cast<To*>(to), pack);
}

/// The rule at element k of a pack.
template <int N, class Rule, class T>
__device__ void update_element(const Rule& rule, T& param, T grad, Packed<T, kPack>* slots, int k) {
  if constexpr (N == 0) {
    rule.update(param, grad);
  } else if constexpr (N == 1) {
    rule.update(param, grad, slots[0].of[k]);
  } else if constexpr (N == 2) {
    rule.update(param, grad, slots[0].of[k], slots[1].of[k]);
  } else {
    rule.update(param, grad, slots[0].of[k], slots[1].of[k], slots[2].of[k]);
  }
}

/// Moves all parameters and their N slots by the rule of the step, a chunk a block.
template <class T, int N, class Rule>
__global__ void __launch_bounds__(kBlock)
    update_chunks(const Segment<T>* segments, const Chunk* chunks, const Rule* of_step,
                  int64_t length) {
  const Chunk chunk = chunks[blockIdx.x];
  const Segment<T> s = segments[chunk.segment];
  const Rule rule = *of_step;
  const bool moves = s.u.moves();
  T factors[cpu::kFactors] = {};
  HN_UNROLL
  for (int f = 0; f < static_cast<int>(cpu::kFactors); ++f) {
    if (f < s.u.grad.count) factors[f] = *s.u.grad.factors[f];
  }
  const auto update = [&](const auto& place) {
    Packed<T, kPack> param = place.load(s.u.param), slots[N == 0 ? 1 : N] = {};
    HN_UNROLL
    for (int n = 0; n < N; ++n) {
      if (s.slots[n].old != nullptr) slots[n] = place.load(s.slots[n].old);
    }
    if (moves) {
      const Packed<T, kPack> grad = load_gradients(s.u.grad, factors, place);
      HN_UNROLL
      for (int k = 0; k < kPack; ++k) {
        if (place.has(k)) update_element<N>(rule, param.of[k], grad.of[k], slots, k);
      }
    }
    place.store(s.u.to, param);
    HN_UNROLL
    for (int n = 0; n < N; ++n) {
      if (s.slots[n].fresh != nullptr) place.store(s.slots[n].fresh, slots[n]);
    }
    if (s.u.copy.data == nullptr) return;
    if (s.u.copy.dtype == DType::kF16) {
      store_rounded<Half>(s.u.copy.data, param, place);
    } else {
      store_rounded<BFloat16>(s.u.copy.data, param, place);
    }
  };
  walk_chunk<kPack>(chunk.index, s.count, s.aligned, update, length);
}

/// A kernel that applies the rule of a step to every element of a group: two launches.
template <class T, int N, class Rule, class Settings>
Prepared rule_kernel(const UpdateGroup& group, const Settings& settings) {
  const int64_t length = chunk_length(group.elements());
  const TableForm table(sizeof(Segment<T>), {group.chunks(length)});
  const auto write = [group, table](const KernelBuffers& buffers, std::byte* to) {
    std::vector<Segment<T>> segments;
    for (const auto& member : group.members()) segments.emplace_back(member, buffers);
    table.write<Segment<T>>(segments, to);
  };
  const auto run = [table, settings, length,
                    signature = group.members()[0].signature](const KernelBuffers& buffers) {
    const Rule* rule = make_rule<T, Rule>(buffers, signature, settings);
    launch(stream_of(buffers), update_chunks<T, N, Rule>, table.blocks(0), kBlock, 0,
           table.segments<Segment<T>>(buffers), table.chunks(buffers), rule, length);
  };
  return make_table_kernel(table.bytes(), sizeof(Rule), run, write, group.sharing());
}

template <class T>
struct SgdStep {
  T lr, decay;
  __device__ void update(T& param, T grad) const { param = math::sgd(param, grad, lr, decay); }
};

template <class T>
struct SgdRule {
  T decay;
  __device__ SgdStep<T> operator()(double lr, double) const { return {static_cast<T>(lr), decay}; }
};

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

/// Calls `body.template operator()<T>(group)` for calls that fit the signature.
template <class Body>
Prepared for_group(std::span<const KernelCall> calls, const Signature& signature, Body&& body) {
  const GroupOrReason made = group_of(calls, signature);
  if (!made.why.empty()) return Prepared::no(made.why);
  return cpu::for_state_type(calls[0].inputs[0].dtype,
                             [&]<class T>() { return body.template operator()<T>(made.group); });
}

Prepared prepare_sgd(std::span<const KernelCall> calls) {
  const float decay = attributes_of(calls[0]).get_float("weight_decay", 0);
  return for_group(calls, {0, false}, [&]<class T>(const UpdateGroup& group) {
    return rule_kernel<T, 0, SgdStep<T>>(group, SgdRule<T>{static_cast<T>(decay)});
  });
}

Prepared prepare_momentum(std::span<const KernelCall> calls) {
  const Attributes& attributes = attributes_of(calls[0]);
  const double momentum = attributes.get_float("momentum", 0.9f);
  const double dampening = attributes.get_float("dampening", 0);
  const double decay = attributes.get_float("weight_decay", 0);
  const bool nesterov = attributes.get_int("nesterov", 0) != 0;
  return for_group(calls, {1, true}, [&]<class T>(const UpdateGroup& group) {
    using Rule = math::MomentumStep<T>;
    const Rule rule{T(0),
                    static_cast<T>(momentum),
                    static_cast<T>(1 - dampening),
                    static_cast<T>(decay),
                    false,
                    nesterov};
    return rule_kernel<T, 1, Rule>(group, MomentumRule<T>{rule});
  });
}

template <bool kDecoupled>
Prepared prepare_adam(std::span<const KernelCall> calls) {
  const math::AdamSettings settings = cpu::adam_settings(calls[0], kDecoupled);
  return for_group(calls, {2, true}, [&]<class T>(const UpdateGroup& group) {
    return rule_kernel<T, 2, math::AdamStep<T>>(group, AdamRule<T>{settings});
  });
}

Prepared prepare_adagrad(std::span<const KernelCall> calls) {
  const math::AdagradSettings settings = cpu::adagrad_settings(calls[0]);
  return for_group(calls, {1, true}, [&]<class T>(const UpdateGroup& group) {
    return rule_kernel<T, 1, math::AdagradStep<T>>(group, AdagradRule<T>{settings});
  });
}

Prepared prepare_rmsprop(std::span<const KernelCall> calls) {
  const math::RMSpropSettings settings = cpu::rmsprop_settings(calls[0]);
  const Signature signature = cpu::rmsprop_signature(settings);
  return for_group(calls, signature, [&]<class T>(const UpdateGroup& group) {
    return rule_kernel<T, 3, math::RMSpropStep<T>>(group, RMSpropRule<T>{settings});
  });
}

Prepared prepare_lion(std::span<const KernelCall> calls) {
  const math::LionSettings settings = cpu::lion_settings(calls[0]);
  return for_group(calls, {1, false}, [&]<class T>(const UpdateGroup& group) {
    return rule_kernel<T, 1, math::LionStep<T>>(group, LionRule<T>{settings});
  });
}

}  // namespace

GroupOrReason group_of(std::span<const KernelCall> calls, const Signature& signature) {
  GroupOrReason made;
  for (const KernelCall& call : calls) {
    made.why = cpu::unfit_state(call, signature);
    if (made.why.empty() && call.inputs[0].dtype != calls[0].inputs[0].dtype)
      made.why = "parameters of different types";
    if (!made.why.empty()) return made;
    made.group.add(call, signature);
  }
  return made;
}

std::vector<KernelRow> optimizer_rows() {
  return {
      group_row<prepare_adagrad>("Adagrad", 1),   group_row<prepare_adam<false>>("Adam", 2),
      group_row<prepare_adam<true>>("AdamW", 2),  group_row<prepare_lion>("Lion", 1),
      group_row<prepare_momentum>("Momentum", 1), group_row<prepare_rmsprop>("RMSprop", 3),
      group_row<prepare_sgd>("SGD", 0),
  };
}

}  // namespace halfnote::HN_CUDA
