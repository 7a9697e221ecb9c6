// Random numbers and dropout, all from Philox4x32-10.
//
// ai.halfnote.RandomNormal and RandomUniform use the words of dropout (docs/operators.md). ONNX's
// (and their Like forms), which stand outside of training steps, have no state: they use the key
// (bits of the f32 attribute `seed`, 0) and the counter (low, high word of i div 4, 0, 0) for
// element i, word i mod 4; without a seed it is 0. Uniform numbers
// are low + r·2⁻³²·(high − low); normal ones come in pairs from Box and Muller's method. Both are
// computed in f64 and rounded once.
#include <bit>
#include <cmath>
#include <cstring>
#include <numbers>

#include "kernels/cpu/stateful/keep.h"
#include "kernels/cpu/stateful/parts.h"
#include "kernels/cpu/support.h"
#include "kernels/math/philox.h"

namespace halfnote::cpu {

namespace {

/// Four draws from four words.
using Draw = void (*)(const math::PhiloxCounter& words, double a, double b, double* to);

void draw_uniform(const math::PhiloxCounter& words, double low, double high, double* to) {
  for (int k = 0; k < 4; ++k) to[k] = low + words.word[k] * 0x1p-32 * (high - low);
}

void draw_normal(const math::PhiloxCounter& words, double mean, double scale, double* to) {
  for (int k = 0; k < 4; k += 2) {
    const double radius = std::sqrt(-2 * std::log((words.word[k] + 1.0) * 0x1p-32));
    const double angle = 2 * std::numbers::pi * (words.word[k + 1] * 0x1p-32);
    to[k] = mean + scale * radius * std::cos(angle);
    to[k + 1] = mean + scale * radius * std::sin(angle);
  }
}

/// Seed, step and node as dropout_words() takes them.
struct Place {
  uint64_t seed = 0, step = 0;
  uint32_t node = 0;
};

Place of_attribute(const Attributes& attributes, const KernelBuffers&) {
  return {.seed = std::bit_cast<uint32_t>(attributes.get_float("seed", 0))};
}

/// Of ai.halfnote: operands 1 and 2.
Place of_stream(const Attributes& attributes, const KernelBuffers& buffers) {
  return {.seed = static_cast<uint64_t>(*buffers.in<int64_t>(1)),
          .step = static_cast<uint64_t>(*buffers.in<int64_t>(2)),
          .node = static_cast<uint32_t>(attributes.get_int("node", 0))};
}

using FindPlace = Place (*)(const Attributes&, const KernelBuffers&);

Prepared random_kernel(const KernelCall& call, FindPlace find, Draw draw, double a, double b) {
  if (!call.has_output(0)) return Prepared::no("an operand is missing");
  return for_float_type(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([=, attributes = attributes_of(call), count = call.outputs[0].size(),
                        threads = call.threads](const KernelBuffers& buffers) {
      T* to = buffers.out<T>(0);
      const Place place = find(attributes, buffers);
      parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i += 4) {  // the grain is a multiple of 4
          double drawn[4];
          draw(
              math::dropout_words(place.seed, place.step, place.node, static_cast<uint64_t>(i) / 4),
              a, b, drawn);
          for (int64_t k = 0; k < 4 && i + k < end; ++k) {
            to[i + k] = store<T>(static_cast<Math<T>>(drawn[k]));
          }
        }
      });
    });
  });
}

/// Why seed and step of an op of ours do not fit, or an empty string.
std::string unfit_stream(const KernelCall& call) {
  if (!call.has_input(2)) return "an operand is missing";
  const bool integers = call.inputs[1].dtype == DType::kI64 && call.inputs[2].dtype == DType::kI64;
  return integers ? "" : "seed and step are not i64";
}

template <FindPlace find>
Prepared prepare_normal(const KernelCall& call) {
  if (find == of_stream && !unfit_stream(call).empty()) return Prepared::no(unfit_stream(call));
  const Attributes& attributes = attributes_of(call);
  return random_kernel(call, find, draw_normal, attributes.get_float("mean", 0),
                       attributes.get_float("scale", 1));
}

template <FindPlace find>
Prepared prepare_uniform(const KernelCall& call) {
  if (find == of_stream && !unfit_stream(call).empty()) return Prepared::no(unfit_stream(call));
  const Attributes& attributes = attributes_of(call);
  return random_kernel(call, find, draw_uniform, attributes.get_float("low", 0),
                       attributes.get_float("high", 1));
}

/// ai.halfnote.Dropout: element i is kept when its word r(i) ≥ ratio·2³².
Prepared prepare_dropout(const KernelCall& call) {
  if (std::string reason = unfit_dropout(call); !reason.empty()) return Prepared::no(reason);
  const float ratio = attributes_of(call).get_float("ratio", 0.5f);
  if (!(ratio >= 0 && ratio <= 1)) return Prepared::no("ratio is outside of [0, 1]");
  const auto node = static_cast<uint32_t>(attributes_of(call).get_int("node", 0));
  const uint64_t threshold = keep_threshold(ratio);
  const float factor = keep_factor(ratio);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [=, count = call.inputs[0].size(),
                       threads = call.threads](const KernelBuffers& buffers) {
      const T* x = buffers.in<T>(0);
      T* y = buffers.out<T>(0);
      const auto seed = static_cast<uint64_t>(*buffers.in<int64_t>(1));
      const auto step = static_cast<uint64_t>(*buffers.in<int64_t>(2));
      parallel_blocks(count, kElementGrain, threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i += 4) {  // the grain is a multiple of 4
          const auto words = math::dropout_words(seed, step, node, static_cast<uint64_t>(i) / 4);
          for (int64_t k = 0; k < 4 && i + k < end; ++k) {
            y[i + k] = words.word[k] >= threshold ? store<T>(load(x[i + k]) * factor) : T{};
          }
        }
      });
    };
    return make_kernel(body, 0, [](size_t input, size_t) { return input == 0; });
  });
}

/// ONNX's Dropout in its inference form: the identity, and a mask of ones.
Prepared prepare_inference_dropout(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  if (call.has_input(2)) {
    const Tensor* training = call.inputs[2].constant;
    if (!training) return Prepared::no("training_mode is not known before the first step");
    if (training->at_as_int(0) != 0) {
      return Prepared::no(
          "training_mode is true: the compiler rewrites this to ai.halfnote.Dropout");
    }
  }
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

}  // namespace

std::string unfit_dropout(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return "an operand is missing";
  if (std::string reason = unfit_stream(call); !reason.empty()) return reason;
  if (call.inputs[0].dtype != call.outputs[0].dtype) return "operands of different types";
  return call.inputs[0].size() == call.outputs[0].size() ? "" : "operands of different sizes";
}

std::vector<KernelRow> random_rows() {
  return {
      {"", "Dropout", "reference", prepare_inference_dropout},
      {"", "RandomNormal", "reference", prepare_normal<of_attribute>},
      {"", "RandomNormalLike", "reference", prepare_normal<of_attribute>},
      {"", "RandomUniform", "reference", prepare_uniform<of_attribute>},
      {"", "RandomUniformLike", "reference", prepare_uniform<of_attribute>},
      {"ai.halfnote", "Dropout", "reference", prepare_dropout},
      {"ai.halfnote", "RandomNormal", "reference", prepare_normal<of_stream>},
      {"ai.halfnote", "RandomUniform", "reference", prepare_uniform<of_stream>},
  };
}

}  // namespace halfnote::cpu
