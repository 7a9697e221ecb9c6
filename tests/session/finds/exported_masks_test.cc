// What the cases of exporters whose forward makes masks and tables train, and that an attention
// with such a mask runs as one node: a mask with a gradient would keep its scores.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "compiler/ir/query.h"
#include "compiler/onnx/import.h"
#include "runtime/core/device_ready.h"
#include "tests/session/support.h"

namespace halfnote::test {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Not;

Model compiled_export(const std::string& name, DType precision) {
  const std::filesystem::path folder =
      std::filesystem::path(HALFNOTE_SOURCE_DIR) / "tests/fixtures/exporters" / name;
  Model model = import_model((folder / "model.onnx").string(), {});
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.loss_outputs = {model.graph.value(model.graph.outputs().front()).name};
  options.train.optimizer.kind = "sgd";
  return compile_model(std::move(model), options).model;
}

std::vector<std::string> trained_names(const Model& model) {
  std::vector<std::string> names;
  for (ValueId id : model.graph.initializers()) {
    if (model.graph.value(id).trainable) names.push_back(model.graph.value(id).name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(ExportedMasks, OnlyParametersAreTrained) {
  EXPECT_THAT(trained_names(compiled_export("mask_filled_dynamo18", DType::kF32)),
              ElementsAre("out.bias", "qkv.bias", "val_0", "val_41", "words.weight"));
  // 1 + gain is `add`.
  EXPECT_THAT(trained_names(compiled_export("positions_folded_dynamo20", DType::kF32)),
              ElementsAre("add", "out.bias", "qkv.bias", "val_33", "val_62", "words.weight"));
  // The sum of two learned tables is `add_1`.
  EXPECT_THAT(trained_names(compiled_export("relative_table_dynamo18", DType::kF32)),
              ElementsAre("add_1", "out.bias", "qkv.bias", "val_0", "val_44", "words.weight"));
}

TEST(ExportedMasks, AttentionIsFused) {
  setenv("HALFNOTE_ATTENTION", "always", 1);
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(short_name(precision));
    for (const char* name : {"mask_filled_dynamo18", "positions_folded_dynamo20"}) {
      const Model model = compiled_export(name, precision);
      const Graph ready = make_device_ready(model.training.front().graph, {});
      EXPECT_EQ(find_nodes(ready, "ai.halfnote.Attention").size(), 1u) << name;
      EXPECT_EQ(find_nodes(ready, "ai.halfnote.AttentionGrad").size(), 1u) << name;
    }
  }
  unsetenv("HALFNOTE_ATTENTION");
}

/// Exporters write a mask of zeros where none was given: it is not trained, and no term of the
/// scores. One that hides something is.
TEST(ExportedMasks, AMaskOfZerosIsNoTerm) {
  setenv("HALFNOTE_ATTENTION", "always", 1);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"bert_eager_dynamo20", "where"}, {"bert_eager_legacy14", ""},
      {"bert_sdpa_legacy17", ""},       {"bert_sdpa_dynamo18", "val_83"},
      {"roberta_legacy14", ""},         {"roberta_dynamo18", "val_74"},
      {"distilbert_legacy17", ""},      {"distilbert_dynamo18", "val_74"},
      {"electra_legacy14", ""},         {"bert_masked_legacy16", ""},
  };
  for (const auto& [name, mask] : cases) {
    SCOPED_TRACE(name);
    const Model model = compiled_export(name, DType::kBF16);
    const Graph ready = make_device_ready(model.training.front().graph, {});
    const std::vector<NodeId> found = find_nodes(ready, "ai.halfnote.Attention");
    EXPECT_FALSE(found.empty());
    const size_t inputs = name == "bert_masked_legacy16" ? 4 : 3;
    for (const NodeId id : found) EXPECT_EQ(ready.inputs(id).size(), inputs);
    EXPECT_THAT(trained_names(model), Not(Contains(mask)));
  }
  unsetenv("HALFNOTE_ATTENTION");
}

}  // namespace
}  // namespace halfnote::test
