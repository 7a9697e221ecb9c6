// ModelProto to Model: versions, functions, graph and training steps, and the checks over all of
// them.
#pragma once

#include "compiler/ir/model.h"
#include "compiler/onnx/proto/tensor.h"

namespace onnx {
class ModelProto;
}  // namespace onnx

namespace halfnote::proto {

Model read_model(const onnx::ModelProto& proto, TensorSource& source);

/// Throws Error(kModel) when functions call each other in a circle, are defined twice, or would
/// expand to more than `limit` nodes.
void check_functions(const Model& model, uint64_t limit);

}  // namespace halfnote::proto
