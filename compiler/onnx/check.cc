// ONNX's checker does not look into `training_info`, so the joined graph of each step is built here
// and checked as an ordinary model. The graph's own nodes are checked once, apart from them.
// Large initializers become inputs: the checker needs their types only.
#include "compiler/onnx/check.h"

#include <google/protobuf/arena.h>
#include <onnx/checker.h>
#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include <algorithm>

#include "base/error.h"
#include "compiler/onnx/schema.h"
#include "compiler/onnx/write/model.h"

namespace halfnote {
namespace {

/// Throws what is wrong with a node by its schema, if that is what the checker means: it names the
/// node and both types, which ONNX's messages often do not.
void explain(const Graph& graph, const Model& model, const std::string& refused) {
  const auto opset = model.opsets.find("");
  for (NodeId id : graph.all_nodes()) {
    if (!graph.node(id).domain.empty()) continue;
    try {
      check_node(graph, id, opset == model.opsets.end() ? kOpsetVersion : opset->second);
    } catch (const Error& reason) {
      Error error(ErrorCode::kModel, refused + reason.problem());
      error.at(reason.place()).within({model.source, {}, {}});
      const bool types = reason.problem().find("the type of") != std::string::npos ||
                         reason.problem().find("a type that") != std::string::npos;
      const char* way_out = "export the model in one float type, without autocast and .half()";
      throw std::move(error)
          .expected(reason.expectation(), reason.value())
          .hint(types && reason.hint_text().empty() ? way_out : reason.hint_text());
    }
  }
}

/// ONNX's messages have several lines, and names from the file stand in them as they are.
std::string one_line(std::string text) {
  for (size_t at = 0; (at = text.find("\n\n")) != std::string::npos;) text.erase(at, 1);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// The checker's full check, but types are inferred in `proto` itself, not in a copy of it.
void run_checker(onnx::ModelProto& proto, const Graph& graph, const Model& model,
                 const std::string& what) {
  const onnx::ShapeInferenceOptions strict(/*check_type=*/true, /*error_mode=*/1,
                                           /*data_propagation=*/false);
  try {
    onnx::checker::check_model(proto, /*full_check=*/false);
    onnx::shape_inference::InferShapes(proto, onnx::OpSchemaRegistry::Instance(), strict);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    const std::string refused = "the ONNX checker refuses " + what + ": ";
    explain(graph, model, refused);
    throw Error(ErrorCode::kModel, refused + one_line(error.what())).at({model.source, {}, {}});
  }
}

}  // namespace

void check_model(const Model& model) {
  proto::CheckSink sink;
  google::protobuf::Arena arena;
  auto& proto = *google::protobuf::Arena::CreateMessage<onnx::ModelProto>(&arena);
  proto::write_without_training(model, sink, proto);
  run_checker(proto, model.graph, model, "the model");
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
    run_checker(joined, step.graph, model, "training step \"" + step.name + "\"");
  }
}

}  // namespace halfnote
