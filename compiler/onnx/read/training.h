// `training_info` of a ModelProto to training steps.
#pragma once

#include "compiler/ir/model.h"
#include "compiler/onnx/proto/tensor.h"

namespace onnx {
class ModelProto;
}  // namespace onnx

namespace halfnote::proto {

/// Fills model.training; model.graph must have been read. ONNX runs `algorithm` behind `graph` as
/// one: here each step gets the inference nodes, inputs and initializers that it needs, so that it
/// stands alone.
void read_training(const onnx::ModelProto& proto, TensorSource& source, Model& model);

}  // namespace halfnote::proto
