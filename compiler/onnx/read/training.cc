// A step is read from a GraphProto that joins the algorithm with the part of the inference graph it
// reads: found by walking backwards from the names that the algorithm uses but does not define.
#include "compiler/onnx/read/training.h"

#include <google/protobuf/arena.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "compiler/onnx/metadata.h"
#include "compiler/onnx/proto/failure.h"
#include "compiler/onnx/read/graph.h"
#include "compiler/onnx/read/order.h"

namespace halfnote::proto {
namespace {

using NameSet = std::unordered_set<std::string_view>;  // of names in the model

std::optional<std::string> metadata_of(const onnx::GraphProto& graph, std::string_view key) {
  for (const auto& entry : graph.metadata_props()) {
    if (entry.key() == key) return entry.value();
  }
  return std::nullopt;
}

/// Joins one algorithm with what it needs of the inference graph.
class Joiner {
 public:
  Joiner(const onnx::ModelProto& model, const Model& read)
      : inference_(model.graph()), model_(read) {
    for (const auto& input : inference_.input()) inputs_.emplace(input.name(), &input);
    for (const auto& node : inference_.node()) {
      for (const auto& output : node.output()) {
        if (!output.empty()) producers_.emplace(output, &node);
      }
    }
  }

  /// Names that the bindings mention count as read. The result is on the arena; what it holds stays
  /// that of the model.
  onnx::GraphProto& join(const onnx::TrainingInfoProto& info, SharedInitializers& shared,
                         google::protobuf::Arena& arena) const;

 private:
  NameSet defined_in(const onnx::GraphProto& algorithm) const;
  bool is_main_initializer(ValueId id) const {
    const Value& value = model_.graph.value(id);
    return value.kind == ValueKind::kInitializer && value.region == model_.graph.main();
  }

  const onnx::GraphProto& inference_;
  const Model& model_;
  std::unordered_map<std::string_view, const onnx::ValueInfoProto*> inputs_;
  std::unordered_map<std::string_view, const onnx::NodeProto*> producers_;
};

NameSet Joiner::defined_in(const onnx::GraphProto& algorithm) const {
  NameSet names;
  names.reserve(static_cast<size_t>(algorithm.node_size()));
  for (const auto& input : algorithm.input()) names.insert(input.name());
  for (const auto& tensor : algorithm.initializer()) names.insert(tensor.name());
  for (const auto& tensor : algorithm.sparse_initializer()) names.insert(tensor.values().name());
  for (const auto& node : algorithm.node()) {
    for (const auto& output : node.output()) {
      if (!output.empty()) names.insert(output);
    }
  }
  return names;
}

/// Names in the metadata of an algorithm.
std::vector<std::string> noted_names(const onnx::GraphProto& algorithm) {
  std::vector<std::string> noted;
  for (std::string_view key : {kTrainableKey, kInputsKey}) {
    for (std::string& name : split_names(metadata_of(algorithm, key).value_or(""))) {
      noted.push_back(std::move(name));
    }
  }
  return noted;
}

/// What the algorithm reads, and what the bindings and its metadata name.
std::vector<std::string_view> wanted_names(const onnx::TrainingInfoProto& info,
                                           const std::vector<std::string>& noted) {
  const onnx::GraphProto& algorithm = info.algorithm();
  std::vector<std::string_view> wanted;
  for (const auto& node : algorithm.node()) add_read_names(node, wanted);
  for (const auto& output : algorithm.output()) wanted.push_back(output.name());
  for (const auto& binding : info.update_binding()) {
    wanted.push_back(binding.key());
    wanted.push_back(binding.value());
  }
  for (const auto& binding : info.initialization_binding()) wanted.push_back(binding.key());
  wanted.insert(wanted.end(), noted.begin(), noted.end());
  return wanted;
}

/// A message on an arena does not own the elements that are given to it so: a hundred thousand
/// nodes are neither copied nor freed. They are only read there.
template <class Element>
void lend(const Element& element, google::protobuf::RepeatedPtrField<Element>& to) {
  to.UnsafeArenaAddAllocated(const_cast<Element*>(&element));
}
template <class Element>
void lend(const google::protobuf::RepeatedPtrField<Element>& elements,
          google::protobuf::RepeatedPtrField<Element>& to) {
  to.Reserve(to.size() + elements.size());
  for (const Element& element : elements) lend(element, to);
}

/// Adds all that `read_graph` reads.
void lend_graph(const onnx::GraphProto& graph, onnx::GraphProto& to) {
  to.set_name(graph.name());
  to.set_doc_string(graph.doc_string());
  lend(graph.node(), *to.mutable_node());
  lend(graph.initializer(), *to.mutable_initializer());
  lend(graph.sparse_initializer(), *to.mutable_sparse_initializer());
  lend(graph.input(), *to.mutable_input());
  lend(graph.output(), *to.mutable_output());
  lend(graph.value_info(), *to.mutable_value_info());
  lend(graph.metadata_props(), *to.mutable_metadata_props());
}

onnx::GraphProto& Joiner::join(const onnx::TrainingInfoProto& info, SharedInitializers& shared,
                               google::protobuf::Arena& arena) const {
  const onnx::GraphProto& algorithm = info.algorithm();
  NameSet done = defined_in(algorithm);
  for (std::string_view name : done) {
    const ValueId other = model_.graph.find(name);
    if (!other.valid() || model_.graph.value(other).region != model_.graph.main()) continue;
    throw Error(ErrorCode::kModel,
                "the algorithm defines \"" + std::string(name) + "\", as graph does")
        .hint("graph and algorithm run as one graph: their names must differ");
  }
  const std::vector<std::string> noted = noted_names(algorithm);
  std::vector<std::string_view> wanted = wanted_names(info, noted);
  std::unordered_set<const onnx::NodeProto*> nodes;
  NameSet inputs, tensors;
  while (!wanted.empty()) {
    const std::string_view name = wanted.back();
    wanted.pop_back();
    if (!done.insert(name).second) continue;
    const ValueId known = model_.graph.find(name);
    if (known.valid() && is_main_initializer(known)) {
      tensors.insert(name);
    } else if (inputs_.contains(name)) {
      inputs.insert(name);
    } else if (const auto found = producers_.find(name); found != producers_.end()) {
      nodes.insert(found->second);
      add_read_names(*found->second, wanted);
    }
  }

  auto& joined = *google::protobuf::Arena::CreateMessage<onnx::GraphProto>(&arena);
  for (ValueId id : model_.graph.initializers()) {
    const Value& value = model_.graph.value(id);
    if (tensors.contains(value.name)) shared.emplace_back(value.name, value.tensor);
  }
  for (const auto& input : inference_.input()) {
    if (inputs.contains(input.name())) lend(input, *joined.mutable_input());
  }
  for (const auto& node : inference_.node()) {
    if (nodes.contains(&node)) lend(node, *joined.mutable_node());
  }
  if (!nodes.empty()) {
    lend(inference_.value_info(), *joined.mutable_value_info());
    lend(inference_.output(), *joined.mutable_value_info());
  }
  lend_graph(algorithm, joined);
  return joined;
}

/// Puts the inputs in the order that the exporter noted.
void order_inputs(const onnx::GraphProto& algorithm, onnx::GraphProto& joined) {
  const auto order = metadata_of(algorithm, kInputsKey);
  if (!order) return;
  std::unordered_map<std::string, size_t> rank;
  for (std::string& name : split_names(*order)) rank.emplace(std::move(name), rank.size());
  const auto rank_of = [&](const onnx::ValueInfoProto* input) {
    const auto found = rank.find(input->name());
    return found == rank.end() ? rank.size() : found->second;
  };
  auto& inputs = *joined.mutable_input();
  std::stable_sort(inputs.pointer_begin(), inputs.pointer_end(),
                   [&](const auto* a, const auto* b) { return rank_of(a) < rank_of(b); });
}

ValueId find_bound(const Graph& graph, const std::string& name, const char* binding) {
  const ValueId id = graph.find(name);
  if (id.valid() && graph.value(id).region == graph.main()) return id;
  throw Error(ErrorCode::kModel, std::string(binding) + " names \"" + name +
                                     "\", which neither graph nor algorithm defines");
}

/// What a state is when the file does not say: told by its type and by whether inference needs it.
StateKind guess_kind(const Value& value, bool in_inference) {
  if (is_integer(value.type.dtype)) return StateKind::kCounter;
  return in_inference ? StateKind::kWeight : StateKind::kMoment;
}

void read_states(const onnx::TrainingInfoProto& info, const Model& model, Graph& graph) {
  std::vector<StateKind> kinds;
  const auto words = metadata_of(info.algorithm(), kKindsKey);
  std::istringstream stream(words.value_or(""));
  for (std::string word; stream >> word;) {
    const auto kind = state_kind_from_name(word);
    if (!kind) throw Error(ErrorCode::kModel, "bad state kind \"" + word + "\" in the metadata");
    kinds.push_back(*kind);
  }
  if (words && static_cast<int>(kinds.size()) != info.update_binding_size()) {
    throw Error(ErrorCode::kModel, "the metadata gives the wrong number of state kinds")
        .expected(std::to_string(info.update_binding_size()), std::to_string(kinds.size()));
  }
  int index = 0;
  for (const auto& binding : info.update_binding()) {
    const ValueId current = find_bound(graph, binding.key(), "update_binding");
    const ValueId next = find_bound(graph, binding.value(), "update_binding");
    Value& value = graph.value(current);
    if (value.kind != ValueKind::kInitializer) {
      throw Error(ErrorCode::kModel, "update_binding assigns to \"" + binding.key() + "\"")
          .expected("an initializer", value.kind == ValueKind::kInput ? "an input" : "a result");
    }
    if (graph.state_of(current)) {
      throw Error(ErrorCode::kModel, "update_binding assigns to \"" + binding.key() + "\" twice");
    }
    const bool inferred = model.graph.find(binding.key()).valid();
    const StateKind kind = words ? kinds[static_cast<size_t>(index)] : guess_kind(value, inferred);
    if (!words && kind == StateKind::kWeight) value.trainable = true;
    graph.add_state(current, next, kind);
    ++index;
  }
}

/// Takes back what the exporter did to keep names apart.
void strip_prefix(const onnx::GraphProto& algorithm, Graph& graph) {
  const auto prefix = metadata_of(algorithm, kPrefixKey);
  if (!prefix || prefix->empty()) return;
  for (uint32_t i = 0; i < graph.value_count(); ++i) {
    const Value& value = graph.value(ValueId{i});
    if (!value.alive || !value.name.starts_with(*prefix)) continue;
    graph.rename(ValueId{i}, graph.unique_name(value.name.substr(prefix->size())));
  }
}

/// Outputs behind the first `count` are there only because ONNX wants new states to be outputs.
void trim_outputs(const onnx::GraphProto& algorithm, Graph& graph) {
  const auto text = metadata_of(algorithm, kOutputsKey);
  if (!text) return;
  size_t count = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), count);
  const auto outputs = graph.outputs();
  if (error != std::errc{} || end != text->data() + text->size() || count > outputs.size()) {
    throw Error(ErrorCode::kModel, "bad number of outputs in the metadata: \"" + *text + "\"");
  }
  graph.set_outputs(graph.main(),
                    {outputs.begin(), outputs.begin() + static_cast<ptrdiff_t>(count)});
}

/// Returns the initializers that the bindings assign to.
std::vector<ValueId> read_initialization(const onnx::TrainingInfoProto& info, TensorSource& source,
                                         TrainingStep& step) {
  read_graph(info.initialization(), source, step.initialization);
  if (!step.initialization.inputs().empty()) {
    throw Error(ErrorCode::kModel, "the initialization graph may not have inputs");
  }
  std::vector<ValueId> targets;
  for (const auto& binding : info.initialization_binding()) {
    const ValueId target = find_bound(step.graph, binding.key(), "initialization_binding");
    if (step.graph.value(target).kind != ValueKind::kInitializer) {
      throw Error(ErrorCode::kModel, "initialization_binding assigns to \"" + binding.key() + "\"")
          .expected("an initializer", "a computed value or an input");
    }
    find_bound(step.initialization, binding.value(), "initialization_binding");
    targets.push_back(target);
  }
  return targets;
}

}  // namespace

void read_training(const onnx::ModelProto& proto, TensorSource& source, Model& model) {
  if (proto.training_info_size() == 0) return;
  const Joiner joiner(proto, model);
  model.training.reserve(static_cast<size_t>(proto.training_info_size()));
  for (const auto& info : proto.training_info()) {
    TrainingStep step;
    step.name = metadata_of(info.algorithm(), kStepKey).value_or("");
    if (step.name.empty()) step.name = info.algorithm().name();
    if (step.name.empty()) step.name = "step";
    try {
      SharedInitializers shared;
      google::protobuf::Arena arena;
      onnx::GraphProto& joined = joiner.join(info, shared, arena);
      order_inputs(info.algorithm(), joined);
      read_graph(joined, source, step.graph, shared);
      read_states(info, model, step.graph);
      trim_outputs(info.algorithm(), step.graph);
      const std::vector<ValueId> targets = read_initialization(info, source, step);
      strip_prefix(info.algorithm(), step.graph);
      for (size_t i = 0; i < targets.size(); ++i) {
        step.initialization_binding.emplace_back(
            step.graph.value(targets[i]).name,
            info.initialization_binding(static_cast<int>(i)).value());
      }
    } catch (Error& error) {
      throw in_context(error, "training step \"" + step.name + "\"");
    }
    model.training.push_back(std::move(step));
  }
}

}  // namespace halfnote::proto
