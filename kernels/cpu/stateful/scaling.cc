// What a step of mixed precision decides from its gradients: AllFinite, GlobalNorm,
// UpdateLossScale.
#include "kernels/cpu/stateful/scaling.h"

#include <atomic>
#include <cmath>

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
    const bool known =
        is_16bit_float(input.dtype) || input.dtype == DType::kF32 || input.dtype == DType::kF64;
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

/// The sum of squares of a block, in eight interleaved sums.
template <class T>
double square_sum(const T* x, int64_t count) {
  double lanes[8] = {};
  for (int64_t i = 0; i < count; ++i) {
    const auto value = static_cast<double>(load(x[i]));
    lanes[i % 8] += value * value;
  }
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/// One partial sum a block of kElementGrain elements, added up in order.
template <class T>
Prepared global_norm_kernel(const KernelCall& call) {
  std::vector<int64_t> counts;
  int64_t blocks = 0;
  for (const Operand& input : call.inputs) {
    if (input.dtype != dtype_of<T>()) return Prepared::no("operands of different types");
    counts.push_back(input.size());
    blocks += (input.size() + kElementGrain - 1) / kElementGrain;
  }
  const bool wide_result = call.outputs[0].dtype == DType::kF64;
  const auto body = [=, threads = call.threads](const KernelBuffers& buffers) {
    auto* partials = reinterpret_cast<double*>(buffers.workspace);
    int64_t first = 0;
    for (size_t k = 0; k < counts.size(); ++k) {
      const T* x = buffers.in<T>(k);
      parallel_blocks(counts[k], kElementGrain, threads, [&](int64_t begin, int64_t end) {
        partials[first + begin / kElementGrain] = square_sum(x + begin, end - begin);
      });
      first += (counts[k] + kElementGrain - 1) / kElementGrain;
    }
    double sum = 0;
    for (int64_t i = 0; i < blocks; ++i) sum += partials[i];
    if (wide_result) {
      *buffers.out<double>(0) = std::sqrt(sum);
    } else {
      *buffers.out<float>(0) = static_cast<float>(std::sqrt(sum));
    }
  };
  return make_kernel(body, static_cast<size_t>(blocks) * sizeof(double));
}

Prepared prepare_global_norm(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const DType to = call.outputs[0].dtype;
  if (to != DType::kF32 && to != DType::kF64)
    return Prepared::no("the norm is neither f32 nor f64");
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return global_norm_kernel<T>(call); });
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
