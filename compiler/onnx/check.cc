// ONNX's checker does not look into `training_info`, so the joined graph of each step is built here
// and checked as an ordinary model. Large initializers become inputs: the checker needs their types
// only.
#include "compiler/onnx/check.h"

#include <onnx/checker.h>
#include <onnx/onnx_pb.h>

#include "base/error.h"
#include "compiler/onnx/write/model.h"

namespace halfnote {
namespace {

void run_checker(const onnx::ModelProto& proto, const std::string& what) {
  try {
    onnx::checker::check_model(proto, /*full_check=*/true);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kModel, "the ONNX checker refuses " + what + ": " + error.what());
  }
}

}  // namespace

void check_model(const Model& model) {
  proto::CheckSink sink;
  onnx::ModelProto proto;
  proto::write_without_training(model, sink, proto);
  run_checker(proto, "the model");
  for (const TrainingStep& step : model.training) {
    proto::Naming naming;
    const std::string prefix = proto::name_step(model.graph, step, naming);
    onnx::GraphProto algorithm;
    proto::write_algorithm(step, naming, prefix, sink, algorithm);
    onnx::ModelProto joined = proto;
    const std::string name = joined.graph().name();
    joined.mutable_graph()->MergeFrom(algorithm);
    joined.mutable_graph()->set_name(name);
    run_checker(joined, "training step \"" + step.name + "\"");
  }
}

}  // namespace halfnote
