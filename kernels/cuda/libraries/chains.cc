// The rules of a launch, and chains on the emulated device: read and written through the arguments
// that a GPU would get, computed by the loops of the CPU's reference.
#include "kernels/cuda/libraries/chains.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/pointwise/loops.h"
#include "kernels/cpu/stateful/keep.h"
#include "kernels/cuda/device/emulated_device.h"
#include "kernels/cuda/launch.h"
#include "kernels/math/random.h"

namespace halfnote::libraries {

std::string illegal_launch(const chain::Chain& chain, const chain::Arguments& a) {
  const auto width = static_cast<int64_t>(chain::width(chain));
  const auto sum = sum_of(chain.program);
  const bool along_rows = sum && sum->along_rows;
  if (sum && a.partials == nullptr && (!along_rows || a.blocks > 1))
    return "partial sums without a place";
  if (sum && !along_rows && a.groups > 0 && a.columns % width != 0)
    return "a group beyond the last column";
  const bool some_bits = (a.row_bits >= 0 && a.row_bits <= 5) || a.row_bits == chain::kThreadBits;
  if (along_rows && (a.blocks * a.piece < a.columns || !some_bits)) {
    return "rows that are not shared out";
  }
  if (a.groups < 0 || a.groups * width > a.count) return "groups beyond the last element";
  const auto misplaced = [&](const void* pointer, DType dtype, bool grouped) {
    const size_t size = size_of(dtype);
    const size_t access = std::min<size_t>(16, size * static_cast<size_t>(width));
    return pointer == nullptr ||
           reinterpret_cast<uintptr_t>(pointer) % (grouped && a.groups > 0 ? access : size) != 0;
  };
  for (size_t i = 0; i < chain.inputs.size(); ++i) {
    const chain::Access access = chain.inputs[i].access;
    const bool grouped =
        access == chain::Access::kWhole || (access == chain::Access::kAlong && chain.even);
    if (misplaced(a.in[i], chain.inputs[i].dtype, grouped)) return "an input that is not aligned";
  }
  for (size_t k = 0; k < chain.outputs.size(); ++k) {
    const bool is_sum = sum && sum->output == k;
    if (misplaced(a.out[k], chain.outputs[k], !is_sum)) return "an output that is not aligned";
  }
  return {};
}

}  // namespace halfnote::libraries

namespace halfnote::cuda_emulated {

namespace {

using chain::Access;
using chain::Arguments;
using chain::Chain;
using libraries::ChainKernel;

constexpr int64_t kPiece = 256;
using Line = std::array<float, kPiece>;

float read_number(DType dtype, const void* from, int64_t at) {
  switch (dtype) {
    case DType::kF16:
      return to_f32(static_cast<const Half*>(from)[at]);
    case DType::kBF16:
      return to_f32(static_cast<const BFloat16*>(from)[at]);
    case DType::kBool:
      return static_cast<const uint8_t*>(from)[at] != 0 ? 1.0f : 0.0f;
    default:
      return static_cast<const float*>(from)[at];
  }
}

void write_number(DType dtype, float value, void* to, int64_t at) {
  switch (dtype) {
    case DType::kF16:
      static_cast<Half*>(to)[at] = to_f16(value);
      return;
    case DType::kBF16:
      static_cast<BFloat16*>(to)[at] = to_bf16(value);
      return;
    case DType::kBool:
      static_cast<uint8_t*>(to)[at] = value != 0 ? 1 : 0;
      return;
    default:
      static_cast<float*>(to)[at] = value;
  }
}

float rounded_to(DType dtype, float value) {
  switch (dtype) {
    case DType::kF16:
      return to_f32(to_f16(value));
    case DType::kBF16:
      return to_f32(to_bf16(value));
    case DType::kBool:
      return value != 0 ? 1.0f : 0.0f;
    default:
      return value;
  }
}

/// Elements [first, first + count) of all inputs.
void read_inputs(const Chain& chain, const Arguments& a, int64_t first, int64_t count,
                 std::vector<Line>& lines) {
  for (int64_t e = 0; e < count; ++e) {
    int64_t offset[chain::kMaxInputs];
    if (a.walk.rank > 0) a.walk.offsets(first + e, offset);
    size_t walk = 0;
    for (size_t i = 0; i < chain.inputs.size(); ++i) {
      const Access access = chain.inputs[i].access;
      if (chain.inputs[i].dtype == DType::kI64) continue;
      const int64_t at = access == Access::kWhole    ? first + e
                         : access == Access::kSingle ? 0
                                                     : offset[walk++];
      lines[i][static_cast<size_t>(e)] = read_number(chain.inputs[i].dtype, a.in[i], at);
    }
  }
}

void drop_on_host(const PointwiseStep& step, const Arguments& a, int64_t first, int64_t count,
                  const float* from, float* to) {
  const auto number_of = [&](size_t operand) {
    return static_cast<uint64_t>(
        *static_cast<const int64_t*>(a.in[static_cast<size_t>(step.operands[operand])]));
  };
  const math::DropoutRule rule{cpu::keep_threshold(step.parameters[0]),
                               cpu::keep_factor(step.parameters[0])};
  const auto node = static_cast<uint32_t>(step.parameters[1]);
  for (int64_t e = 0; e < count; ++e) {
    const auto at = static_cast<uint64_t>(first + e);
    const auto words = math::dropout_words(number_of(1), number_of(2), node, at / 4);
    to[e] = rule.value(from[e], words.word[at % 4]);
  }
}

void add_to_partials(const Arguments& a, bool along_rows, int64_t first, int64_t count,
                     const Line& from, std::vector<double>& partials) {
  for (int64_t e = 0; e < count; ++e) {
    const int64_t row = (first + e) / a.columns, column = (first + e) % a.columns;
    const int64_t at =
        along_rows ? column / a.piece * a.rows + row : row / a.block_rows * a.columns + column;
    partials[static_cast<size_t>(at)] += static_cast<double>(from[static_cast<size_t>(e)]);
  }
}

/// Where a launch leaves them: of rows in one piece the sums themselves.
void store_partials(const Chain& chain, const Arguments& a, const PointwiseSum& sum,
                    const std::vector<double>& partials) {
  if (!sum.along_rows || a.blocks > 1) {
    std::ranges::copy(partials, a.partials);
    return;
  }
  const double divisor = sum.is_mean ? static_cast<double>(a.columns) : 1;
  for (int64_t row = 0; row < a.rows; ++row) {
    const auto total = static_cast<float>(partials[static_cast<size_t>(row)] / divisor);
    write_number(chain.outputs[sum.output], total, a.out[sum.output], row);
  }
}

void run_on_host(const Chain& chain, const Arguments& a) {
  const cpu::pointwise::Loops& loops = cpu::pointwise::reference_loops();
  std::vector<Line> inputs(chain.inputs.size()), results(chain.program.steps.size());
  const auto sum = sum_of(chain.program);
  const int64_t sums = !sum ? 0 : sum->along_rows ? a.rows : a.columns;
  std::vector<double> partials(static_cast<size_t>(a.blocks * sums));
  for (int64_t first = 0; first < a.count; first += kPiece) {
    const int64_t count = std::min(kPiece, a.count - first);
    read_inputs(chain, a, first, count, inputs);
    for (size_t s = 0; s < results.size(); ++s) {
      const PointwiseStep& step = chain.program.steps[s];
      if (is_sum(step.op)) continue;
      const float* operands[kPointwiseArity] = {};
      const auto arity = static_cast<size_t>(pointwise_operands(pointwise_row(step.op)));
      for (size_t i = 0; i < arity; ++i) {
        const int from = step.operands[i];
        operands[i] = from >= 0 ? inputs[static_cast<size_t>(from)].data()
                                : results[static_cast<size_t>(~from)].data();
      }
      if (step.op == PointwiseOp::kDropout) {
        drop_on_host(step, a, first, count, operands[0], results[s].data());
      } else {
        loops.of[index_of(step.op)](operands, results[s].data(), count, step.parameters.data());
      }
      for (int64_t e = 0; e < count; ++e) {
        float& value = results[s][static_cast<size_t>(e)];
        value = rounded_to(step.dtype, value);
      }
    }
    for (size_t k = 0; k < chain.outputs.size(); ++k) {
      if (sum && sum->output == k) {
        const auto end = static_cast<size_t>(chain.program.outputs[k]);
        const int operand = chain.program.steps[end].operands[0];
        add_to_partials(a, sum->along_rows, first, count,
                        operand >= 0 ? inputs[static_cast<size_t>(operand)]
                                     : results[static_cast<size_t>(~operand)],
                        partials);
        continue;
      }
      const Line& from = results[static_cast<size_t>(chain.program.outputs[k])];
      for (int64_t e = 0; e < count; ++e)
        write_number(chain.outputs[k], from[static_cast<size_t>(e)], a.out[k], first + e);
    }
  }
  if (sum) store_partials(chain, a, *sum, partials);
}

std::span<const CompiledChain>& compiled_chains() {
  static std::span<const CompiledChain> chains;
  return chains;
}

std::vector<Chain>*& recorded_chains() {
  static std::vector<Chain>* chains = nullptr;
  return chains;
}

class EmulatedChain final : public ChainKernel {
 public:
  EmulatedChain(const Chain& chain, void (*compiled)(Arguments))
      : chain_(std::make_shared<const Chain>(chain)), compiled_(compiled) {}
  void make_ready() override {}
  void launch(Stream& stream, unsigned blocks, const Arguments& arguments) override {
    if (const std::string why = libraries::illegal_launch(*chain_, arguments); !why.empty())
      throw Error(ErrorCode::kInternal, "an illegal launch of a generated kernel: " + why);
    if (compiled_ != nullptr) {
      return cuda_emulated::launch(stream, compiled_, blocks, chain::kThreads, 0, arguments);
    }
    auto& queue = static_cast<EmulatedStream&>(stream);
    ++queue.device().count().launches;
    queue.enqueue([chain = chain_, arguments] { run_on_host(*chain, arguments); });
  }

 private:
  std::shared_ptr<const Chain> chain_;
  void (*compiled_)(Arguments);
};

}  // namespace

std::shared_ptr<ChainKernel> chain_kernel(const Chain& chain) {
  if (recorded_chains() != nullptr) recorded_chains()->push_back(chain);
  const std::string name = chain::source_of(chain).name;
  const auto compiled = compiled_chains();
  const auto found = std::ranges::find(compiled, name, &CompiledChain::name);
  return std::make_shared<EmulatedChain>(chain, found == compiled.end() ? nullptr : found->kernel);
}

void use_compiled_chains(std::span<const CompiledChain> chains) { compiled_chains() = chains; }

void record_chains(std::vector<Chain>* chains) { recorded_chains() = chains; }

}  // namespace halfnote::cuda_emulated
