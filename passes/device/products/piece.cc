#include "passes/device/products/piece.h"

#include <algorithm>
#include <map>
#include <set>

namespace halfnote {
namespace {

class PieceMaker {
 public:
  PieceMaker(const Graph& graph, const std::vector<NodeId>& nodes)
      : graph_(graph), inside_(nodes.begin(), nodes.end()) {}

  Graph make(const std::vector<NodeId>& nodes, const std::vector<std::string>& inputs,
             const std::vector<std::string>& outputs) {
    for (const std::string& name : inputs) add_input(graph_.find(name));
    for (const NodeId node : nodes) add_node(node);
    if (!outputs.empty()) {
      for (const std::string& name : outputs)
        piece_.add_output(piece_.main(), to_.at(graph_.find(name)));
      return std::move(piece_);
    }
    for (const NodeId node : nodes) {
      for (const ValueId output : graph_.outputs(node)) {
        if (output.valid() && is_read_outside(output))
          piece_.add_output(piece_.main(), to_.at(output));
      }
    }
    return std::move(piece_);
  }

 private:
  bool is_read_outside(ValueId value) const {
    return std::ranges::any_of(graph_.uses(value), [&](const Use& use) {
      return !use.by_node() || !inside_.contains(use.node());
    });
  }

  ValueId add_input(ValueId value) {
    const Value& from = graph_.value(value);
    const ValueId made = piece_.add_input(piece_.main(), from.name, from.type);
    to_[value] = made;
    return made;
  }

  ValueId operand(ValueId value) {
    if (!value.valid()) return {};
    const auto known = to_.find(value);
    if (known != to_.end()) return known->second;
    const Value& from = graph_.value(value);
    if (from.kind != ValueKind::kInitializer || graph_.state_of(value) || from.trainable)
      return add_input(value);
    const ValueId made = piece_.add_initializer(from.name, from.tensor);
    to_[value] = made;
    return made;
  }

  void add_node(NodeId id) {
    const Node& node = graph_.node(id);
    NodeSpec spec{node.op, {}, node.attributes, node.domain, node.name};
    for (const ValueId input : graph_.inputs(id)) spec.inputs.push_back(operand(input));
    std::vector<std::string> names;
    for (const ValueId output : graph_.outputs(id))
      names.push_back(output.valid() ? graph_.value(output).name : "-");
    const NodeId made = piece_.create(std::move(spec), names, piece_.end());
    const auto outputs = graph_.outputs(id);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].valid()) continue;
      to_[outputs[i]] = piece_.output(made, i);
      piece_.value(piece_.output(made, i)).type = graph_.value(outputs[i]).type;
    }
  }

  const Graph& graph_;
  std::set<NodeId> inside_;
  Graph piece_;
  std::map<ValueId, ValueId> to_;
};

}  // namespace

Graph piece_of(const Graph& graph, const std::vector<NodeId>& nodes,
               const std::vector<std::string>& inputs, const std::vector<std::string>& outputs) {
  return PieceMaker(graph, nodes).make(nodes, inputs, outputs);
}

std::vector<std::string> names_of(const Graph& graph, std::span<const ValueId> values) {
  std::vector<std::string> names;
  for (const ValueId value : values) names.push_back(graph.value(value).name);
  return names;
}

}  // namespace halfnote
