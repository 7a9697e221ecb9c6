// A whole model: the graph, the functions that came with it, and, once it is a training model, its
// steps.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

inline constexpr std::string_view kHalfnoteDomain = "ai.halfnote";
inline constexpr int64_t kOpsetVersion = 23;  // what `lift` lifts to and export writes
inline constexpr int64_t kIrVersion = 10;
inline constexpr int64_t kMinOpset = 7;  // the oldest op-set read in full; see lift_opset.cc

/// A model-local function as imported. Its body is a graph whose inputs and outputs are the
/// function's.
struct Function {
  std::string domain, name, overload;
  std::vector<std::string> attributes;  // without a default
  std::vector<std::pair<std::string, Attribute>> default_attributes;
  std::map<std::string, int64_t> opsets;
  Graph body;
};

/// One training step: an entry of `training_info`. The graph owns all it needs; a state or constant
/// whose initializer has the same name in Model::graph shares its bytes and is written once.
struct TrainingStep {
  std::string name;  // `step`, or `accumulate` and `apply`
  Graph graph;
  /// A graph without inputs; its outputs are the first values of the initializers named in
  /// `initialization_binding`.
  Graph initialization;
  std::vector<std::pair<std::string, std::string>>
      initialization_binding;  // initializer name, output name
};

struct Model {
  Graph graph;  // inference form, once `training` is filled
  std::vector<TrainingStep> training;
  std::vector<Function> functions;
  std::map<std::string, int64_t> opsets;  // by domain, "" is ONNX
  std::map<std::string, std::string> metadata;
  int64_t ir_version = kIrVersion;
  std::string producer_name, producer_version, domain, doc;
  int64_t model_version = 0;
  std::string source;                   // the file it came from, for messages
  std::vector<std::string> data_files;  // external data that it was read from

  bool is_training() const { return !training.empty(); }
};

/// Calls `visit(Graph&)` for the inference graph and every step's graph.
template <class Visit>
void for_each_graph(Model& model, Visit&& visit) {
  visit(model.graph);
  for (TrainingStep& step : model.training) visit(step.graph);
}

}  // namespace halfnote
