// A training step as one ordinary ONNX model, for runtimes that ignore `training_info`.
#pragma once

#include "compiler/ir/model.h"

namespace halfnote {

enum class Emulation : uint8_t { kNone, k16Bit };

/// The step of this name (`step`, `accumulate`, `apply`, `evaluate`) as a model of standard ops
/// only: inputs are the model's, then every state that it updates, then every one that it reads and
/// another step updates, each under its name; outputs are the step's, then the new value of every
/// state that it updates as `NAME.new`. With k16Bit every 16-bit op is f32 between casts. Throws
/// Error(kUsage) for a step that the model does not have.
Model emit_step(const Model& model, std::string_view step_name, Emulation emulation);

/// Replaces every `ai.halfnote` node by its body.
void inline_bodies(Graph& graph);

}  // namespace halfnote
