// ONNX Runtime's training artifacts: training_model.onnx, optimizer_model.onnx and checkpoint, as
// onnxruntime.training.artifacts.generate_artifacts writes them.
#pragma once

#include <filesystem>
#include <functional>

#include "compiler/ir/model.h"
#include "compiler/onnx/import.h"
#include "passes/options.h"

namespace halfnote {

/// Is this node InPlaceAccumulatorV2, by which a training_model.onnx is known?
bool is_ort_accumulator(const Node& node);
bool is_ort_training(const Model& model);

/// The model file that a path means: in a folder, its `…training_model.onnx`. Throws Error(kIo) for
/// a folder that holds none, or several.
std::filesystem::path model_file_of(const std::filesystem::path& path);

/// Puts the parameters of the checkpoint beside `file` into the graph, where they are inputs, and
/// the optimizer beside it into the options, as far as these hold the defaults. Throws Error as
/// `read_ort_checkpoint` and `import_model` do, kModel for parameters that do not fit the graph,
/// kUnsupported for another optimizer than AdamWOptimizer and SGDOptimizerV2.
void complete_ort_artifact(Model& model, const std::filesystem::path& file,
                           const ImportOptions& reading, CompileOptions& options);

}  // namespace halfnote
