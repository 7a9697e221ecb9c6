// What a step of mixed precision decides from its gradients, all on the device: AllFinite,
// GlobalNorm, UpdateLossScale.
#include "kernels/cpu/stateful/scaling.h"

#include "kernels/cpu/stateful/norm.h"
#include "kernels/cuda/stateful/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

struct InputCount {
  DType dtype;
  int64_t count;
};

/// Sets the flag where an element is an infinity or NaN; all threads write the same.
template <class T>
struct FlagSpecial {
  const T* x;
  uint32_t* flag;
  __device__ void operator()(int64_t i) const {
    const Math<T> value = load_number(x[i]);
    if (!(value - value == 0)) *flag = 1;
  }
};

struct WriteFinite {
  const uint32_t* flag;
  bool* finite;
  __device__ void operator()(int64_t) const { *finite = *flag == 0; }
};

void flag_special(Stream& stream, const InputCount& input, const std::byte* x, uint32_t* flag) {
  switch (input.dtype) {
    case DType::kF16:
      return for_each(stream, input.count,
                      FlagSpecial<Half>{reinterpret_cast<const Half*>(x), flag});
    case DType::kBF16:
      return for_each(stream, input.count,
                      FlagSpecial<BFloat16>{reinterpret_cast<const BFloat16*>(x), flag});
    case DType::kF32:
      return for_each(stream, input.count,
                      FlagSpecial<float>{reinterpret_cast<const float*>(x), flag});
    default:
      return for_each(stream, input.count,
                      FlagSpecial<double>{reinterpret_cast<const double*>(x), flag});
  }
}

Prepared prepare_all_finite(const KernelCall& call) {
  if (!call.has_output(0) || call.outputs[0].dtype != DType::kBool) {
    return Prepared::no("the output is not bool");
  }
  std::vector<InputCount> inputs;
  for (const Operand& input : call.inputs) {
    const bool known =
        is_16bit_float(input.dtype) || input.dtype == DType::kF32 || input.dtype == DType::kF64;
    if (!known) return Prepared::no("no float type: " + std::string(short_name(input.dtype)));
    inputs.push_back({input.dtype, input.size()});
  }
  const auto body = [inputs](const KernelBuffers& buffers) {
    auto* flag = reinterpret_cast<uint32_t*>(buffers.workspace);
    stream_of(buffers).fill(flag, 0, sizeof(uint32_t));
    for (size_t i = 0; i < inputs.size(); ++i) {
      flag_special(stream_of(buffers), inputs[i], buffers.inputs[i], flag);
    }
    for_each(stream_of(buffers), 1, WriteFinite{flag, buffers.out<bool>(0)});
  };
  return make_kernel(body, sizeof(uint32_t));
}

constexpr int64_t kNormSlice = 16384;  // elements of a block

/// The sum of squares of each slice, times a factor each; raises the flag where an element, before
/// it is scaled, is an infinity or NaN.
template <class T>
__global__ void __launch_bounds__(kBlock)
    square_sums(const T* x, int64_t count, const Math<T>* factor, uint32_t* flag, double* parts) {
  const int64_t begin = int64_t{blockIdx.x} * kNormSlice;
  const int64_t end = begin + kNormSlice < count ? begin + kNormSlice : count;
  double sum = 0;
  bool special = false;
  for (int64_t i = begin + threadIdx.x; i < end; i += kBlock) {
    Math<T> math = load_number(x[i]);
    special = special || !(math - math == 0);
    if (factor != nullptr) math = math * *factor;
    const auto value = static_cast<double>(math);
    sum += value * value;
  }
  if (special) *flag = 1;
  sum = merge_block<AddNumbers, kBlock>(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kBlock)
    root_of_sum(const double* parts, int64_t count, RealOutput norm, const uint32_t* flag,
                bool* finite) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kBlock) sum += parts[i];
  sum = merge_block<AddNumbers, kBlock>(sum);
  if (threadIdx.x != 0) return;
  norm.write(0, math::sqrt(sum));
  if (finite != nullptr) *finite = *flag == 0;
}

/// One launch a gradient; gives how many parts it wrote.
template <class T>
int64_t sum_gradient(const KernelBuffers& buffers, size_t k, int64_t count, const std::byte* factor,
                     uint32_t* flag, double* parts) {
  const unsigned blocks = blocks_for(count, kNormSlice);
  launch(stream_of(buffers), square_sums<T>, blocks, kBlock, 0, buffers.in<T>(k), count,
         reinterpret_cast<const Math<T>*>(factor), flag, parts);
  return blocks;
}

int64_t sum_gradient(DType dtype, const KernelBuffers& buffers, size_t k, int64_t count,
                     const std::byte* factor, uint32_t* flag, double* parts) {
  switch (dtype) {
    case DType::kF16:
      return sum_gradient<Half>(buffers, k, count, factor, flag, parts);
    case DType::kBF16:
      return sum_gradient<BFloat16>(buffers, k, count, factor, flag, parts);
    case DType::kF32:
      return sum_gradient<float>(buffers, k, count, factor, flag, parts);
    default:
      return sum_gradient<double>(buffers, k, count, factor, flag, parts);
  }
}

/// The workspace holds a flag, then the parts.
Prepared prepare_global_norm(const KernelCall& call) {
  const cpu::NormOperands operands = cpu::norm_operands(call);
  if (!operands.refusal.empty()) return Prepared::no(operands.refusal);
  int64_t all = 0;
  for (const auto& gradient : operands.gradients) all += blocks_for(gradient.count, kNormSlice);
  const auto body = [operands, all, to = call.outputs[0].dtype](const KernelBuffers& buffers) {
    auto* flag = reinterpret_cast<uint32_t*>(buffers.workspace);
    auto* parts = reinterpret_cast<double*>(buffers.workspace + sizeof(double));
    stream_of(buffers).fill(flag, 0, sizeof(uint32_t));
    int64_t first = 0;
    for (size_t k = 0; k < operands.gradients.size(); ++k) {
      const auto& [dtype, count] = operands.gradients[k];
      first +=
          sum_gradient(dtype, buffers, k, count, operands.factor_in(buffers), flag, parts + first);
    }
    launch(stream_of(buffers), root_of_sum, 1, kBlock, 0, parts, all,
           RealOutput{buffers.outputs[0], to}, flag,
           operands.judges ? buffers.out<bool>(1) : nullptr);
  };
  return make_kernel(body, static_cast<size_t>(all + 1) * sizeof(double));
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
