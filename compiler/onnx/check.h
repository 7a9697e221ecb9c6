// Validity by the judgement of the ONNX library itself.
#pragma once

#include "compiler/ir/model.h"

namespace halfnote {

/// Runs ONNX's checker with full type and shape inference on the inference model, and for each
/// training step on the graph that ONNX defines as its meaning: inference graph and algorithm,
/// joined. Throws Error(kModel) with the checker's words.
void check_model(const Model& model);

}  // namespace halfnote
