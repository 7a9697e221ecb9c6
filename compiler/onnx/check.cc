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
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "compiler/onnx/examples.h"
#include "compiler/onnx/schema.h"
#include "compiler/onnx/write/model.h"

namespace halfnote {
namespace {

/// Throws Error(kUnsupported) for a node with a type that no schema of op-set 23 has: nothing is
/// wrong with it but that it cannot be written.
void refuse_newer_types(const Graph& graph, NodeId id, const Model& model) {
  for (const auto values : {graph.inputs(id), graph.outputs(id)}) {
    for (ValueId value : values) {
      if (!value.valid() || !is_newer_type(graph.value(value).type.dtype)) continue;
      throw Error(ErrorCode::kUnsupported, "an element type that op-set 23 does not have")
          .at({model.source, graph.label(id), graph.node(id).op})
          .expected("an ONNX type up to f4e2m1 in \"" + graph.value(value).name + "\"",
                    std::string(short_name(graph.value(value).type.dtype)))
          .hint("store it in another type, as int4 or int8 with their scales");
    }
  }
}

/// Throws what is wrong with a node by its schema, if that is what the checker means: it names the
/// node and both types, which ONNX's messages often do not.
void explain(const Graph& graph, const Model& model, const std::string& refused) {
  const auto opset = model.opsets.find("");
  for (NodeId id : graph.all_nodes()) {
    if (!graph.node(id).domain.empty()) continue;
    try {
      check_node(graph, id, opset == model.opsets.end() ? kOpsetVersion : opset->second);
    } catch (const Error& reason) {
      refuse_newer_types(graph, id, model);
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

/// The functions of a model, by what a call says.
class Functions {
 public:
  using Key = std::tuple<std::string_view, std::string_view, std::string_view>;

  explicit Functions(const Model& model) {
    for (const Function& f : model.functions) by_key_[{f.domain, f.name, f.overload}] = &f;
  }

  /// Adds what a node calls, and what is called there.
  void add_called(const Node& node, std::set<const Function*>& to) const {
    std::vector<const Node*> nodes{&node};
    while (!nodes.empty()) {
      const Node& caller = *nodes.back();
      nodes.pop_back();
      const auto found = by_key_.find({caller.domain, caller.op, caller.overload});
      if (found == by_key_.end() || !to.insert(found->second).second) continue;
      const Graph& body = found->second->body;
      for (NodeId id : body.all_nodes()) nodes.push_back(&body.node(id));
    }
  }

 private:
  std::map<Key, const Function*> by_key_;
};

/// What the checker is asked about a graph: calls that no earlier graph made, and the functions
/// that they want. Each function stands in one excerpt at least, and hardly in more.
struct Excerpt {
  const Graph* graph;
  std::vector<NodeId> nodes;
  std::set<const Function*> functions;
};

Excerpt excerpt_of(const Graph& graph, proto::Examples& examples, const Functions& functions) {
  Excerpt excerpt{&graph, examples.pick(graph), {}};
  for (NodeId id : excerpt.nodes) functions.add_called(graph.node(id), excerpt.functions);
  return excerpt;
}

void check_excerpt(const Model& model, const Excerpt& excerpt, const std::string& what) {
  const Graph& graph = *excerpt.graph;
  const bool header = &graph == &model.graph;  // is judged with the first graph
  if (excerpt.nodes.empty() && !header) return;
  proto::CheckSink sink;
  google::protobuf::Arena arena;
  auto& proto = *google::protobuf::Arena::CreateMessage<onnx::ModelProto>(&arena);
  proto::write_header(model, proto);
  for (const Function& function : model.functions) {
    if (excerpt.functions.contains(&function)) {
      proto::write_function(function, sink, *proto.add_functions());
    }
  }
  const auto with_data = [&](ValueId value) {
    return proto::Examples::counts_with_data(graph, value);
  };
  proto::write_excerpt(graph, excerpt.nodes, with_data, sink, *proto.mutable_graph());
  run_checker(proto, graph, model, what);
}

/// Judges the inference graph as it stands, or a step as ONNX defines its meaning: both joined.
/// They share inputs and initializers only; the nodes of the graph are left out.
void check_whole(const Model& model, const TrainingStep* step, const std::string& what) {
  proto::CheckSink sink;
  google::protobuf::Arena arena;
  auto& proto = *google::protobuf::Arena::CreateMessage<onnx::ModelProto>(&arena);
  proto::write_header(model, proto);
  for (const Function& function : model.functions) {
    proto::write_function(function, sink, *proto.add_functions());
  }
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
  const Functions functions(model);
  std::vector<Excerpt> excerpts;
  excerpts.reserve(1 + model.training.size());
  const auto suits = [&](const Graph& graph) { return proto::Examples::suits(graph); };
  std::set<const Function*> called;
  const auto add = [&](const Graph& graph) {
    excerpts.push_back(suits(graph) ? excerpt_of(graph, examples, functions)
                                    : Excerpt{nullptr, {}, {}});
    called.insert(excerpts.back().functions.begin(), excerpts.back().functions.end());
  };
  add(model.graph);
  for (const TrainingStep& step : model.training) add(step.graph);
  for (const Function& function : model.functions) {
    if (!called.contains(&function)) excerpts[0].functions.insert(&function);
  }
  const auto check = [&](size_t index, const TrainingStep* step, const std::string& what) {
    const Excerpt& excerpt = excerpts[index];
    return excerpt.graph == nullptr ? check_whole(model, step, what)
                                    : check_excerpt(model, excerpt, what);
  };
  check(0, nullptr, "the model");
  for (size_t i = 0; i < model.training.size(); ++i) {
    const TrainingStep& step = model.training[i];
    check(1 + i, &step, "training step \"" + step.name + "\"");
  }
}

}  // namespace halfnote
