// The files beside training_model.onnx. A prefix of its name is a prefix of theirs.
#include "passes/foreign/ort_artifact.h"

#include <algorithm>

#include "base/error.h"
#include "base/text/printable.h"
#include "compiler/onnx/ort_checkpoint.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTrainingModel = "training_model.onnx";
constexpr std::string_view kMicrosoft = "com.microsoft";

fs::path beside(const fs::path& file, const char* name) {
  std::string prefix = file.filename().string();
  prefix = prefix.ends_with(kTrainingModel)
               ? prefix.substr(0, prefix.size() - kTrainingModel.size())
               : "";
  return file.parent_path() / (prefix + name);
}

/// An input becomes an initializer with this value.
void give_value(Graph& graph, ValueId input, const OrtParameter& parameter) {
  const ValueType& type = graph.value(input).type;
  bool fits = type.dtype == parameter.tensor.dtype() &&
              type.rank() == static_cast<int>(parameter.tensor.shape().size());
  for (int i = 0; fits && i < type.rank(); ++i) {
    const Dim& dim = (*type.shape)[static_cast<size_t>(i)];
    fits = !dim.known() || dim.is(parameter.tensor.shape()[static_cast<size_t>(i)]);
  }
  if (!fits) {
    throw Error(ErrorCode::kModel, "a parameter of the checkpoint does not fit the training graph")
        .at({{}, printable(parameter.name), {}})
        .expected(to_string(type),
                  to_string(ValueType::tensor(parameter.tensor.dtype(),
                                              symbolic(parameter.tensor.shape()))));
  }
  graph.rename(input, graph.unique_name(parameter.name + ".input"));
  graph.replace_uses(input, graph.add_initializer(parameter.name, parameter.tensor));
  graph.remove_value(input);
}

void give_values(Graph& graph, const OrtCheckpoint& checkpoint) {
  for (const OrtParameter& parameter : checkpoint.parameters) {
    const ValueId value = graph.find(parameter.name);
    if (!value.valid()) continue;  // not read by this graph
    if (graph.value(value).kind == ValueKind::kInput) give_value(graph, value, parameter);
  }
}

/// Takes the artifact's number unless the user chose another than the default.
template <class T>
void take(T& mine, const T& standard, T theirs) {
  if (mine == standard) mine = std::move(theirs);
}

void read_adamw(const Attributes& attributes, Optimizer& o) {
  const Optimizer standard;
  o.kind = attributes.get_int("adam_mode", 0) == 0 ? "adamw" : "hf_adamw";
  take(o.beta1, standard.beta1, attributes.get_float("alpha", 0.9f));
  take(o.beta2, standard.beta2, std::optional(attributes.get_float("beta", 0.999f)));
  take(o.epsilon, standard.epsilon, std::optional(attributes.get_float("epsilon", 1e-8f)));
  take(o.weight_decay, standard.weight_decay, attributes.get_float("weight_decay", 1e-2f));
  o.correct_bias = attributes.get_int("correct_bias", 1) != 0;
}

void read_clip(const Graph& graph, NodeId node, Optimizer& o) {
  const Attributes& attributes = graph.node(node).attributes;
  const std::string norm = attributes.get_string("norm_type", "fro");
  if (norm != "fro") {
    throw Error(ErrorCode::kUnsupported, "gradients are clipped by another norm")
        .at({{}, graph.label(node), graph.node(node).op})
        .expected("norm_type fro", norm);
  }
  take(o.clip_norm, 0.0f, attributes.get_float("max_norm", 1.0f));
}

void read_optimizer(const Model& model, Optimizer& o) {
  bool found = false;
  for (NodeId node : model.graph.nodes()) {
    const Node& data = model.graph.node(node);
    const bool theirs = data.domain == kMicrosoft;
    if (theirs && data.op == "AdamWOptimizer") {
      read_adamw(data.attributes, o);
      found = true;
    } else if (theirs && data.op == "SGDOptimizerV2") {
      o.kind = "sgd";
      found = true;
    } else if (theirs && data.op == "InplaceClipGradNorm") {
      read_clip(model.graph, node, o);
    } else {
      throw Error(ErrorCode::kUnsupported,
                  "the optimizer model has an op that halfnote does not read")
          .at({model.source, model.graph.label(node), data.op})
          .expected("AdamWOptimizer, SGDOptimizerV2 and InplaceClipGradNorm of com.microsoft",
                    data.op)
          .hint("name the optimizer with --optimizer");
    }
  }
  if (found) return;
  throw Error(ErrorCode::kModel, "the optimizer model has no optimizer")
      .at({model.source, {}, {}})
      .hint("name the optimizer with --optimizer");
}

}  // namespace

bool is_ort_accumulator(const Node& node) {
  return node.domain == kMicrosoft && node.op == "InPlaceAccumulatorV2";
}

bool is_ort_training(const Model& model) {
  for (NodeId node : model.graph.nodes()) {
    if (is_ort_accumulator(model.graph.node(node))) return true;
  }
  return false;
}

fs::path model_file_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return path;
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().filename().string().ends_with(kTrainingModel)) found.push_back(entry.path());
  }
  if (found.size() == 1) return found.front();
  throw Error(ErrorCode::kIo, "the model is a folder")
      .at({path.string(), {}, {}})
      .expected("one training_model.onnx in it (training artifacts of ONNX Runtime)",
                std::to_string(found.size()))
      .hint("name the .onnx file");
}

void complete_ort_artifact(Model& model, const fs::path& file, const ImportOptions& reading,
                           CompileOptions& options) {
  const fs::path checkpoint = beside(file, "checkpoint");
  const fs::path optimizer = beside(file, "optimizer_model.onnx");
  if (!fs::exists(checkpoint)) {
    throw Error(ErrorCode::kIo,
                "the training graph has its parameters in a checkpoint that is missing")
        .at({checkpoint.string(), {}, {}})
        .hint("put the checkpoint that generate_artifacts wrote beside it");
  }
  const OrtCheckpoint values = read_ort_checkpoint(checkpoint);
  give_values(model.graph, values);
  if (values.step > 0 && reading.warn) {
    reading.warn("the checkpoint is of a training under way (step " + std::to_string(values.step) +
                 "): its parameters are taken, the moments of its optimizer start anew");
  }
  if (options.train.optimizer.chosen || options.inference_only) return;
  if (fs::exists(optimizer)) {
    read_optimizer(import_model(optimizer, reading), options.train.optimizer);
  } else if (reading.warn) {
    reading.warn("there is no " + optimizer.filename().string() +
                 " beside the training graph: the optimizer is that of the options");
  }
}

}  // namespace halfnote
