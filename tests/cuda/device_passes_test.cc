// What the device passes make of whole models for a GPU: that its fused kernels are reached at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "compiler/ir/query.h"
#include "compiler/ir/text.h"
#include "kernels/cuda/table.h"
#include "runtime/core/device_ready.h"
#include "runtime/train/session.h"
#include "tests/cuda/harness/device_check.h"
#include "tests/environment.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;

/// The training step of a fixture, ready for a GPU.
Graph ready_for_gpu(const std::string& model, const std::string& loss, DType precision) {
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss_outputs = {loss};
  const fs::path path = fs::path(test::source_folder()) / "tests/fixtures/models" / model;
  const Model compiled = compile_file(path / "model.onnx", options).model;
  const Graph& step = compiled.training.front().graph;
  std::vector<Shape> shapes;
  for (const ValueId input : step.inputs()) {
    shapes.emplace_back();
    for (const Dim& dim : *step.value(input).type.shape)
      shapes.back().push_back(dim.known() ? dim.value : 4);
  }
  DeviceReadyOptions gpu;
  gpu.for_cpu = false;
  return make_device_ready(step, dims_from_shapes(step, shapes), gpu);
}

/// How many nodes of each op it has.
std::map<std::string, int> nodes_on_gpu(const std::string& model, const std::string& loss,
                                        DType precision) {
  const Graph ready = ready_for_gpu(model, loss, precision);
  std::map<std::string, int> count;
  for (const NodeId id : ready.nodes()) ++count[ready.node(id).op];
  return count;
}

TEST(DevicePasses, LossAndGradientAreOneNode) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    const auto nodes = nodes_on_gpu("mlp", "13", precision);
    EXPECT_EQ(nodes.count("SoftmaxCrossEntropyLossWithGradient"), 1u);
    EXPECT_EQ(nodes.count("SoftmaxCrossEntropyLossGrad"), 0u);
  }
}

/// 100 classes, padded to 104: scores and gradient are copied to no other width.
TEST(DevicePasses, PaddedClassesStayPadded) {
  const std::pair<const char*, const char*> models[] = {{"bert", "307"}, {"gpt2", "422"}};
  for (const auto& [model, loss] : models) {
    for (const DType precision : {DType::kF16, DType::kBF16}) {
      const Graph ready = ready_for_gpu(model, loss, precision);
      int losses = 0;
      for (const NodeId id : ready.nodes()) {
        const Node& node = ready.node(id);
        if (node.op == "SoftmaxCrossEntropyLossWithGradient")
          losses += node.attributes.get_int("classes", 0) == 100;
        if (node.op != "Pad" && node.op != "Slice") continue;
        const auto from = known_shape(ready, ready.input(id, 0)),
                   to = known_shape(ready, ready.output(id));
        const bool classes = from->back() == 104 ? to->back() == 100 : to->back() == 104;
        if (!classes || from->size() == 1 || (*from)[0] == 32) continue;  // a bias, the weight
        // The scores are a result of the step too.
        EXPECT_EQ(node.op, "Slice") << model << " " << ready.label(id);
        EXPECT_NE(node.role, Role::kBackward) << model << " " << ready.label(id);
      }
      EXPECT_EQ(losses, 1) << model;
    }
  }
}

/// What nothing but a bias is added to is a product with a bias.
TEST(DevicePasses, ProductsAddTheirBiases) {
  auto nodes = nodes_on_gpu("bert", "307", DType::kBF16);
  EXPECT_GE(nodes["Gemm"], 6) << "queries, keys and values of two layers";
}

TEST(DevicePasses, NormalizationsTakeTheReluAndTheResidual) {
  auto nodes = nodes_on_gpu("resnet50_narrow", "603", DType::kBF16);
  EXPECT_EQ(nodes["BatchNormalization"], 53);
  EXPECT_EQ(nodes["BatchNormalizationGrad"], 49);
  for (const char* op : {"Relu", "ReluGrad"}) EXPECT_EQ(nodes[op], 0) << op;
}

TEST(DevicePasses, AttentionIsOneNodeWhereItPays) {
  const std::pair<const char*, const char*> models[] = {{"bert", "307"}, {"gpt2", "422"}};
  EXPECT_EQ(nodes_on_gpu("gpt2", "422", DType::kF32).count("Attention"), 0u) << "8 by 8 scores";
  const Variable wish("HALFNOTE_ATTENTION", "always");
  for (const auto& [model, loss] : models) {
    for (const DType precision : {DType::kF32, DType::kBF16}) {
      auto nodes = nodes_on_gpu(model, loss, precision);
      EXPECT_EQ(nodes["Attention"], 2) << model;
      EXPECT_EQ(nodes["AttentionGrad"], 2) << model;
      EXPECT_EQ(nodes["Softmax"], 0) << model;
    }
  }
}

/// The device's own table says what it has kernels for, not the CPU's.
TEST(DevicePasses, AnOperatorThatTheDeviceLacksBecomesItsBody) {
  const Graph graph = parse_graph(R"(
small (float[4, 6] x) => (float[4, 6] y) {
  y = Mish (x)
}
)",
                                  "small");
  const auto has_mish = [&](const KernelTable& table) {
    DeviceReadyOptions options;
    options.for_cpu = false;
    options.kernels = &table;
    const Graph ready = make_device_ready(graph, {}, options);
    return std::ranges::any_of(ready.nodes(),
                               [&](NodeId id) { return ready.node(id).op == "Mish"; });
  };
  const KernelTable& all = cuda_emulated::kernel_table();
  std::vector<KernelRow> others(all.rows().begin(), all.rows().end());
  std::erase_if(others, [](const KernelRow& row) { return row.op == "Mish"; });
  EXPECT_TRUE(has_mish(all));
  EXPECT_FALSE(has_mish(KernelTable(others)));
}

}  // namespace
}  // namespace halfnote
