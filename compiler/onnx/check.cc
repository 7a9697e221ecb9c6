// ONNX's checker does not look into `training_info`, so the joined graph of each step is built here
// and checked as an ordinary model. The graph's own nodes are checked once, apart from them.
// Large initializers become inputs: the checker needs their types
// only.
#include "compiler/onnx/check.h"

#include <google/protobuf/arena.h>
#include <onnx/checker.h>
#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include "base/error.h"
#include "compiler/onnx/write/model.h"

namespace halfnote {
namespace {

/// The checker's full check, but types are inferred in `proto` itself, not in a copy of it.
void run_checker(onnx::ModelProto& proto, const std::string& what) {
  const onnx::ShapeInferenceOptions strict(/*check_type=*/true, /*error_mode=*/1,
                                           /*data_propagation=*/false);
  try {
    onnx::checker::check_model(proto, /*full_check=*/false);
    onnx::shape_inference::InferShapes(proto, onnx::OpSchemaRegistry::Instance(), strict);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kModel, "the ONNX checker refuses " + what + ": " + error.what());
  }
}

}  // namespace

void check_model(const Model& model) {
  proto::CheckSink sink;
  google::protobuf::Arena arena;
  auto& proto = *google::protobuf::Arena::CreateMessage<onnx::ModelProto>(&arena);
  proto::write_without_training(model, sink, proto);
  run_checker(proto, "the model");
  // Steps share the graph's inputs and initializers only; its nodes were just checked.
  onnx::GraphProto& graph = *proto.mutable_graph();
  for (auto* dropped : {graph.mutable_value_info(), graph.mutable_output()}) dropped->Clear();
  graph.clear_node();
  for (const TrainingStep& step : model.training) {
    proto::Naming naming;
    const std::string prefix = proto::name_step(model.graph, step, naming);
    google::protobuf::Arena own;
    auto& joined = *google::protobuf::Arena::CreateMessage<onnx::ModelProto>(&own);
    joined = proto;
    proto::write_algorithm(step, naming, prefix, sink, *joined.mutable_graph());
    joined.mutable_graph()->set_name(graph.name());
    run_checker(joined, "training step \"" + step.name + "\"");
  }
}

}  // namespace halfnote
