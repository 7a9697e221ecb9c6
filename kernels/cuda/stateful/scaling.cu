// What a step of mixed precision decides from its gradients, all on the device: AllFinite,
// GlobalNorm, UpdateLossScale.
#include "kernels/cpu/stateful/scaling.h"

#include "kernels/cpu/stateful/norm.h"
#include "kernels/cuda/stateful/parts.h"
#include "kernels/cuda/stateful/segments.h"

namespace halfnote::HN_CUDA {

namespace {

/// A gradient, in its own type; of bool, earlier answers.
struct Judged {
  const std::byte* data;
  int64_t count;
  DType dtype;
  bool aligned;
};

/// What the blocks of a launch leave: `sums` may be null.
struct Judgements {
  double* sums;       // of squares
  uint32_t* special;  // is there an infinity or a NaN?
};

/// Part `index` of a tensor, where all parts have `length` elements.
struct Part {
  int64_t index, length;
};

/// The sum of squares of a chunk, each element times the factor, and whether one of them is an
/// infinity or NaN before that.
template <class T>
__device__ void judge(const Judged& x, Part part, const std::byte* factor, double& sum,
                      bool& special) {
  constexpr int kTogether = 16 / sizeof(T);
  const Math<T> scale = factor == nullptr ? 1 : *reinterpret_cast<const Math<T>*>(factor);
  const auto look = [&](const auto& place) {
    const Packed<T, kTogether> pack = place.load(reinterpret_cast<const T*>(x.data));
    HN_UNROLL
    for (int k = 0; k < kTogether; ++k) {
      if (!place.has(k)) continue;
      const Math<T> math = load_number(pack.of[k]);
      special = special || !(math - math == 0);
      const auto value = static_cast<double>(math * scale);
      sum += value * value;
    }
  };
  walk_chunk<kTogether, 4>(part.index, x.count, x.aligned, look, part.length);
}

/// Is an earlier answer among those of a chunk false?
__device__ inline bool is_refuted(const Judged& answers, Part part) {
  constexpr int kTogether = 16;
  bool refuted = false;
  const auto look = [&](const auto& place) {
    const auto pack = place.load(reinterpret_cast<const uint8_t*>(answers.data));
    HN_UNROLL
    for (int k = 0; k < kTogether; ++k) refuted = refuted || (place.has(k) && pack.of[k] == 0);
  };
  walk_chunk<kTogether, 4>(part.index, answers.count, answers.aligned, look, part.length);
  return refuted;
}

__global__ void __launch_bounds__(kBlock)
    judge_chunks(const Judged* gradients, const Chunk* chunks, int64_t length,
                 const std::byte* factor, Judgements to) {
  const Chunk chunk = chunks[blockIdx.x];
  const Part part{chunk.index, length};
  const Judged x = gradients[chunk.segment];
  double sum = 0;
  bool special = false;
  if (x.dtype == DType::kF16) {
    judge<Half>(x, part, factor, sum, special);
  } else if (x.dtype == DType::kBF16) {
    judge<BFloat16>(x, part, factor, sum, special);
  } else if (x.dtype == DType::kF32) {
    judge<float>(x, part, factor, sum, special);
  } else if (x.dtype == DType::kBool) {
    special = is_refuted(x, part);
  } else {
    judge<double>(x, part, factor, sum, special);
  }
  const bool any = __syncthreads_or(special) != 0;
  if (to.sums != nullptr) sum = merge_block<AddNumbers, kBlock>(sum);
  if (threadIdx.x != 0) return;
  to.special[blockIdx.x] = any;
  if (to.sums != nullptr) to.sums[blockIdx.x] = sum;
}

/// The judgement of all from those of the chunks, the sums in order.
__global__ void __launch_bounds__(kBlock)
    finish_judging(Judgements from, int64_t chunks, RealOutput norm, bool* finite) {
  double sum = 0;
  bool special = false;
  for (int64_t i = threadIdx.x; i < chunks; i += kBlock) {
    if (from.sums != nullptr) sum += from.sums[i];
    special = special || from.special[i] != 0;
  }
  const bool any = __syncthreads_or(special) != 0;
  sum = merge_block<AddNumbers, kBlock>(sum);
  if (threadIdx.x != 0) return;
  if (norm.data != nullptr) norm.write(0, math::sqrt(sum));
  if (finite != nullptr) *finite = !any;
}

/// Where the kernel of a judgement puts what, and where it finds a factor of the norm.
struct JudgingForm {
  bool norm = false, finite = false;
  DType norm_type = DType::kUndefined;
  bool scaled = false;

  size_t finite_output() const { return norm ? 1 : 0; }
};

using Gradients = std::vector<cpu::NormOperands::Gradient>;

/// Two launches, however many gradients there are.
Prepared judging_kernel(const Gradients& gradients, const JudgingForm& form) {
  int64_t elements = 0;
  for (const auto& gradient : gradients) elements += gradient.count;
  const int64_t length = chunk_length(elements);
  std::vector<int64_t> counts;
  for (const auto& gradient : gradients) counts.push_back(chunks_of(gradient.count, length));
  const TableForm table(sizeof(Judged), {counts});
  const size_t sums = form.norm ? table.blocks(0) * sizeof(double) : 0;
  const auto write = [gradients, table](const KernelBuffers& buffers, std::byte* to) {
    std::vector<Judged> all;
    for (size_t k = 0; k < gradients.size(); ++k) {
      const std::byte* data = buffers.inputs[k];
      all.push_back({data, gradients[k].count, gradients[k].dtype, aligned_for_packs({data})});
    }
    table.write<Judged>(all, to);
  };
  const auto run = [=, count = gradients.size()](const KernelBuffers& buffers) {
    const Judgements parts{form.norm ? reinterpret_cast<double*>(buffers.workspace) : nullptr,
                           reinterpret_cast<uint32_t*>(buffers.workspace + sums)};
    Stream& stream = stream_of(buffers);
    launch(stream, judge_chunks, table.blocks(0), kBlock, 0, table.segments<Judged>(buffers),
           table.chunks(buffers), length, form.scaled ? buffers.inputs[count] : nullptr, parts);
    RealOutput norm;
    if (form.norm) norm = {buffers.outputs[0], form.norm_type};
    bool* finite = form.finite ? buffers.out<bool>(form.finite_output()) : nullptr;
    launch(stream, finish_judging, 1, kBlock, 0, parts, table.blocks(0), norm, finite);
  };
  return make_table_kernel(table.bytes(), sums + table.blocks(0) * sizeof(uint32_t), run, write);
}

Prepared prepare_all_finite(const KernelCall& call) {
  if (!call.has_output(0) || call.outputs[0].dtype != DType::kBool) {
    return Prepared::no("the output is not bool");
  }
  Gradients gradients;
  for (const Operand& input : call.inputs) {
    const bool known = is_16bit_float(input.dtype) || input.dtype == DType::kF32 ||
                       input.dtype == DType::kF64 || input.dtype == DType::kBool;
    if (!known) return Prepared::no("no float type: " + std::string(short_name(input.dtype)));
    gradients.push_back({input.dtype, input.size()});
  }
  return judging_kernel(gradients, {false, true});
}

Prepared prepare_global_norm(const KernelCall& call) {
  const cpu::NormOperands operands = cpu::norm_operands(call);
  if (!operands.refusal.empty()) return Prepared::no(operands.refusal);
  return judging_kernel(operands.gradients,
                        {true, operands.judges, call.outputs[0].dtype, operands.scaled});
}

/// Pointers to the states, in the order of the operands.
struct LossScalePointers {
  float* scale;
  int32_t *growth, *hysteresis;
  float* pending;
  int32_t* clean;
  int64_t* skips;
  int32_t *skips_in_row, *floor_hits;
};

struct UpdateScale {
  math::LossScaleRule rule;
  LossScalePointers old, to;
  const bool* finite;
  __device__ void operator()(int64_t) const {
    const math::LossScaleState state = {*old.scale,        *old.growth,    *old.hysteresis,
                                        *old.pending,      *old.clean,     *old.skips,
                                        *old.skips_in_row, *old.floor_hits};
    const math::LossScaleState next = math::update_loss_scale(rule, state, *finite);
    *to.scale = next.scale;
    *to.growth = next.growth;
    *to.hysteresis = next.hysteresis;
    *to.pending = next.pending;
    *to.clean = next.clean;
    *to.skips = next.skips;
    *to.skips_in_row = next.skips_in_row;
    *to.floor_hits = next.floor_hits;
  }
};

/// `at(i)` is the address of state i.
template <class At>
LossScalePointers loss_scale_pointers(At&& at) {
  const auto word = [&](size_t i) { return reinterpret_cast<int32_t*>(at(i)); };
  const auto real = [&](size_t i) { return reinterpret_cast<float*>(at(i)); };
  return {real(0), word(1), word(2), real(3), word(4), reinterpret_cast<int64_t*>(at(5)),
          word(6), word(7)};
}

Prepared prepare_update_loss_scale(const KernelCall& call) {
  math::LossScaleRule rule;
  if (std::string why = cpu::plan_update_loss_scale(call, rule); !why.empty())
    return Prepared::no(why);
  const auto body = [rule](const KernelBuffers& buffers) {
    const LossScalePointers old =
        loss_scale_pointers([&](size_t i) { return const_cast<std::byte*>(buffers.inputs[i]); });
    const LossScalePointers to = loss_scale_pointers([&](size_t i) { return buffers.outputs[i]; });
    for_each(stream_of(buffers), 1,
             UpdateScale{rule, old, to, buffers.in<bool>(cpu::kLossScaleStates)});
  };
  return make_kernel(body, 0, [](size_t input, size_t output) { return input == output; });
}

}  // namespace

std::vector<KernelRow> scaling_rows() {
  return {
      {"ai.halfnote", "AllFinite", "own.all_finite", prepare_all_finite},
      {"ai.halfnote", "GlobalNorm", "own.global_norm", prepare_global_norm},
      {"ai.halfnote", "UpdateLossScale", "own.loss_scale", prepare_update_loss_scale},
  };
}

}  // namespace halfnote::HN_CUDA
