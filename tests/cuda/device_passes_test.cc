// What the device passes make of whole models for a GPU: that its fused kernels are reached at all.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>

#include "device_check.h"
#include "runtime/core/device_ready.h"
#include "runtime/train/session.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;

/// How many nodes of each op the training step of a fixture has on a GPU.
std::map<std::string, int> nodes_on_gpu(const std::string& model, const std::string& loss,
                                        DType precision) {
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
  const Graph ready = make_device_ready(step, dims_from_shapes(step, shapes), gpu);
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

TEST(DevicePasses, AttentionIsOneNodeWhereItPays) {
  const std::pair<const char*, const char*> models[] = {{"bert", "307"}, {"gpt2", "422"}};
  EXPECT_EQ(nodes_on_gpu("gpt2", "422", DType::kF32).count("Attention"), 0u) << "8 by 8 scores";
  ::setenv("HALFNOTE_ATTENTION", "always", 1);
  for (const auto& [model, loss] : models) {
    for (const DType precision : {DType::kF32, DType::kBF16}) {
      auto nodes = nodes_on_gpu(model, loss, precision);
      EXPECT_EQ(nodes["Attention"], 2) << model;
      EXPECT_EQ(nodes["AttentionGrad"], 2) << model;
      EXPECT_EQ(nodes["Softmax"], 0) << model;
    }
  }
  ::unsetenv("HALFNOTE_ATTENTION");
}

}  // namespace
}  // namespace halfnote
