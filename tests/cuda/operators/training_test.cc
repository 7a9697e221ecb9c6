// Steps with operators that few models have, on a device beside the CPU: forward, gradient and
// update, through all passes.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "compiler/ir/query.h"
#include "compiler/ir/text.h"
#include "runtime/train/session.h"
#include "tests/cuda/harness/device_check.h"

namespace halfnote {
namespace {

struct RareCase {
  const char* name;
  const char* op;    // that stands in the step
  const char* core;  // from h to t, (4, 6) both
};

void PrintTo(const RareCase& c, std::ostream* out) { *out << c.name; }

// Each reads h, of which t keeps a part, so that all weights have a gradient.
const RareCase kRareCases[] = {
    {"Powers", "Pow", R"(
  e = Constant <value: tensor = int64[6] {1, 2, 3, 1, 2, 3}> ()
  p = Pow (h, e)
  t = Add (h, p)
)"},
    {"Bits", "BitwiseAnd", R"(
  hundred = Constant <value_float: float = 100.0> ()
  small = Constant <value_float: float = 0.0001> ()
  mask = Constant <value: tensor = int16 {92}> ()
  s = Mul (h, hundred)
  i = Cast <to: int = 5> (s)
  b = BitwiseAnd (i, mask)
  f = CastLike (b, h)
  g = Mul (f, small)
  t = Add (h, g)
)"},
    {"Hardmax", "Hardmax", R"(
  m = Hardmax (h)
  p = Mul (h, m)
  t = Add (h, p)
)"},
    {"Reverse", "ReverseSequence", R"(
  lengths = Constant <value_ints: ints = [4, 0, 1, 3, 2, 4]> ()
  t = ReverseSequence <time_axis: int = 0, batch_axis: int = 1> (h, lengths)
)"},
    {"ScalePerLine", "LayerNormalization", R"(
  scale = Constant <value: tensor = float[4,1] {0.5, 1.0, 2.0, 1.5}> ()
  like = CastLike (scale, h)
  n = LayerNormalization (h, like)
  t = Add (h, n)
)"},
    {"Regions", "RoiAlign", R"(
  image = Constant <value_ints: ints = [1, 1, 4, 6]> ()
  flat = Constant <value_ints: ints = [4, 6]> ()
  rois = Constant <value: tensor = float[4,4]
    {0.0, 0.0, 5.0, 3.0, 1.0, 1.0, 4.0, 2.0, 0.5, 0.0, 3.0, 3.5, 2.0, 1.0, 5.0, 3.0}> ()
  which = Constant <value_ints: ints = [0, 0, 0, 0]> ()
  r = Reshape (h, image)
  f = Cast <to: int = 1> (r)
  a = RoiAlign <output_height: int = 2, output_width: int = 3, sampling_ratio: int = 2>
      (f, rois, which)
  p = Reshape (a, flat)
  l = CastLike (p, h)
  t = Add (h, l)
)"},
    {"Deformed", "", R"(
  image = Constant <value_ints: ints = [1, 1, 4, 6]> ()
  flat = Constant <value_ints: ints = [4, 6]> ()
  offsets = Constant <value_ints: ints = [1, 2, 4, 6]> ()
  taps = Constant <value: tensor = float[1,1,1,1] {0.5}> ()
  filter = CastLike (taps, h)
  r = Reshape (h, image)
  two = Concat <axis: int = 1> (r, r)
  d = DeformConv (r, filter, two)
  p = Reshape (d, flat)
  t = Add (h, p)
)"},
};

std::string drawn(const char* name) {
  std::mt19937 engine(5);
  std::string text = "float[6,6] " + std::string(name);
  for (int i = 0; i < 36; ++i)
    text += (i == 0 ? " = {" : ", ") + std::to_string(engine() * 0x1p-32 - 0.5);
  return text + "}";
}

Session rare_session(const std::string& core, const std::string& device, DType precision) {
  const std::string text =
      "<ir_version: 10, opset_import: [\"\" : 23]>\nnet (float[N,6] x) => (float[N,6] y) <" +
      drawn("w") + ", " + drawn("v") + "> {\n  h = MatMul (x, w)\n" + core +
      "  y = MatMul (t, v)\n}";
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss = "mse";
  options.train.optimizer.kind = "sgd";
  SessionOptions on;
  on.device = device;
  on.threads = 1;
  return Session(compile_model(parse_model(text, "rare.onnxtxt"), options).model, on);
}

std::vector<Tensor> rare_batch(const Session& session, uint32_t seed) {
  std::vector<Tensor> inputs;
  std::mt19937 engine(seed);
  for (const auto& [name, type] : session.inputs()) {
    Tensor tensor(DType::kF64, {4, 6});
    for (double& x : tensor.mutable_data<double>()) x = engine() * 0x1p-31 - 1;
    inputs.push_back(tensor.cast_to(type.dtype));
  }
  return inputs;
}

class RareOperators : public ::testing::TestWithParam<RareCase> {};

TEST_P(RareOperators, TrainAsOnTheCpu) {
  const std::string_view op = GetParam().op;
  // As in DeviceControl: in 16 bits single roundings turn.
  for (const auto& [precision, bar] : {std::pair(DType::kF32, 2e-5), {DType::kBF16, 0x1p-6}}) {
    SCOPED_TRACE(short_name(precision));
    Session cpu = rare_session(GetParam().core, "cpu", precision);
    Session device = rare_session(GetParam().core, test::tested_device(), precision);
    if (!op.empty()) {
      EXPECT_FALSE(find_nodes(device.model().training.front().graph, op).empty());
    }
    for (const uint32_t seed : {1, 2, 3}) {
      const std::vector<Tensor> inputs = rare_batch(cpu, seed);
      const double wanted = cpu.step(inputs).loss, got = device.step(inputs).loss;
      EXPECT_TRUE(std::isfinite(got));
      EXPECT_NEAR(got, wanted, bar * std::fabs(wanted)) << "step " << seed;
    }
    for (const StateEntry& entry : cpu.state().entries()) {
      if (entry.kind != StateKind::kWeight) continue;
      const Tensor wanted = cpu.state().get(entry);
      const Tensor got = device.state().get(*device.state().find(entry.name));
      for (int64_t i = 0; i < wanted.size(); ++i)
        ASSERT_NEAR(got.at_as_double(i), wanted.at_as_double(i), bar) << entry.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, RareOperators, ::testing::ValuesIn(kRareCases),
                         [](const auto& c) { return std::string(c.param.name); });

}  // namespace
}  // namespace halfnote
