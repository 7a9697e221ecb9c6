// Exports in 16 bits: the policy decides, so that they train as the f32 model of the same weights.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/low_bit.h"
#include "compiler/ir/query.h"
#include "compiler/ir/text.h"
#include "support.h"

namespace halfnote::test {
namespace {

const char* const kExports[] = {"autocast_fp16_legacy17", "autocast_fp16_dynamo20",
                                "autocast_bf16_legacy18", "autocast_bf16_dynamo18"};

Model compile_export(const std::string& name, DType precision) {
  const std::filesystem::path folder =
      std::filesystem::path(HALFNOTE_SOURCE_DIR) / "tests/fixtures/exporters" / name;
  const auto json = nlohmann::json::parse(read_text(folder / "case.json", size_t{64} << 20));
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss_outputs = {json.at("loss_output").get<std::string>()};
  return compile_file(folder / "model.onnx", options).model;
}

std::vector<const Graph*> graphs_of(const Model& model) {
  std::vector<const Graph*> graphs = {&model.graph};
  for (const TrainingStep& step : model.training) graphs.push_back(&step.graph);
  return graphs;
}

bool touches_16bit(const Graph& graph, NodeId node) {
  const auto low = [&](ValueId value) {
    return value.valid() && is_16bit_float(graph.value(value).type.dtype);
  };
  const auto inputs = graph.inputs(node);
  const auto outputs = graph.outputs(node);
  return std::any_of(inputs.begin(), inputs.end(), low) ||
         std::any_of(outputs.begin(), outputs.end(), low);
}

/// Two products with a Relu between; `low` is the type that autocast gave the region, or float.
Model two_layers(const std::string& low) {
  const bool plain = low == "float";
  const std::string code = low == "float16" ? "10" : "16";
  const auto cast = [&](const char* to, const char* from) {
    return plain ? std::string(to) + " = Identity (" + from + ")\n"
                 : std::string(to) + " = Cast <to = " + code + "> (" + from + ")\n";
  };
  return parse_model(
      "<ir_version: 10, opset_import: [\"\" : 23]>\n"
      "net (float[N,6] x) => (float[N,3] logits) <"
      "float[6,4] w = {0.11, -0.23, 0.37, 0.41, -0.53, 0.17, 0.29, -0.31, 0.43, "
      "0.59, -0.61, 0.13, 0.19, 0.27, -0.33, 0.47, 0.51, -0.57, 0.63, 0.71, -0.73, "
      "0.21, 0.39, -0.49}, float[4,3] v = {0.15, -0.25, 0.35, 0.45, -0.55, 0.65, "
      "0.75, -0.85, 0.95, 0.05, -0.07, 0.09}> {\n" +
          cast("x1", "x") + cast("w1", "w") + cast("v1", "v") +
          "a = MatMul (x1, w1)\nr = Relu (a)\nb = MatMul (r, v1)\n" +
          (plain ? "logits = Identity (b)\n}" : "logits = Cast <to = 1> (b)\n}"),
      "two_layers");
}

std::vector<float> losses(const Model& model, DType precision) {
  Session session = reference_session(model, options_for("adamw", precision));
  std::vector<float> found;
  for (uint64_t i = 0; i < 4; ++i) {
    found.push_back(static_cast<float>(session.step(mlp_batch(8, 40 + i)).loss));
  }
  return found;
}

TEST(AutocastExport, HasNo16BitValueUnderFp32) {
  for (const char* name : kExports) {
    const Model model = compile_export(name, DType::kF32);
    for (const Graph* graph : graphs_of(model)) {
      for (NodeId node : graph->all_nodes()) {
        EXPECT_FALSE(touches_16bit(*graph, node)) << name << " " << graph->label(node);
      }
    }
    EXPECT_TRUE(runs_in(model.training.front().graph, "Gemm", DType::kF32)) << name;
  }
}

TEST(AutocastExport, HasTheLossScaleOfItsPolicy) {
  for (const char* name : kExports) {
    for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
      const Model model = compile_export(name, precision);
      const Graph& step = model.training.front().graph;
      EXPECT_EQ(step.find("loss_scale").valid(), precision == DType::kF16) << name;
      EXPECT_EQ(find_nodes(step, "ai.halfnote.AllFinite").size(), precision == DType::kF32 ? 0 : 1)
          << name;
      EXPECT_TRUE(runs_in(step, "Gemm", precision)) << name << " " << short_name(precision);
    }
  }
}

TEST(AutocastExport, ReasonsAreTrueOfModelsInHalf) {
  const Model model = compile_export("mlp_f16_legacy17", DType::kF32);
  size_t borders = 0;
  for (const Graph* graph : graphs_of(model)) {
    for (NodeId node : graph->all_nodes()) {
      const bool low = touches_16bit(*graph, node);
      EXPECT_TRUE(!low || is_cast(graph->node(node))) << graph->label(node);
      const std::string& reason = graph->node(node).precision.reason;
      EXPECT_EQ(low, reason.find("at its border") != std::string::npos) << reason;
      borders += low ? 1 : 0;
    }
  }
  EXPECT_GT(borders, 0U);
}

TEST(AutocastExport, RoundingsThatAreKeptHaveGradientsInF32) {
  const Model source = parse_model(R"(<ir_version: 10, opset_import: ["" : 23]>
net (float[N,2] x) => (float[N,2] y) <float[2,2] w = {0.11, -0.23, 0.37, 0.41}> {
  q = Cast <to = 10> (w)
  w1 = Cast <to = 1> (q)
  y = MatMul (x, w1)
})",
                                   "rounded");
  const Model model = compile_model(source, options_for("adamw", DType::kF32)).model;
  const Graph& step = model.training.front().graph;
  EXPECT_EQ(find_nodes(step, "Cast").size(), 2U);
  for (NodeId cast : find_nodes(step, "Cast")) EXPECT_EQ(step.node(cast).role, Role::kForward);
}

TEST(AutocastExport, TrainsAsTheF32ModelInEveryPrecision) {
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::vector<float> plain = losses(two_layers("float"), precision);
    EXPECT_EQ(losses(two_layers("float16"), precision), plain) << short_name(precision);
    EXPECT_EQ(losses(two_layers("bfloat16"), precision), plain) << short_name(precision);
  }
  EXPECT_NE(losses(two_layers("bfloat16"), DType::kBF16),
            losses(two_layers("bfloat16"), DType::kF16));
}

/// y = round8(x w), moved about in 8 bits and back where `moves` says so.
Model rounded_to_8_bits(const std::string& moves) {
  const std::string head =
      "<ir_version: 10, opset_import: [\"\" : 23]>\n"
      "net (float[4,4] x) => (float[4,3] y) <float[4,3] w = {0.5, -0.25, 1, 0.75, 1.5, -1, 0.25, "
      "-0.5, 2, 1, -1.25, 0.5}, float8e5m2[4] first = {0, 0, 0, 0}> {\n"
      "h = MatMul (x, w)\nq = Cast <to = 19> (h)\n";
  if (moves.empty()) return parse_model(head + "y = Cast <to = 1> (q)\n}", "rounded");
  return parse_model(head + R"(
t = Transpose <perm = [1, 0]> (q)
shape = Constant <value: tensor = int64[3] {3, 2, 2}> ()
deep = Reshape (t, shape)
axis = Constant <value: tensor = int64[1] {1}> ()
u = Unsqueeze (deep, axis)
s = Squeeze (u, axis)
flat = Flatten <axis = 1> (s)
pads = Constant <value: tensor = int64[4] {1, 0, 1, 0}> ()
edged = Pad <mode = "edge"> (flat, pads)
zero = Constant <value: tensor = float {0}> ()
sum = ReduceSum <keepdims = 0> (x)
is_more = Greater (sum, zero)
taken = If <then_branch: graph = a () => (float8e5m2[5,4] p) { p = Identity (edged) },
            else_branch: graph = b () => (float8e5m2[5,4] p2) { p2 = Identity (edged) }> (is_more)
wide = Cast <to = 1> (taken)
last, late = Scan <num_scan_inputs: int = 1,
  body: graph = c (float8e5m2[4] r, float[4] e) => (float8e5m2[4] r2, float[4] o) {
    r2 = Cast <to = 19> (e)
    o = Cast <to = 1> (r)
  }> (first, wide)
from = Constant <value: tensor = int64[1] {2}> ()
to = Constant <value: tensor = int64[1] {5}> ()
rows = Constant <value: tensor = int64[1] {0}> ()
cut = Slice (late, from, to, rows)
y = Transpose <perm = [1, 0]> (cut)
})",
                     "moved");
}

/// The gradient goes straight through: its values, times the loss scale far out of the range of
/// 8 bits, are those of f64 but for the rounding of the operands.
TEST(RoundingTo8Bits, HandsTheGradientOnUnrounded) {
  const Tensor x = Tensor::of<float>(
      {4, 4}, {1, 0.5f, -1, 2, 0.25f, 1, 1, -0.5f, 2, -1, 0.5f, 1, -2, 1, 0.75f, 0.5f});
  const Tensor target = uniform({4, 3}, 11);
  for (const char* moves : {"", "moved"}) {
    for (const DType precision : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(std::string(moves) + " " + std::string(short_name(precision)));
      CompileOptions options = options_for("sgd", precision);
      options.train.loss = "mse";
      options.train.optimizer.lr = 1;
      Session session = reference_session(rounded_to_8_bits(moves), options);
      const Tensor before = state(session, "w").deep_copy();
      ASSERT_TRUE(session.step({x, target}).applied);
      const Tensor after = state(session, "w");
      // Operands in 16 bits: x is exact there, the gradient of y is rounded once.
      const double bound = precision == DType::kF32   ? 0x1p-20
                           : precision == DType::kF16 ? 0x1p-9
                                                      : 0x1p-6;
      for (int64_t k = 0; k < 4; ++k) {
        for (int64_t j = 0; j < 3; ++j) {
          double gradient = 0, sizes = 0;
          for (int64_t i = 0; i < 4; ++i) {
            double h = 0;
            for (int64_t m = 0; m < 4; ++m) {
              h += x.at_as_double(4 * i + m) * before.at_as_double(3 * m + j);
            }
            const double y = read_low_bit(DType::kF8E5M2, write_low_bit(DType::kF8E5M2, h));
            const double part = x.at_as_double(4 * i + k) * 2 / 12 *
                                (y - static_cast<double>(target.at_as_double(3 * i + j)));
            gradient += part;
            sizes += std::fabs(part);
          }
          EXPECT_NEAR(before.at_as_double(3 * k + j) - after.at_as_double(3 * k + j), gradient,
                      bound * sizes)
              << k << ", " << j;
        }
      }
    }
  }
}

TEST(RoundingTo8Bits, AWeightOf8BitsIsNoParameter) {
  const Model model = parse_model(
      "<ir_version: 10, opset_import: [\"\" : 23]>\n"
      "net (float[N,2] x) => (float[N,2] y) <float8e4m3fn[2,2] w = {56, 64, 48, 56}, "
      "float[2] b = {0, 0}> { v = Cast <to = 1> (w)\nh = MatMul (x, v)\ny = Add (h, b) }",
      "w8");
  CompileOptions options = options_for("sgd", DType::kF16);
  options.train.loss = "mse";
  const CompileResult result = compile_model(model, options);
  EXPECT_TRUE(std::any_of(result.remarks.begin(), result.remarks.end(), [](const Remark& remark) {
    return remark.level == Remark::Level::kWarning && remark.where == "w" &&
           remark.text.find("no optimizer works on f8e4m3") != std::string::npos;
  }));
  options.train.trainable = {"w|b"};
  try {
    compile_model(model, options);
    ADD_FAILURE() << "trained";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("\"w\" cannot be trained"), std::string::npos);
  }
}

}  // namespace
}  // namespace halfnote::test
