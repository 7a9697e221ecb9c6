// lower_opset: op-set 23 -> an older one, where nothing changes its meaning.
//
//   op-set 23:  y = ReduceMean(x, {2, 3})      ──▶  op-set 17:  y = ReduceMean <axes = [2, 3]> (x)
//
// A node holds the model above an op-set where lift_opset has a rewrite for its op (the op then had
// another meaning or form), where it uses a word of an attribute that came later, and where the
// schema of then does not take its attributes, operands or types. Two forms are rewritten back:
// axes of reductions, and Split into equal parts.
#include "passes/canonical/lower_opset.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "base/error.h"
#include "compiler/onnx/metadata.h"
#include "compiler/onnx/schema.h"
#include "passes/canonical/lift_rules.h"

namespace halfnote {
namespace {

constexpr int64_t kOldest = 13;  // below it optional operands and types differ for most ops

/// A word of an attribute that an op took in after the attribute itself.
struct NewWord {
  std::string_view op, attribute, word;
  int64_t since;
};

constexpr NewWord kNewWords[] = {
    {"Pad", "mode", "wrap", 19},
    {"Resize", "coordinate_transformation_mode", "half_pixel_symmetric", 19},
    {"ScatterElements", "reduction", "max", 18},
    {"ScatterElements", "reduction", "min", 18},
    {"ScatterND", "reduction", "max", 18},
    {"ScatterND", "reduction", "min", 18},
};

bool has_attribute(const SchemaVersion& version, std::string_view name) {
  return std::any_of(version.attributes.begin(), version.attributes.end(),
                     [&](const SchemaAttribute& a) { return a.name == name; });
}

/// The axes of a reduction, which were an attribute before op-set 18; null where they are computed.
const Tensor* fixed_axes(const Graph& graph, NodeId node) {
  const ValueId axes = graph.input(node, 1);
  return axes.valid() ? graph.constant(axes) : nullptr;
}

bool is_reduction(const Node& node) { return node.op.starts_with("Reduce"); }

bool can_restore_axes(const Graph& graph, NodeId node) {
  if (!is_reduction(graph.node(node)) || graph.node(node).op == "ReduceSum") return false;
  if (graph.node(node).attributes.get_int("noop_with_empty_axes", 0) != 0) return false;
  if (!graph.input(node, 1).valid()) return true;
  const Tensor* axes = fixed_axes(graph, node);
  return axes != nullptr && axes->dtype() == DType::kI64 && axes->size() > 0;
}

/// Split into `num_outputs` parts was the default before op-set 18, for sizes that they divide.
bool can_drop_count(const Graph& graph, NodeId node) {
  const Attributes& attributes = graph.node(node).attributes;
  if (graph.node(node).op != "Split") return false;
  if (!attributes.has("num_outputs")) return true;
  const auto& shape = graph.value(graph.input(node, 0)).type.shape;
  if (!shape) return false;
  const auto rank = static_cast<int64_t>(shape->size());
  int64_t axis = attributes.get_int("axis", 0);
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank || !(*shape)[static_cast<size_t>(axis)].known()) return false;
  const auto parts = static_cast<int64_t>(graph.outputs(node).size());
  return (*shape)[static_cast<size_t>(axis)].value % parts == 0;
}

bool can_rewrite(const Graph& graph, NodeId node) {
  return can_restore_axes(graph, node) || can_drop_count(graph, node);
}

void rewrite(Graph& graph, NodeId node) {
  Attributes& attributes = graph.node(node).attributes;
  if (graph.node(node).op == "Split") return attributes.erase("num_outputs");
  attributes.erase("noop_with_empty_axes");
  const Tensor* axes = fixed_axes(graph, node);
  if (axes == nullptr) return;
  std::vector<int64_t> values;
  for (int64_t i = 0; i < axes->size(); ++i) values.push_back(axes->at_as_int(i));
  attributes.set("axes", std::move(values));
  graph.resize_inputs(node, 1);
}

/// Does a rewrite of lift_opset tell that this node meant something else before `changed_in`?
bool changes(const LiftRule& rule, const Graph& graph, NodeId node) {
  const bool windows = graph.node(node).op.ends_with("Pool");  // only those of ceil_mode changed
  if (windows) return graph.node(node).attributes.get_int("ceil_mode", 0) != 0;
  return !(rule.changed_in == 18 && can_rewrite(graph, node));
}

class OldestOpset {
 public:
  OldestOpset(const Graph& graph, int64_t opset) : graph_(graph), opset_(opset) {}

  int64_t run() {
    for (NodeId node : graph_.all_nodes()) {
      if (!graph_.node(node).domain.empty()) return kOpsetVersion;
      raise_to_meaning(node);
      raise_to_schema(node);
    }
    return opset_;
  }

 private:
  void raise_to_meaning(NodeId node) {
    const Node& data = graph_.node(node);
    for (const LiftRule& rule : lift_rules()) {
      if (rule.op != data.op || rule.changed_in > kOpsetVersion) continue;
      if (rule.changed_in > opset_ && changes(rule, graph_, node)) opset_ = rule.changed_in;
    }
    for (const NewWord& word : kNewWords) {
      if (word.op != data.op || word.since <= opset_) continue;
      if (data.attributes.get_string(word.attribute, "") == word.word) opset_ = word.since;
    }
  }

  void raise_to_schema(NodeId node) {
    const int64_t newest = since(graph_.node(node).op);
    while (opset_ < newest && !is_valid(node)) ++opset_;
  }

  bool is_valid(NodeId node) const {
    if (!has_schema("", graph_.node(node).op, opset_)) return false;
    if (opset_ < 18 && can_rewrite(graph_, node)) return true;
    try {
      check_node(graph_, node, opset_);
    } catch (const Error&) {
      return false;
    }
    return true;
  }

  /// The op-set that brought the form of the op that op-set 23 has.
  int64_t since(const std::string& op) {
    const auto [at, first] = since_.emplace(op, 0);
    if (first) {
      const std::optional<SchemaVersion> version = find_schema_version(op, kOpsetVersion);
      at->second = version ? version->since : kOpsetVersion;
    }
    return at->second;
  }

  const Graph& graph_;
  int64_t opset_;
  std::map<std::string, int64_t> since_;  // by op: when op-set 23's form came
};

/// Takes out attributes that say what was so before there was the attribute.
void drop_new_defaults(Graph& graph, int64_t opset) {
  std::map<std::string, std::optional<SchemaVersion>> versions;  // by op
  for (NodeId id : graph.all_nodes()) {
    Node& node = graph.node(id);
    if (node.attributes.empty() || !node.domain.empty()) continue;
    const auto [at, first] = versions.emplace(node.op, std::nullopt);
    if (first) at->second = find_schema_version(node.op, opset);
    if (!at->second) continue;
    std::vector<std::string> gone;
    for (const auto& [name, value] : node.attributes) {
      if (has_attribute(*at->second, name)) continue;
      const Attributes defaults = default_attributes("", node.op);
      const Attribute* usual = defaults.find(name);
      if (usual != nullptr && equal(*usual, value)) gone.push_back(name);
    }
    for (const std::string& name : gone) node.attributes.erase(name);
  }
}

}  // namespace

int64_t lower_opset(Model& model, int64_t wanted) {
  const int64_t from = std::clamp(wanted, kOldest, kOpsetVersion);
  drop_new_defaults(model.graph, from);
  const int64_t opset = OldestOpset(model.graph, from).run();
  if (opset < 18) {
    for (NodeId node : model.graph.all_nodes()) {
      if (can_rewrite(model.graph, node)) rewrite(model.graph, node);
    }
  }
  model.opsets[""] = opset;
  return opset;
}

void note_source_opset(Model& model) {
  const auto opset = model.opsets.find("");
  if (opset == model.opsets.end() || opset->second == kOpsetVersion) return;
  model.metadata[std::string(kOpsetKey)] = std::to_string(opset->second);
}

int64_t source_opset(const Model& model) {
  const auto found = model.metadata.find(std::string(kOpsetKey));
  if (found == model.metadata.end()) return kOpsetVersion;
  const std::string& text = found->second;
  int64_t opset = kOpsetVersion;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), opset);
  return error == std::errc() && end == text.data() + text.size() ? opset : kOpsetVersion;
}

}  // namespace halfnote
