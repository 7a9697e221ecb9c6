// What a step of mixed precision decides from its gradients: AllFinite, GlobalNorm,
// UpdateLossScale.
#include "kernels/cpu/stateful/scaling.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "kernels/cpu/stateful/norm.h"
#include "kernels/cpu/stateful/parts.h"
#include "kernels/cpu/support.h"
#include "kernels/math/loss_scale.h"

namespace halfnote::cpu {

namespace {

/// Is any of `count` elements an infinity or a NaN? Reads the exponent bits, which vectorises.
template <class Bits>
bool any_special(const std::byte* data, int64_t count, Bits exponent) {
  const Bits* bits = reinterpret_cast<const Bits*>(data);
  bool found = false;
  for (int64_t i = 0; i < count; ++i) found |= (bits[i] & exponent) == exponent;
  return found;
}

bool any_special(DType dtype, const std::byte* data, int64_t count) {
  switch (dtype) {
    case DType::kBool:  // an answer from before
      return std::find(data, data + count, std::byte{0}) != data + count;
    case DType::kF16:
      return any_special<uint16_t>(data, count, 0x7c00u);
    case DType::kBF16:
      return any_special<uint16_t>(data, count, 0x7f80u);
    case DType::kF32:
      return any_special<uint32_t>(data, count, 0x7f800000u);
    default:
      return any_special<uint64_t>(data, count, 0x7ff0000000000000u);
  }
}

Prepared prepare_all_finite(const KernelCall& call) {
  if (!call.has_output(0) || call.outputs[0].dtype != DType::kBool) {
    return Prepared::no("the output is not bool");
  }
  struct Input {
    DType dtype;
    int64_t count;
  };
  std::vector<Input> inputs;
  for (const Operand& input : call.inputs) {
    const bool known = is_16bit_float(input.dtype) || input.dtype == DType::kF32 ||
                       input.dtype == DType::kF64 || input.dtype == DType::kBool;
    if (!known) return Prepared::no("no float type: " + std::string(short_name(input.dtype)));
    inputs.push_back({input.dtype, input.size()});
  }
  return make_kernel(
      [inputs = std::move(inputs), threads = call.threads](const KernelBuffers& buffers) {
        std::atomic<bool> special = false;
        for (size_t i = 0; i < inputs.size() && !special; ++i) {
          const auto size = static_cast<int64_t>(size_of(inputs[i].dtype));
          parallel_blocks(inputs[i].count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
            if (special.load(std::memory_order_relaxed)) return;
            if (any_special(inputs[i].dtype, buffers.inputs[i] + begin * size, end - begin)) {
              special.store(true, std::memory_order_relaxed);
            }
          });
        }
        *buffers.out<bool>(0) = !special;
      });
}

}  // namespace

NormOperands norm_operands(const KernelCall& call) {
  const auto refused = [](std::string why) {
    NormOperands none;
    none.refusal = std::move(why);
    return none;
  };
  NormOperands operands;
  operands.scaled = attributes_of(call).get_int("scaled", 0) != 0;
  const size_t count = call.inputs.size() - (operands.scaled ? 1 : 0);
  if (call.inputs.empty() || count == 0 || !call.has_output(0))
    return refused("an operand is missing");
  const DType math = call.inputs[0].dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  if (call.outputs[0].dtype != DType::kF32 && call.outputs[0].dtype != DType::kF64)
    return refused("the norm is neither f32 nor f64");
  for (size_t i = 0; i < count; ++i) {
    const Operand& gradient = call.inputs[i];
    if (gradient.dtype != DType::kF64 && gradient.dtype != DType::kF32 &&
        !is_16bit_float(gradient.dtype))
      return refused("no float type: " + std::string(short_name(gradient.dtype)));
    if ((gradient.dtype == DType::kF64) != (math == DType::kF64))
      return refused("f64 beside narrower types");
    operands.gradients.push_back({gradient.dtype, gradient.size()});
    operands.blocks += (gradient.size() + kElementGrain - 1) / kElementGrain;
  }
  if (operands.scaled && (call.inputs[count].dtype != math || call.inputs[count].size() != 1))
    return refused("a factor that is no number");
  operands.wide_result = call.outputs[0].dtype == DType::kF64;
  operands.judges = call.has_output(1);
  if (operands.judges && call.outputs[1].dtype != DType::kBool)
    return refused("the second output is not bool");
  return operands;
}

namespace {

/// The sum of squares of a block, times a factor each, in eight interleaved sums.
template <class T>
double square_sum(const T* x, int64_t count, const Math<T>* factor) {
  double lanes[8] = {};
  for (int64_t i = 0; i < count; ++i) {
    Math<T> math = load(x[i]);
    if (factor != nullptr) math = math * *factor;
    const auto value = static_cast<double>(math);
    lanes[i % 8] += value * value;
  }
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

double square_sum(DType dtype, const std::byte* data, int64_t count, const std::byte* factor) {
  const auto sum = [&]<class T>() {
    return square_sum(reinterpret_cast<const T*>(data), count,
                      reinterpret_cast<const Math<T>*>(factor));
  };
  switch (dtype) {
    case DType::kF16:
      return sum.template operator()<Half>();
    case DType::kBF16:
      return sum.template operator()<BFloat16>();
    case DType::kF32:
      return sum.template operator()<float>();
    default:
      return sum.template operator()<double>();
  }
}

/// One partial sum a block of kElementGrain elements, added up in order; and is every element
/// finite?
Prepared prepare_global_norm(const KernelCall& call) {
  const NormOperands operands = norm_operands(call);
  if (!operands.refusal.empty()) return Prepared::no(operands.refusal);
  const auto body = [operands, threads = call.threads](const KernelBuffers& buffers) {
    judge_gradients(operands, buffers, threads,
                    [&](size_t k, const std::byte* data, int64_t count, double* sum) {
                      const DType dtype = operands.gradients[k].dtype;
                      *sum = square_sum(dtype, data, count, operands.factor_in(buffers));
                      return any_special(dtype, data, count);
                    });
  };
  return make_kernel(body, operands.workspace());
}

math::LossScaleRule read_rule(const Attributes& attributes) {
  const auto integer = [&](std::string_view name, int64_t fallback) {
    return static_cast<int32_t>(attributes.get_int(name, fallback));
  };
  math::LossScaleRule rule;
  rule.up = attributes.get_float("up", rule.up);
  rule.down = attributes.get_float("down", rule.down);
  rule.interval = integer("interval", rule.interval);
  rule.hysteresis = integer("hysteresis", rule.hysteresis);
  if (attributes.get_string("refill", "on_growth") == "every_clean") {
    rule.refill = math::HysteresisRefill::kEveryClean;
  }
  rule.first_window_extra = integer("first_window_extra", rule.first_window_extra);
  rule.publish_delay = integer("publish_delay", 0) != 0;
  rule.warmup_interval = integer("warmup_interval", rule.warmup_interval);
  rule.min = attributes.get_float("min", rule.min);
  rule.max = attributes.get_float("max", rule.max);
  return rule;
}

Prepared prepare_update_loss_scale(const KernelCall& call) {
  math::LossScaleRule rule;
  if (std::string why = plan_update_loss_scale(call, rule); !why.empty()) return Prepared::no(why);
  const auto body = [rule](const KernelBuffers& buffers) {
    const math::LossScaleState old = {*buffers.in<float>(0),   *buffers.in<int32_t>(1),
                                      *buffers.in<int32_t>(2), *buffers.in<float>(3),
                                      *buffers.in<int32_t>(4), *buffers.in<int64_t>(5),
                                      *buffers.in<int32_t>(6), *buffers.in<int32_t>(7)};
    const bool finite = *buffers.in<bool>(kLossScaleStates);
    const math::LossScaleState next = math::update_loss_scale(rule, old, finite);
    *buffers.out<float>(0) = next.scale;
    *buffers.out<int32_t>(1) = next.growth;
    *buffers.out<int32_t>(2) = next.hysteresis;
    *buffers.out<float>(3) = next.pending;
    *buffers.out<int32_t>(4) = next.clean;
    *buffers.out<int64_t>(5) = next.skips;
    *buffers.out<int32_t>(6) = next.skips_in_row;
    *buffers.out<int32_t>(7) = next.floor_hits;
  };
  return make_kernel(body, 0, [](size_t input, size_t output) { return input == output; });
}

}  // namespace

std::string plan_update_loss_scale(const KernelCall& call, math::LossScaleRule& rule) {
  constexpr DType kTypes[] = {DType::kF32, DType::kI32, DType::kI32, DType::kF32, DType::kI32,
                              DType::kI64, DType::kI32, DType::kI32, DType::kBool};
  if (call.inputs.size() != kLossScaleStates + 1 || call.outputs.size() != kLossScaleStates) {
    return "an operand is missing";
  }
  for (size_t i = 0; i <= kLossScaleStates; ++i) {
    if (call.inputs[i].dtype != kTypes[i] ||
        (i < kLossScaleStates && call.outputs[i].dtype != kTypes[i])) {
      return "operand of the wrong type";
    }
  }
  const std::string refill = attributes_of(call).get_string("refill", "on_growth");
  if (refill != "on_growth" && refill != "every_clean") {
    return "refill is neither on_growth nor every_clean";
  }
  rule = read_rule(attributes_of(call));
  return {};
}

std::vector<KernelRow> scaling_rows() {
  return {
      {"ai.halfnote", "AllFinite", "reference", prepare_all_finite},
      {"ai.halfnote", "GlobalNorm", "reference", prepare_global_norm},
      {"ai.halfnote", "UpdateLossScale", "reference", prepare_update_loss_scale},
  };
}

}  // namespace halfnote::cpu
