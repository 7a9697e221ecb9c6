#include "runtime/train/artifact/checks.h"

#include <string>

#include "base/error.h"
#include "compiler/ir/verify.h"
#include "passes/manager.h"
#include "passes/precision/scale_units.h"
#include "passes/train/step.h"

namespace halfnote {
namespace {

/// A compilation that stopped early leaves a step without its loss scaling or update.
void require_whole(const Model& model) {
  const auto stage = model.metadata.find("halfnote.stage");
  if (stage == model.metadata.end() || stage->second == stage_name(Stage::kPadded)) return;
  throw Error(ErrorCode::kModel, "the artifact is compiled only in part")
      .at({model.source, {}, {}})
      .expected("stage " + std::string(stage_name(Stage::kPadded)), "stage " + stage->second)
      .hint("compile it without --stop-after");
}

/// What the session reads as one number is one, whatever the file says.
void require_number(const Model& model, const std::string& what, const Shape& shape) {
  if (element_count(shape) == 1) return;
  throw Error(ErrorCode::kModel, "the artifact is not one that can be run: " + what)
      .at({model.source, {}, {}})
      .expected("one number", "shape " + to_string(shape));
}

void check_types(const Model& model, const Graph& graph, const StateStore& store) {
  for (ValueId id : graph.initializers()) {
    const Value& value = graph.value(id);
    const StateEntry* entry = store.find(value.name);
    if (entry == nullptr) continue;
    const Tensor& tensor = value.tensor;
    if (tensor.dtype() == entry->dtype && tensor.shape() == entry->shape) continue;
    throw Error(ErrorCode::kModel, "the artifact is not one that can be run: its state " +
                                       entry->name + " has two types")
        .at({model.source, {}, {}})
        .expected(
            std::string(short_name(entry->dtype)) + to_string(entry->shape) + " in all graphs",
            std::string(short_name(tensor.dtype())) + to_string(tensor.shape()));
  }
}

}  // namespace

void check_artifact(Model& model) {
  require_whole(model);
  verify(model, {.code = ErrorCode::kModel});
  for (TrainingStep& step : model.training) check_scale_units(step.graph, ErrorCode::kModel);
}

void check_states(const Model& model, const StateStore& store) {
  for (const std::string_view name : {kLossScale, kAttemptedStep, kAppliedStep, kFloorHits}) {
    const StateEntry* entry = store.find(name);
    if (entry != nullptr) require_number(model, "its state " + entry->name, entry->shape);
  }
  check_types(model, model.graph, store);
  for (const TrainingStep& step : model.training) check_types(model, step.graph, store);
}

void check_outputs(const Model& model, std::string_view step, const Program& program) {
  if (step != kApplyName) {
    if (program.outputs.empty()) {
      throw Error(ErrorCode::kModel, "the artifact is not one that can be run: " +
                                         std::string(step) + " gives no loss")
          .at({model.source, {}, {}})
          .expected("the loss as its first output", "no output");
    }
    require_number(model, "the loss of " + std::string(step), program.outputs.front().shape);
  }
  for (const ProgramOperand& output : program.outputs) {
    const bool read =
        output.name == kFinite || output.name == kGradientNorm || output.name == kLearningRate;
    if (read) require_number(model, "its output " + output.name, output.shape);
  }
}

}  // namespace halfnote
