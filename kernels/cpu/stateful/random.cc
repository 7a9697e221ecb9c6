// Random numbers and dropout, all from Philox4x32-10.
//
// ai.halfnote.RandomNormal and RandomUniform use the words of dropout (docs/operators.md). ONNX's
// (and their Like forms), which stand outside of training steps, have no state: they use the key
// (bits of the f32 attribute `seed`, 0) and the counter (low, high word of i div 4, 0, 0) for
// element i, word i mod 4; without a seed it is 0. Uniform numbers
// are low + r·2⁻³²·(high − low); normal ones come in pairs from Box and Muller's method. Both are
// computed in f64 and rounded once.
#include "kernels/cpu/stateful/random.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/stateful/keep.h"
#include "kernels/cpu/stateful/parts.h"
#include "kernels/cpu/support.h"

namespace halfnote::cpu {

namespace {

/// The words of one run, by groups of four elements.
struct Words {
  uint64_t seed = 0, step = 0;
  uint32_t node = 0;

  Words(const RandomStream& stream, const KernelBuffers& buffers)
      : seed(stream.seed), node(stream.node) {
    if (!stream.of_operands) return;
    seed = static_cast<uint64_t>(*buffers.in<int64_t>(1));
    step = static_cast<uint64_t>(*buffers.in<int64_t>(2));
  }
  math::PhiloxCounter group_of(int64_t element) const {
    return math::dropout_words(seed, step, node, static_cast<uint64_t>(element) / 4);
  }
};

template <class Draw>
Prepared random_kernel(const KernelCall& call, const RandomStream& stream, const Draw& draw) {
  return for_float_type(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel(
        [=, count = call.outputs[0].size(), threads = call.threads](const KernelBuffers& buffers) {
          T* to = buffers.out<T>(0);
          const Words words(stream, buffers);
          parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; i += 4) {  // the grain is a multiple of 4
              double drawn[4];
              draw.four(words.group_of(i), drawn);
              for (int64_t k = 0; k < 4 && i + k < end; ++k) {
                to[i + k] = store<T>(static_cast<Math<T>>(drawn[k]));
              }
            }
          });
        });
  });
}

Prepared prepare_normal(const KernelCall& call) {
  RandomStream stream;
  math::NormalDraw draw;
  if (std::string why = plan_normal(call, stream, draw); !why.empty()) return Prepared::no(why);
  return random_kernel(call, stream, draw);
}

Prepared prepare_uniform(const KernelCall& call) {
  RandomStream stream;
  math::UniformDraw draw;
  if (std::string why = plan_uniform(call, stream, draw); !why.empty()) return Prepared::no(why);
  return random_kernel(call, stream, draw);
}

Prepared prepare_dropout(const KernelCall& call) {
  DropoutPlan plan;
  if (std::string reason = plan_dropout(call, plan); !reason.empty()) return Prepared::no(reason);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [=, count = call.inputs[0].size(),
                       threads = call.threads](const KernelBuffers& buffers) {
      const T* x = buffers.in<T>(0);
      T* y = buffers.out<T>(0);
      const Words words(plan.stream, buffers);
      parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i += 4) {  // the grain is a multiple of 4
          const math::PhiloxCounter group = words.group_of(i);
          for (int64_t k = 0; k < 4 && i + k < end; ++k) {
            y[i + k] = store<T>(plan.rule.value(load(x[i + k]), group.word[k]));
          }
        }
      });
    };
    return make_kernel(body, 0, [](size_t input, size_t) { return input == 0; });
  });
}

Prepared prepare_inference_dropout(const KernelCall& call) {
  if (std::string why = plan_inference_dropout(call); !why.empty()) return Prepared::no(why);
  const auto count = static_cast<size_t>(call.inputs[0].size());
  const size_t bytes = count * size_of(call.inputs[0].dtype);
  const auto body = [=, with_mask = call.has_output(1)](const KernelBuffers& buffers) {
    if (bytes != 0 && buffers.inputs[0] != buffers.outputs[0]) {
      std::memmove(buffers.outputs[0], buffers.inputs[0], bytes);
    }
    if (with_mask) std::fill_n(buffers.out<bool>(1), count, true);
  };
  return make_kernel(body, 0,
                     [](size_t input, size_t output) { return input == 0 && output == 0; });
}

/// Reads seed, step and node as the domain of the call says.
std::string plan_stream(const KernelCall& call, RandomStream& stream) {
  if (!call.has_output(0)) return "an operand is missing";
  stream.of_operands = !call.domain.empty();
  if (!stream.of_operands) {
    stream.seed = std::bit_cast<uint32_t>(attributes_of(call).get_float("seed", 0));
    return {};
  }
  if (!call.has_input(2)) return "an operand is missing";
  stream.node = static_cast<uint32_t>(attributes_of(call).get_int("node", 0));
  for (const size_t i : {1, 2}) {
    const Operand& number = call.inputs[i];
    if (number.dtype != DType::kI64 || number.size() != 1) return "seed and step are not one i64";
  }
  return {};
}

}  // namespace

std::string plan_uniform(const KernelCall& call, RandomStream& stream, math::UniformDraw& draw) {
  if (std::string reason = plan_stream(call, stream); !reason.empty()) return reason;
  draw.low = attributes_of(call).get_float("low", 0);
  draw.high = attributes_of(call).get_float("high", 1);
  return {};
}

std::string plan_normal(const KernelCall& call, RandomStream& stream, math::NormalDraw& draw) {
  if (std::string reason = plan_stream(call, stream); !reason.empty()) return reason;
  draw.mean = attributes_of(call).get_float("mean", 0);
  draw.scale = attributes_of(call).get_float("scale", 1);
  return {};
}

std::string plan_dropout(const KernelCall& call, DropoutPlan& plan) {
  if (!call.has_input(0)) return "an operand is missing";
  if (std::string reason = plan_stream(call, plan.stream); !reason.empty()) return reason;
  if (call.inputs[0].dtype != call.outputs[0].dtype) return "operands of different types";
  if (call.inputs[0].size() != call.outputs[0].size()) return "operands of different sizes";
  const float ratio = attributes_of(call).get_float("ratio", 0.5f);
  if (!(ratio >= 0 && ratio <= 1)) return "ratio is outside of [0, 1]";
  plan.rule.threshold = keep_threshold(ratio);
  plan.rule.factor = keep_factor(ratio);
  return {};
}

std::string plan_inference_dropout(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  if (!call.has_input(2)) return {};
  const Tensor* training = call.inputs[2].constant;
  if (!training) return "training_mode is not known before the first step";
  return training->at_as_int(0) == 0
             ? ""
             : "training_mode is true: the compiler rewrites this to ai.halfnote.Dropout";
}

std::vector<KernelRow> random_rows() {
  return {
      {"", "Dropout", "reference", prepare_inference_dropout},
      {"", "RandomNormal", "reference", prepare_normal},
      {"", "RandomNormalLike", "reference", prepare_normal},
      {"", "RandomUniform", "reference", prepare_uniform},
      {"", "RandomUniformLike", "reference", prepare_uniform},
      {"ai.halfnote", "Dropout", "reference", prepare_dropout},
      {"ai.halfnote", "RandomNormal", "reference", prepare_normal},
      {"ai.halfnote", "RandomUniform", "reference", prepare_uniform},
  };
}

}  // namespace halfnote::cpu
