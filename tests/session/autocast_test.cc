// Exports in 16 bits: the policy decides, so that they train as the f32 model of the same weights.
#include <algorithm>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/file.h"
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

}  // namespace
}  // namespace halfnote::test
