// Graph, functions and header of a model, and the algorithm of each training step. ONNX runs an
// algorithm behind the inference graph as one graph, so the names of a step are first kept apart
// from those of the graph (`name_step`).
#include "compiler/onnx/write/model.h"

#include <onnx/onnx_pb.h>

#include <algorithm>

#include "base/error.h"
#include "base/version.h"
#include "compiler/onnx/metadata.h"

namespace halfnote::proto {
namespace {

int64_t ir_version_of(DType dtype) {
  switch (dtype) {
    case DType::kF4E2M1:
      return 11;
    case DType::kF8E8M0:
      return 12;
    case DType::kU2:
    case DType::kI2:
      return 13;
    case DType::kF8E4M3FN:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2:
    case DType::kF8E5M2FNUZ:
      return 9;
    case DType::kU4:
    case DType::kI4:
      return kIrVersion;
    default:
      return 8;
  }
}

/// That of the releases of ONNX with the op-set, at most 10; or what the newest element type asks
/// for. Runtimes refuse models of a version that is newer than they are.
int64_t ir_version_of(const Model& model) {
  const auto opset = model.opsets.find("");
  const bool known = opset != model.opsets.end();
  int64_t version = kIrVersion;
  if (known && opset->second <= 20) version = 9;
  if (known && opset->second <= 18) version = 8;
  const auto scan = [&](const Graph& graph) {
    for (uint32_t i = 0; i < graph.value_count(); ++i) {
      version = std::max(version, ir_version_of(graph.value(ValueId{i}).type.dtype));
    }
  };
  scan(model.graph);
  for (const TrainingStep& step : model.training) scan(step.graph);
  for (const Function& function : model.functions) scan(function.body);
  return version;
}

bool uses_domain(const Graph& graph, std::string_view domain) {
  const auto nodes = graph.all_nodes();
  return std::any_of(nodes.begin(), nodes.end(),
                     [&](NodeId id) { return graph.node(id).domain == domain; });
}

bool uses_halfnote(const Model& model) {
  bool used = uses_domain(model.graph, kHalfnoteDomain);
  for (const TrainingStep& step : model.training) {
    used = used || uses_domain(step.graph, kHalfnoteDomain);
  }
  for (const Function& function : model.functions) {
    used = used || function.domain == kHalfnoteDomain;
  }
  return used;
}

void write_opsets(const Model& model, onnx::ModelProto& to) {
  std::map<std::string, int64_t> opsets = model.opsets;
  if (uses_halfnote(model)) opsets.emplace(kHalfnoteDomain, 1);
  for (const auto& [domain, version] : opsets) {
    auto* import = to.add_opset_import();
    import->set_domain(domain);
    import->set_version(version);
  }
}

void write_states(const Graph& graph, onnx::GraphProto& to) {
  std::vector<std::string> words;
  for (const State& state : graph.states()) {
    words.emplace_back(state_kind_name(state.kind));
    words.push_back(graph.value(state.current).name);
    words.push_back(graph.value(state.next).name);
  }
  if (!words.empty()) add_metadata(to, kStatesKey, join_names(words));
}

bool same_tensor(const Tensor& a, const Tensor& b) {
  const bool same_place = a.bytes() == b.bytes() && a.dtype() == b.dtype() &&
                          a.shape() == b.shape() && a.dtype() != DType::kString;
  return same_place || identical(a, b);
}

/// May the step's value stand for the inference graph's of the same name?
bool can_share(const Graph& inference, const Value& theirs, const Graph& graph, const Value& ours) {
  if (theirs.region != inference.main() || ours.region != graph.main()) return false;
  if (theirs.kind != ours.kind) return false;
  if (ours.kind == ValueKind::kInput) {
    return ours.type == theirs.type && ours.scale_power == theirs.scale_power;
  }
  return ours.kind == ValueKind::kInitializer && same_tensor(ours.tensor, theirs.tensor);
}

bool any_name_starts(const Graph& graph, const std::string& prefix) {
  for (uint32_t i = 0; i < graph.value_count(); ++i) {
    const Value& value = graph.value(ValueId{i});
    if (value.alive && value.name.starts_with(prefix)) return true;
  }
  return false;
}

/// The serialized TrainingInfoProto.
Text write_step(const Graph& inference, const TrainingStep& step, TensorSink& sink) {
  Naming naming;
  const std::string prefix = name_step(inference, step, naming);
  onnx::GraphProto graph;
  GraphText text;
  write_algorithm(step, naming, prefix, sink, graph, &text);
  Text algorithm = text.finish(graph);
  Text info;
  if (!step.initialization_binding.empty()) {
    write_graph(step.initialization, {}, sink, graph, {}, &text);
    info.take_field(onnx::TrainingInfoProto::kInitializationFieldNumber, text.finish(graph));
  }
  info.take_field(onnx::TrainingInfoProto::kAlgorithmFieldNumber, std::move(algorithm));
  for (const auto& [initializer, output] : step.initialization_binding) {
    const ValueId target = step.graph.find(initializer);
    append_entry(info.tail(), onnx::TrainingInfoProto::kInitializationBindingFieldNumber,
                 target.valid() ? naming.of(step.graph, target) : initializer, output);
  }
  for (const State& state : step.graph.states()) {
    append_entry(info.tail(), onnx::TrainingInfoProto::kUpdateBindingFieldNumber,
                 naming.of(step.graph, state.current), naming.of(step.graph, state.next));
  }
  return info;
}

}  // namespace

std::string name_step(const Graph& inference, const TrainingStep& step, Naming& naming) {
  const Graph& graph = step.graph;
  std::vector<ValueId> clashes;
  for (uint32_t i = 0; i < graph.value_count(); ++i) {
    const Value& value = graph.value(ValueId{i});
    if (!value.alive) continue;
    const ValueId other = inference.find(value.name);
    if (!other.valid()) continue;
    if (can_share(inference, inference.value(other), graph, value)) {
      naming.shared.insert(ValueId{i});
    } else {
      clashes.push_back(ValueId{i});
    }
  }
  if (clashes.empty()) return {};
  std::string prefix = step.name.empty() ? "step/" : step.name + "/";
  while (any_name_starts(graph, prefix) || any_name_starts(inference, prefix)) {
    prefix.insert(0, "_");
  }
  for (ValueId id : clashes) naming.renamed[id] = prefix + graph.value(id).name;
  return prefix;
}

void write_algorithm(const TrainingStep& step, const Naming& naming, const std::string& prefix,
                     TensorSink& sink, onnx::GraphProto& to, GraphText* text) {
  const Graph& graph = step.graph;
  std::vector<ValueId> next_values;
  std::string kinds;
  for (const State& state : graph.states()) {
    next_values.push_back(state.next);
    kinds += (kinds.empty() ? "" : " ") + std::string(state_kind_name(state.kind));
  }
  write_graph(graph, naming, sink, to, next_values, text);
  if (graph.name.empty() && !step.name.empty()) to.set_name(step.name);
  if (!kinds.empty()) add_metadata(to, kKindsKey, kinds);
  add_metadata(to, kOutputsKey, std::to_string(graph.outputs().size()));
  add_metadata(to, kStepKey, step.name);
  if (!prefix.empty()) add_metadata(to, kPrefixKey, prefix);
  std::vector<std::string> inputs;
  bool any_shared = false;
  for (ValueId input : graph.inputs()) {
    inputs.push_back(naming.of(graph, input));
    any_shared = any_shared || naming.shared.contains(input);
  }
  if (any_shared) add_metadata(to, kInputsKey, join_names(inputs));
}

void write_header(const Model& model, onnx::ModelProto& to) {
  to.set_ir_version(ir_version_of(model));
  write_opsets(model, to);
  const bool own = model.producer_name.empty();
  to.set_producer_name(own ? "halfnote" : model.producer_name);
  to.set_producer_version(own ? kVersion : model.producer_version);
  if (!model.domain.empty()) to.set_domain(model.domain);
  if (model.model_version != 0) to.set_model_version(model.model_version);
  if (!model.doc.empty()) to.set_doc_string(model.doc);
  for (const auto& [key, value] : model.metadata) {
    auto* entry = to.add_metadata_props();
    entry->set_key(key);
    entry->set_value(value);
  }
}

Text write_model(const Model& model, TensorSink& sink) {
  onnx::GraphProto rest;
  GraphText text;
  write_graph(model.graph, {}, sink, rest, {}, &text);
  write_states(model.graph, rest);
  Text graph = text.finish(rest);
  // In the order of their numbers, as protobuf would write them: head, graph, what stands between
  // graph and steps, the steps, functions.
  onnx::ModelProto head, middle, functions;
  write_header(model, head);
  for (const Function& function : model.functions) {
    write_function(function, sink, *functions.add_functions());
  }
  middle.mutable_opset_import()->Swap(head.mutable_opset_import());
  middle.mutable_metadata_props()->Swap(head.mutable_metadata_props());
  Text written;
  append_content(written.tail(), head);
  written.take_field(onnx::ModelProto::kGraphFieldNumber, std::move(graph));
  append_content(written.tail(), middle);
  for (const TrainingStep& step : model.training) {
    written.take_field(onnx::ModelProto::kTrainingInfoFieldNumber,
                       write_step(model.graph, step, sink));
  }
  append_content(written.tail(), functions);
  return written;
}

}  // namespace halfnote::proto
