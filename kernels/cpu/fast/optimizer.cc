// Adam, AdamW, AllFinite and GlobalNorm with the loops of the pointwise kernels: at memory speed,
// with the bits of the reference.
#include "kernels/math/optimizer.h"

#include <atomic>
#include <cmath>

#include "kernels/cpu/fast/parts.h"
#include "kernels/cpu/pointwise/loops.h"
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
  const auto update = [=, settings = adam_settings(call, decoupled)](const KernelBuffers& buffers,
                                                                     int64_t count, int threads) {
    const auto rule =
        math::adam_step<float>(settings, static_cast<double>(*buffers.in<float>(signature.lr())),
                               static_cast<double>(*buffers.in<int64_t>(signature.step())));
    const pointwise::AdamNumbers numbers = {
        rule.beta1,       rule.one_minus_beta1, rule.beta2, rule.one_minus_beta2,
        rule.epsilon,     rule.decay,           rule.keep,  rule.step_size,
        rule.second_root, rule.late_keep};
    parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
      const auto in = [&](size_t index) { return buffers.in<float>(index) + begin; };
      const auto out = [&](size_t index) { return buffers.out<float>(index) + begin; };
      loops->adam(numbers, {in(0), in(1), in(2), in(3), out(0), out(1), out(2)}, end - begin);
    });
  };
  return optimizer_kernel<float>(call, signature, update);
}

Prepared prepare_coupled_adam(const KernelCall& call) { return prepare_adam(call, false); }
Prepared prepare_adam_w(const KernelCall& call) { return prepare_adam(call, true); }

bool any_special(const Loops& loops, DType dtype, const std::byte* data, int64_t begin,
                 int64_t count) {
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
    if (input.dtype != DType::kF32 && !is_16bit_float(input.dtype))
      return Prepared::no("elements of type " + std::string(short_name(input.dtype)));
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

/// One partial sum a block of kElementGrain elements, added up in order.
template <class T>
Prepared norm_kernel(const KernelCall& call, const Loops& loops) {
  std::vector<int64_t> counts;
  int64_t blocks = 0;
  for (const Operand& input : call.inputs) {
    if (input.dtype != dtype_of<T>()) return Prepared::no("operands of different types");
    counts.push_back(input.size());
    blocks += sum_blocks(input.size());
  }
  const auto body = [=, &loops, threads = call.threads](const KernelBuffers& buffers) {
    auto* partials = reinterpret_cast<double*>(buffers.workspace);
    int64_t first = 0;
    for (size_t k = 0; k < counts.size(); ++k) {
      parallel_blocks(counts[k], kElementGrain, threads, [&](int64_t begin, int64_t end) {
        float room[kElementGrain];
        const float* x = load_block(buffers.in<T>(k) + begin, end - begin, room);
        partials[first + begin / kElementGrain] = loops.sum_squares(x, end - begin);
      });
      first += sum_blocks(counts[k]);
    }
    double sum = 0;
    for (int64_t i = 0; i < blocks; ++i) sum += partials[i];
    *buffers.out<float>(0) = static_cast<float>(std::sqrt(sum));
  };
  return make_kernel(body, static_cast<size_t>(blocks) * sizeof(double));
}

Prepared prepare_global_norm(const KernelCall& call) {
  const Loops* loops = vector_loops();
  if (loops == nullptr) return Prepared::no(std::string(kNoVectors));
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  if (call.outputs[0].dtype != DType::kF32) return Prepared::no("the norm is not f32");
  return for_small_float(call.inputs[0].dtype,
                         [&]<class T>() { return norm_kernel<T>(call, *loops); });
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
