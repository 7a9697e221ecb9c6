// Random numbers and dropout: four elements a thread, from one Philox counter each. The words are
// those of the CPU, so a mask is drawn again wherever it is needed and never stored.
#include "kernels/cpu/stateful/random.h"

#include "kernels/cuda/stateful/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

/// The words of one run; seed and step are read on the device where they are operands.
struct DeviceWords {
  const int64_t *seed, *step;  // null: `fixed`, and 0
  uint64_t fixed;
  uint32_t node;

  __device__ math::PhiloxCounter group(int64_t at) const {
    return math::dropout_words(seed == nullptr ? fixed : static_cast<uint64_t>(*seed),
                               step == nullptr ? 0 : static_cast<uint64_t>(*step), node,
                               static_cast<uint64_t>(at));
  }
};

DeviceWords words_of(const cpu::RandomStream& stream, const KernelBuffers& buffers) {
  const bool given = stream.of_operands;
  return {given ? buffers.in<int64_t>(1) : nullptr, given ? buffers.in<int64_t>(2) : nullptr,
          stream.seed, stream.node};
}

int64_t groups_of(int64_t count) { return (count + 3) / 4; }

template <class T, class Draw>
struct DrawGroup {
  T* to;
  DeviceWords words;
  Draw draw;
  int64_t count;
  __device__ void operator()(int64_t group) const {
    double drawn[4];
    draw.four(words.group(group), drawn);
    for (int64_t k = 0, i = 4 * group; k < 4 && i < count; ++k, ++i) {
      to[i] = store_number<T>(static_cast<Math<T>>(drawn[k]));
    }
  }
};

template <class Draw, std::string (*kPlan)(const KernelCall&, cpu::RandomStream&, Draw&)>
Prepared prepare_draw(const KernelCall& call) {
  cpu::RandomStream stream;
  Draw draw;
  if (std::string why = kPlan(call, stream, draw); !why.empty()) return Prepared::no(why);
  return for_float_type(call.outputs[0].dtype, [&]<class T>() {
    return make_kernel([=, count = call.outputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), groups_of(count),
               DrawGroup<T, Draw>{buffers.out<T>(0), words_of(stream, buffers), draw, count});
    });
  });
}

template <class T>
struct DropGroup {
  const T* x;
  T* y;
  DeviceWords words;
  math::DropoutRule rule;
  int64_t count;
  __device__ void operator()(int64_t group) const {
    const math::PhiloxCounter drawn = words.group(group);
    for (int64_t k = 0, i = 4 * group; k < 4 && i < count; ++k, ++i) {
      y[i] = store_number<T>(rule.value(load_number(x[i]), drawn.word[k]));
    }
  }
};

Prepared prepare_dropout(const KernelCall& call) {
  cpu::DropoutPlan plan;
  if (std::string why = cpu::plan_dropout(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [=, count = call.inputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), groups_of(count),
               DropGroup<T>{buffers.in<T>(0), buffers.out<T>(0), words_of(plan.stream, buffers),
                            plan.rule, count});
    };
    return make_kernel(body, 0, [](size_t input, size_t) { return input == 0; });
  });
}

Prepared prepare_inference_dropout(const KernelCall& call) {
  if (std::string why = cpu::plan_inference_dropout(call); !why.empty()) return Prepared::no(why);
  const auto count = static_cast<size_t>(call.inputs[0].size());
  const size_t bytes = count * size_of(call.inputs[0].dtype);
  const auto body = [=, with_mask = call.has_output(1)](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    if (buffers.inputs[0] != buffers.outputs[0]) {
      stream.copy(buffers.outputs[0], buffers.inputs[0], bytes);
    }
    if (with_mask) stream.fill(buffers.outputs[1], 1, count);
  };
  return make_kernel(body, 0,
                     [](size_t input, size_t output) { return input == 0 && output == 0; });
}

}  // namespace

std::vector<KernelRow> random_rows() {
  constexpr auto kNormal = prepare_draw<math::NormalDraw, cpu::plan_normal>;
  constexpr auto kUniform = prepare_draw<math::UniformDraw, cpu::plan_uniform>;
  return {
      {"", "Dropout", "own.dropout", prepare_inference_dropout},
      {"", "RandomNormal", "own.random", kNormal},
      {"", "RandomNormalLike", "own.random", kNormal},
      {"", "RandomUniform", "own.random", kUniform},
      {"", "RandomUniformLike", "own.random", kUniform},
      {"ai.halfnote", "Dropout", "own.dropout", prepare_dropout},
      {"ai.halfnote", "RandomNormal", "own.random", kNormal},
      {"ai.halfnote", "RandomUniform", "own.random", kUniform},
  };
}

}  // namespace halfnote::HN_CUDA
