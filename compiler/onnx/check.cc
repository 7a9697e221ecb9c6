// ONNX's checker does not look into `training_info`, and judges every node anew. So it is asked
// about one node of each kind of call (examples.h), in all graphs of the model; that names are
// unique and nodes in order is the business of our own verifier. A graph that cannot be judged so
// is checked as a whole: a step joined with the inference graph, as ONNX defines its meaning. Large
// initializers become inputs: the checker needs their types only.
#include "compiler/onnx/check.h"

#include <google/protobuf/arena.h>
#include <onnx/checker.h>
#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include <algorithm>

#include "base/error.h"
#include "compiler/onnx/examples.h"
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

/// Judges the calls that no earlier graph made.
void check_calls(const Model& model, const Graph& graph, proto::Examples& examples,
                 const std::string& what) {
  const std::vector<NodeId> nodes = examples.pick(graph);
  const bool header = &graph == &model.graph;  // is judged with the first graph
  if (nodes.empty() && !header) return;
  proto::CheckSink sink;
  google::protobuf::Arena arena;
  auto& proto = *google::protobuf::Arena::CreateMessage<onnx::ModelProto>(&arena);
  proto::write_header(model, sink, proto);
  const auto with_data = [&](ValueId value) {
    return proto::Examples::counts_with_data(graph, value);
  };
  proto::write_excerpt(graph, nodes, with_data, sink, *proto.mutable_graph());
  run_checker(proto, graph, model, what);
}

/// Judges the inference graph as it stands, or a step as ONNX defines its meaning: both joined.
/// They share inputs and initializers only; the nodes of the graph are left out.
void check_whole(const Model& model, const TrainingStep* step, const std::string& what) {
  proto::CheckSink sink;
  google::protobuf::Arena arena;
  auto& proto = *google::protobuf::Arena::CreateMessage<onnx::ModelProto>(&arena);
  proto::write_header(model, sink, proto);
  onnx::GraphProto& graph = *proto.mutable_graph();
  proto::write_graph(model.graph, {}, sink, graph);
  if (step != nullptr) {
    for (auto* dropped : {graph.mutable_value_info(), graph.mutable_output()}) dropped->Clear();
    graph.clear_node();
    const std::string name = graph.name();
    proto::Naming naming;
    const std::string prefix = proto::name_step(model.graph, *step, naming);
    proto::write_algorithm(*step, naming, prefix, sink, graph);
    graph.set_name(name);
  }
  run_checker(proto, step == nullptr ? model.graph : step->graph, model, what);
}

}  // namespace

void check_model(const Model& model) {
  proto::Examples examples;
  const auto check = [&](const Graph& graph, const TrainingStep* step, const std::string& what) {
    if (proto::Examples::suits(graph)) return check_calls(model, graph, examples, what);
    check_whole(model, step, what);
  };
  check(model.graph, nullptr, "the model");
  for (const TrainingStep& step : model.training) {
    check(step.graph, &step, "training step \"" + step.name + "\"");
  }
}

}  // namespace halfnote
