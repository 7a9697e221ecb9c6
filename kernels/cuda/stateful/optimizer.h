// What the optimizers share: operands as the device reads them, and groups of calls, whose
// parameters are all updated by the same few launches. A call that is alone is a group too.
//
// Learning rate, step and commit are read on the device; what a step shares is computed by one
// thread beforehand. Where `commit` is false the old state is given back bit for bit.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "kernels/cpu/stateful/optimizer_state.h"
#include "kernels/cuda/stateful/parts.h"
#include "kernels/cuda/stateful/segments.h"
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
    HN_UNROLL
    for (int k = 0; k < static_cast<int>(cpu::kFactors); ++k) {
      if (k < count) value = value * *factors[k];
    }
    return value;
  }
};

/// The 16-bit copy of a parameter.
struct CopyPointer {
  void* data = nullptr;  // null: none is asked for
  DType dtype = DType::kUndefined;

  template <class To, class T>
  __device__ static To rounded(T value) {
    if constexpr (std::is_same_v<T, float>) {
      return store_number<To>(value);
    } else {
      return round_to_16bit<To>(value);
    }
  }
  template <class T>
  __device__ void write(int64_t i, T value) const {
    if (data == nullptr) return;
    if (dtype == DType::kF16) {
      static_cast<Half*>(data)[i] = rounded<Half>(value);
    } else {
      static_cast<BFloat16*>(data)[i] = rounded<BFloat16>(value);
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

/// Writes the rule of a step to the beginning of the workspace. `settings(lr, step)`: a struct of
/// plain members.
template <class T, class Rule, class Settings>
Rule* make_rule(const KernelBuffers& buffers, const Signature& signature,
                const Settings& settings) {
  auto* rule = reinterpret_cast<Rule*>(buffers.workspace);
  const int64_t* step = signature.has_step ? buffers.in<int64_t>(signature.step()) : nullptr;
  for_each(stream_of(buffers), 1,
           MakeRule<T, Rule, Settings>{settings, buffers.in<T>(signature.lr()), step, rule});
  return rule;
}

/// Calls with the same settings, as far as the host knows them before they run.
class UpdateGroup {
 public:
  struct Member {
    UpdateForm form;
    Signature signature;
    int64_t count;
    size_t input, inputs, output, outputs;  // the first one of the group's, and how many
  };

  void add(const KernelCall& call, const Signature& signature) {
    members_.push_back({UpdateForm(call, signature), signature, call.inputs[0].size(), inputs_,
                        call.inputs.size(), old_.size(), call.outputs.size()});
    for (const size_t old : signature.old_inputs()) old_.push_back(inputs_ + old);
    old_.resize(members_.back().output + call.outputs.size(), kNone);
    inputs_ += call.inputs.size();
  }
  std::span<const Member> members() const { return members_; }
  /// What a member alone would be given.
  static KernelBuffers buffers_of(const Member& member, const KernelBuffers& group) {
    return {group.inputs.subspan(member.input, member.inputs),
            group.outputs.subspan(member.output, member.outputs), group.workspace};
  }
  int64_t elements() const {
    int64_t all = 0;
    for (const Member& member : members_) all += member.count;
    return all;
  }
  /// The chunks of all, element by element.
  std::vector<int64_t> chunks(int64_t length = kChunk) const {
    std::vector<int64_t> counts;
    for (const Member& member : members_) counts.push_back(chunks_of(member.count, length));
    return counts;
  }
  /// May an output lie over an input? Over the one whose new value it is.
  auto sharing() const {
    return [old = old_](size_t input, size_t output) {
      return output < old.size() && old[output] == input;
    };
  }

 private:
  static constexpr size_t kNone = ~size_t{0};
  std::vector<Member> members_;
  std::vector<size_t> old_;  // by output
  size_t inputs_ = 0;
};

/// Where a parameter of a group is, and what goes with it.
template <class T>
struct Segment {
  static constexpr size_t kSlots = 3;
  Update<T> u;
  Slot<T> slots[kSlots];
  int64_t count;
  bool aligned;  // all of it, for packs

  Segment() = default;
  Segment(const UpdateGroup::Member& member, const KernelBuffers& group)
      : slots{}, count(member.count) {
    const KernelBuffers own = UpdateGroup::buffers_of(member, group);
    u = member.form.update<T>(own);
    aligned = aligned_for_packs({u.param, u.grad.data, u.to, u.copy.data});
    size_t output = 1;
    for (size_t k = 0; k < member.signature.slots; ++k) {
      if (!member.signature.has(k)) continue;
      slots[k] = {own.in<T>(2 + k), own.out<T>(output++)};
      aligned = aligned && aligned_for_packs({slots[k].old, slots[k].fresh});
    }
  }
};

/// A group of calls that all have the same signature; `why` they do not fit, if they do not.
struct GroupOrReason {
  UpdateGroup group;
  std::string why;
};
GroupOrReason group_of(std::span<const KernelCall> calls, const Signature& signature);

/// The row of an optimizer with so many slots, present or absent, whose calls are prepared in
/// groups. Which of them write a 16-bit copy does not matter.
template <Prepared (*kPrepare)(std::span<const KernelCall>)>
KernelRow group_row(std::string_view op, size_t slots) {
  const auto alone = [](const KernelCall& call) { return kPrepare({&call, 1}); };
  return {"ai.halfnote", op, "own.optimizer", alone, {2 + slots, kPrepare, "copy_dtype"}};
}

}  // namespace halfnote::HN_CUDA
