// How long values of a step live: a gradient until its update took it, where no clip wants all of
// them; an activation that the backward pass reads in 16 bits nowhere in f32 too.
#include <fmt/format.h>

#include "compiler/ir/text.h"
#include "runtime/core/memory/placement.h"
#include "tests/session/support.h"

namespace halfnote::test {
namespace {

constexpr int kLayers = 8;
constexpr int64_t kWidth = 32;
constexpr size_t kWeightBytes = kWidth * kWidth * sizeof(float);

/// kLayers of MatMul and Relu, all as wide as the input.
Model deep_model() {
  std::string weights, nodes;
  for (int layer = 0; layer < kLayers; ++layer) {
    const Tensor values = uniform({kWidth, kWidth}, static_cast<uint64_t>(layer + 1));
    weights += fmt::format("{}float[{},{}] w{} = {{", layer > 0 ? ", " : "", kWidth, kWidth, layer);
    for (int64_t i = 0; i < values.size(); ++i) {
      weights += fmt::format("{}{:.5f}", i > 0 ? ", " : "", 0.3 * values.at_as_double(i));
    }
    weights += "}";
    const std::string from = layer == 0 ? "x" : fmt::format("r{}", layer - 1);
    const std::string to = layer + 1 == kLayers ? "logits" : fmt::format("r{}", layer);
    nodes += fmt::format("  m{0} = MatMul ({1}, w{0})\n  {2} = Relu (m{0})\n", layer, from, to);
  }
  return parse_model(fmt::format(R"(<ir_version: 10, opset_import: ["" : 23]>
deep (float[N,{0}] x) => (float[N,{0}] logits) <{1}> {{
{2}}})",
                                 kWidth, weights, nodes),
                     "deep");
}

/// The most bytes that the arena of a step on `rows` rows needs at one time.
size_t live_bytes(const CompileOptions& options, int64_t rows) {
  Session session = reference_session(deep_model(), options);
  session.prepare(std::vector<Shape>{{rows, kWidth}, {rows}});
  return live_peak(session.program("step")->arena_blocks);
}

TEST(Lifetime, AGradientGoesWhenItsUpdateTookIt) {
  for (const char* optimizer : {"sgd", "momentum", "adamw"}) {
    SCOPED_TRACE(optimizer);
    CompileOptions options = options_for(optimizer);
    // One row: activations are a thirty-second of a gradient.
    EXPECT_LT(live_bytes(options, 1), 3 * kWeightBytes);
    options.train.optimizer.clip_norm = 1.0f;
    EXPECT_GE(live_bytes(options, 1), kLayers * kWeightBytes) << "the norm is that of all of them";
  }
}

TEST(Lifetime, NoActivationIsKeptInBothTypes) {
  constexpr int64_t kRows = 1024;  // an activation is 32 times a gradient
  const size_t f32 = live_bytes(options_for("sgd"), kRows);
  const size_t bf16 = live_bytes(options_for("sgd", DType::kBF16), kRows);
  EXPECT_GT(f32, kLayers * kRows * kWidth * sizeof(float)) << "one a layer";
  // Half of it, and what the loss computes in f32: logits, their gradient, a workspace.
  const size_t loss = 3 * kRows * kWidth * sizeof(float);
  EXPECT_LE(bf16, f32 / 2 + loss);
}

}  // namespace
}  // namespace halfnote::test
