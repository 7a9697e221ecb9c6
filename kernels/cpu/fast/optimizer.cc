// Adam, AdamW, AllFinite and GlobalNorm with the loops of the pointwise kernels: at memory speed,
// with the bits of the reference.
#include "kernels/math/optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/pointwise/loops.h"
#include "kernels/cpu/stateful/norm.h"
#include "kernels/cpu/stateful/optimizer_state.h"

namespace halfnote::cpu::fast {

namespace {

using pointwise::Loops;
using pointwise::vector_loops;

constexpr std::string_view kNoVectors = "the CPU has neither AVX-512 nor AVX2 with FMA";

Prepared prepare_adam(const KernelCall& call, bool decoupled) {
  const Signature signature{2, true};
  if (std::string why = unfit_state(call, signature); !why.empty()) return Prepared::no(why);
  if (call.inputs[0].dtype != DType::kF32) return Prepared::no("state that is not f32");
  const Loops* loops = vector_loops();
  if (loops == nullptr) return Prepared::no(std::string(kNoVectors));
  const auto share = [=, settings = adam_settings(call, decoupled)](const KernelBuffers& buffers) {
    const auto rule =
        math::adam_step<float>(settings, static_cast<double>(*buffers.in<float>(signature.lr())),
                               static_cast<double>(*buffers.in<int64_t>(signature.step())));
    return pointwise::AdamNumbers{
        rule.beta1,       rule.one_minus_beta1, rule.beta2, rule.one_minus_beta2,
        rule.epsilon,     rule.decay,           rule.keep,  rule.step_size,
        rule.second_root, rule.late_keep};
  };
  const auto elements = [loops](const pointwise::AdamNumbers& numbers, const KernelBuffers& at,
                                int64_t count) {
    loops->adam(numbers,
                {at.in<float>(0), at.in<float>(1), at.in<float>(2), at.in<float>(3),
                 at.out<float>(0), at.out<float>(1), at.out<float>(2)},
                count);
  };
  return optimizer_kernel<float>(call, signature, share, elements);
}

Prepared prepare_coupled_adam(const KernelCall& call) { return prepare_adam(call, false); }
Prepared prepare_adam_w(const KernelCall& call) { return prepare_adam(call, true); }

bool any_special(const Loops& loops, DType dtype, const std::byte* data, int64_t begin,
                 int64_t count) {
  if (dtype == DType::kBool)  // an answer from before
    return std::find(data + begin, data + begin + count, std::byte{0}) != data + begin + count;
  if (dtype == DType::kF32)
    return loops.any_special_32(reinterpret_cast<const uint32_t*>(data) + begin, count,
                                0x7f800000u);
  return loops.any_special_16(reinterpret_cast<const uint16_t*>(data) + begin, count,
                              dtype == DType::kF16 ? 0x7c00u : 0x7f80u);
}

Prepared prepare_all_finite(const KernelCall& call) {
  const Loops* loops = vector_loops();
  if (loops == nullptr) return Prepared::no(std::string(kNoVectors));
  if (!call.has_output(0) || call.outputs[0].dtype != DType::kBool)
    return Prepared::no("the output is not bool");
  std::vector<std::pair<DType, int64_t>> inputs;
  for (const Operand& input : call.inputs) {
    const bool known =
        input.dtype == DType::kF32 || input.dtype == DType::kBool || is_16bit_float(input.dtype);
    if (!known) return Prepared::no("elements of type " + std::string(short_name(input.dtype)));
    inputs.emplace_back(input.dtype, input.size());
  }
  return make_kernel([=, threads = call.threads](const KernelBuffers& buffers) {
    std::atomic<bool> special = false;
    for (size_t i = 0; i < inputs.size() && !special; ++i) {
      const auto& [dtype, count] = inputs[i];
      parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
        if (special.load(std::memory_order_relaxed)) return;
        if (any_special(*loops, inputs[i].first, buffers.inputs[i], begin, end - begin))
          special.store(true, std::memory_order_relaxed);
      });
    }
    *buffers.out<bool>(0) = !special;
  });
}

/// The block in f32, times the factor: the data itself, or in `room`.
const float* scaled_block(DType dtype, const std::byte* data, int64_t count, const float* factor,
                          float* room) {
  const float* x = reinterpret_cast<const float*>(data);
  if (dtype == DType::kF16) x = load_block(reinterpret_cast<const Half*>(data), count, room);
  if (dtype == DType::kBF16) x = load_block(reinterpret_cast<const BFloat16*>(data), count, room);
  if (factor == nullptr) return x;
  for (int64_t i = 0; i < count; ++i) room[i] = x[i] * *factor;
  return room;
}

Prepared prepare_global_norm(const KernelCall& call) {
  const Loops* loops = vector_loops();
  if (loops == nullptr) return Prepared::no(std::string(kNoVectors));
  const NormOperands operands = norm_operands(call);
  if (!operands.refusal.empty()) return Prepared::no(operands.refusal);
  if (call.outputs[0].dtype != DType::kF32) return Prepared::no("the norm is not f32");
  for (const NormOperands::Gradient& gradient : operands.gradients) {
    if (gradient.dtype == DType::kF64) return Prepared::no("elements of type f64");
  }
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    judge_gradients(
        operands, buffers, threads,
        [&](size_t k, const std::byte* data, int64_t count, double* sum) {
          const DType dtype = operands.gradients[k].dtype;
          const auto* factor = reinterpret_cast<const float*>(operands.factor_in(buffers));
          float room[kElementGrain];
          *sum = loops->sum_squares(scaled_block(dtype, data, count, factor, room), count);
          return any_special(*loops, dtype, data, 0, count);
        });
  };
  return make_kernel(body, operands.workspace());
}

}  // namespace

std::vector<KernelRow> optimizer_rows() {
  return {
      {"ai.halfnote", "Adam", "fast.adam", prepare_coupled_adam},
      {"ai.halfnote", "AdamW", "fast.adam", prepare_adam_w},
      {"ai.halfnote", "AllFinite", "fast.all_finite", prepare_all_finite},
      {"ai.halfnote", "GlobalNorm", "fast.global_norm", prepare_global_norm},
  };
}

}  // namespace halfnote::cpu::fast
