// Model to ModelProto.
#pragma once

#include "compiler/ir/model.h"
#include "compiler/onnx/write/graph.h"

namespace onnx {
class ModelProto;
}  // namespace onnx

namespace halfnote::proto {

/// The serialized ModelProto: graph, functions, training_info, metadata. Never stands in memory as
/// a message (text.h).
Text write_model(const Model& model, TensorSink& sink);

/// Everything but `graph`, `training_info` and functions.
void write_header(const Model& model, onnx::ModelProto& to);

/// How a step's values are called behind the inference graph: same inputs and initializers are
/// shared, all other clashes of names get a prefix (returned; empty when there are none).
std::string name_step(const Graph& inference, const TrainingStep& step, Naming& naming);

/// The algorithm of one step. `outputs` of new states stand behind the step's own. As `write_graph`
/// with `text`.
void write_algorithm(const TrainingStep& step, const Naming& naming, const std::string& prefix,
                     TensorSink& sink, onnx::GraphProto& to, GraphText* text = nullptr);

}  // namespace halfnote::proto
