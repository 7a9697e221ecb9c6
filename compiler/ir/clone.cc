// Copies of nodes and regions, within a graph or from one to another.
//
// The source may be the target, which grows while it is read: lists of nodes and values are copied
// before they are walked.
#include "base/error.h"
#include "compiler/ir/constant_form.h"
#include "compiler/ir/walk.h"

namespace halfnote {
namespace {

class Cloner {
 public:
  Cloner(Graph& to, const Graph& from, ValueMap& values, const CloneOptions& options)
      : to_(to), from_(from), values_(values), options_(options) {}

  void copy_nodes(InsertPoint at, std::span<const NodeId> nodes) {
    for (NodeId node : nodes) copy_node(at, node);
  }

  ValueId mapped(ValueId id) {
    if (!id.valid()) return id;
    const auto found = values_.find(id);
    if (found != values_.end()) return found->second;
    if (&to_ == &from_) return id;
    const Value& value = from_.value(id);
    if (value.kind == ValueKind::kInitializer) return copy_initializer(to_.main(), id);
    throw Error(ErrorCode::kInternal, "a copied node reads a value that has no counterpart")
        .expected("an entry for \"" + value.name + "\"", "none");
  }

  RegionId copy_region(RegionId parent, RegionId region) {
    const RegionId copy = to_.add_region(parent);
    const std::string name = from_.region_name(region);
    to_.region_name(copy) = name;
    for (ValueId input : std::vector(from_.inputs(region).begin(), from_.inputs(region).end())) {
      const Value original = from_.value(input);
      const ValueId result = to_.add_input(copy, named(original.name), original.type);
      to_.value(result).scale_power = original.scale_power;
      values_[input] = result;
    }
    for (ValueId initializer : from_.initializers(region)) copy_initializer(copy, initializer);
    copy_nodes(to_.end(copy), from_.nodes(region));
    std::vector<ValueId> outputs;
    for (ValueId output : std::vector(from_.outputs(region).begin(), from_.outputs(region).end())) {
      outputs.push_back(mapped(output));
    }
    to_.set_outputs(copy, std::move(outputs));
    return copy;
  }

 private:
  std::string named(std::string_view name) const {
    return options_.prefix + std::string(without_front(name, options_.replaced));
  }

  ValueId copy_initializer(RegionId region, ValueId id) {
    const Value original = from_.value(id);
    const ValueId copy = to_.add_initializer(region, named(original.name), original.tensor);
    to_.value(copy).trainable = original.trainable;
    to_.value(copy).frozen = original.frozen;
    to_.value(copy).made = original.made;
    to_.value(copy).scale_power = original.scale_power;
    values_[id] = copy;
    return copy;
  }

  /// The attributes of a copy that stands in `region`.
  Attributes copy_attributes(const Attributes& attributes, RegionId region) {
    Attributes copy;
    for (const auto& [name, attribute] : attributes) {
      if (const auto* body = std::get_if<RegionId>(&attribute)) {
        copy.set(name, copy_region(region, *body));
        continue;
      }
      if (const auto* bodies = std::get_if<std::vector<RegionId>>(&attribute)) {
        std::vector<RegionId> copies;
        for (RegionId body : *bodies) copies.push_back(copy_region(region, body));
        copy.set(name, std::move(copies));
        continue;
      }
      const auto* reference = std::get_if<AttributeReference>(&attribute);
      if (reference == nullptr || !options_.resolve) {
        copy.set(name, attribute);
        continue;
      }
      if (auto value = options_.resolve(*reference)) copy.set(name, std::move(*value));
    }
    return copy;
  }

  void copy_node(InsertPoint at, NodeId id) {
    const Node& original = from_.node(id);  // stays where it is while nodes are added
    NodeSpec spec;
    spec.op = original.op;
    spec.domain = original.domain;
    spec.name = original.name.empty() ? "" : named(original.name);
    spec.attributes = copy_attributes(original.attributes, at.region);
    const bool resolved = options_.resolve && spec.op == "Constant" && spec.domain.empty();
    if (resolved) normalize_constant(spec.attributes);
    for (ValueId input : from_.inputs(id)) spec.inputs.push_back(mapped(input));
    const NodeId copy = to_.create(std::move(spec), std::vector<std::string>{}, at);
    Node& node = to_.node(copy);
    node.overload = original.overload;
    node.role = options_.role.value_or(original.role);
    node.precision = original.precision;
    node.origin = options_.origin.value_or(original.origin);
    node.metadata = original.metadata;
    for (size_t i = 0; i < from_.outputs(id).size(); ++i) {
      const ValueId output = from_.output(id, i);
      if (!output.valid()) continue;
      const ValueId result = to_.add_node_output(copy, i, named(from_.value(output).name));
      to_.value(result).type = from_.value(output).type;
      to_.value(result).scale_power = from_.value(output).scale_power;
      values_[output] = result;
    }
  }

  Graph& to_;
  const Graph& from_;
  ValueMap& values_;
  const CloneOptions& options_;
};

}  // namespace

void clone_nodes(Graph& to, InsertPoint at, const Graph& from, std::span<const NodeId> nodes,
                 ValueMap& values, const CloneOptions& options) {
  Cloner(to, from, values, options).copy_nodes(at, nodes);
}

std::vector<ValueId> clone_into(Graph& to, InsertPoint at, const Graph& from, ValueMap& values,
                                const CloneOptions& options) {
  Cloner cloner(to, from, values, options);
  cloner.copy_nodes(at, from.nodes());
  std::vector<ValueId> outputs;
  for (ValueId output : std::vector(from.outputs().begin(), from.outputs().end())) {
    outputs.push_back(cloner.mapped(output));
  }
  return outputs;
}

RegionId clone_region(Graph& to, RegionId parent, const Graph& from, RegionId region,
                      ValueMap& values, const CloneOptions& options) {
  return Cloner(to, from, values, options).copy_region(parent, region);
}

}  // namespace halfnote
