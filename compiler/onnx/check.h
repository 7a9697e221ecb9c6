// Validity by the judgement of the ONNX library itself.
#pragma once

#include "compiler/ir/model.h"

namespace halfnote {

/// Runs ONNX's checker with full type and shape inference on every kind of call in the inference
/// graph and the training steps, against the types declared around it, and on all functions. A
/// graph with untyped values or control flow is given to it as a whole, a step joined with the
/// inference graph. The model must pass `verify`. Throws Error(kModel) with the checker's words.
void check_model(const Model& model);

}  // namespace halfnote
