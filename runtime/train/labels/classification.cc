#include "runtime/train/labels/classification.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "compiler/ir/builder.h"
#include "compiler/ir/query.h"
#include "passes/canonical/infer_shapes.h"
#include "runtime/core/evaluate.h"

namespace halfnote {
namespace {

constexpr std::array<std::string_view, 2> kLosses = {"SoftmaxCrossEntropyLoss",
                                                     "NegativeLogLikelihoodLoss"};
constexpr std::array<std::string_view, 4> kKeepOrder = {"Cast", "Identity", "Reshape", "Flatten"};
constexpr std::array<std::string_view, 2> kDropOnes = {"Squeeze", "Unsqueeze"};

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

/// The one loss node of the graph; invalid if there is none, or more.
NodeId find_loss(const Graph& graph) {
  NodeId found;
  for (const NodeId id : graph.nodes()) {
    if (!is_loss(graph.node(id))) continue;
    if (found.valid()) return {};
    found = id;
  }
  return found;
}

/// Is the graph's loss nothing but the result of this node?
bool is_whole_loss(const Graph& graph, NodeId loss) {
  ValueId value = graph.outputs().front();
  while (true) {
    const NodeId from = graph.value(value).producer;
    if (!from.valid()) return false;
    if (from == loss) return value == graph.output(loss, 0);
    if (!keeps_order(graph.node(from))) return false;
    value = graph.input(from, 0);
  }
}

std::optional<size_t> output_of(const Graph& graph, ValueId value) {
  const auto outputs = graph.outputs();
  const ValueId plain = before_casts(graph, value);
  for (size_t i = 1; i < outputs.size(); ++i) {
    if (before_casts(graph, outputs[i]) == plain) return i;
  }
  return std::nullopt;
}

bool is_transpose(const Node& node) { return node.domain.empty() && node.op == "Transpose"; }

void note_move(const Node& node, Classification& kind) {
  kind.class_last |= is_transpose(node) || (node.domain.empty() && node.op == "Reshape");
}

constexpr int kMostMoves = 32;

/// An output that a value becomes by nodes that move numbers, and by one Softmax.
bool find_scores_after(const Graph& graph, ValueId value, Classification& kind,
                       int moves = kMostMoves) {
  if (moves == 0) return false;
  for (const Use& use : graph.uses(value)) {
    if (!use.by_node()) continue;
    const Node& node = graph.node(use.node());
    const bool softmax = node.domain.empty() && node.op == "Softmax";
    if (!(softmax && !kind.probabilities) && !keeps_order(node) && !is_transpose(node)) continue;
    Classification found = kind;
    found.probabilities |= softmax;
    note_move(node, found);
    const ValueId result = graph.output(use.node());
    const auto index = output_of(graph, result);
    if (index && found.probabilities) {
      found.output = *index;
      found.scores = graph.value(graph.outputs()[*index]).name;
    } else if (index || !find_scores_after(graph, result, found, moves - 1)) {
      continue;
    }
    kind = found;
    return true;
  }
  return false;
}

/// Follows the scores back to an output, noting whether they were transposed or flattened; or on
/// from the way to one, where the loss holds the Softmax in which the graph ends.
bool find_scores(const Graph& graph, ValueId value, Classification& kind) {
  const Classification start = kind;
  std::vector<std::pair<ValueId, Classification>> way;
  while (value.valid()) {
    if (const auto index = output_of(graph, value)) {
      kind.output = *index;
      kind.scores = graph.value(graph.outputs()[*index]).name;
      return true;
    }
    way.emplace_back(value, kind);
    const NodeId from = graph.value(value).producer;
    if (!from.valid()) break;
    const Node& node = graph.node(from);
    const bool monotone = node.domain.empty() && node.op == "LogSoftmax";
    if (!keeps_order(node) && !is_transpose(node) && !monotone) break;
    note_move(node, kind);
    value = graph.input(from, 0);
  }
  for (auto& [at, found] : way) {
    if (!find_scores_after(graph, at, found)) continue;
    kind = found;
    return true;
  }
  kind = start;
  return false;
}

bool find_labels(const Graph& graph, ValueId value, Classification& kind) {
  while (value.valid()) {
    if (graph.value(value).kind == ValueKind::kInput) {
      kind.labels = graph.value(value).name;
      return is_integer(graph.value(value).type.dtype);
    }
    const NodeId from = graph.value(value).producer;
    if (!from.valid() || !keeps_order(graph.node(from))) return false;
    value = graph.input(from, 0);
  }
  return false;
}

bool is_slice(const Node& node) { return node.domain.empty() && node.op == "Slice"; }

/// The nodes that make a value of another one by moving its elements or taking some of them, the
/// first one first; `value` becomes that other one.
std::vector<NodeId> way_to(const Graph& graph, ValueId& value) {
  std::vector<NodeId> way;
  while (value.valid()) {
    const NodeId from = graph.value(value).producer;
    if (!from.valid()) break;
    const Node& node = graph.node(from);
    if (!keeps_order(node) && !is_transpose(node) && !is_slice(node)) break;
    way.insert(way.begin(), from);
    value = graph.input(from, 0);
  }
  return way;
}

/// These nodes as a graph of their own, as far as the last one that takes elements away; nothing
/// where an operand of theirs is computed.
std::optional<Graph> part_of(const Graph& graph, ValueId input, std::vector<NodeId> way) {
  while (!way.empty() && !is_slice(graph.node(way.back()))) way.pop_back();
  Graph part;
  ValueId last = part.add_input(part.main(), "labels", graph.value(input).type);
  for (const NodeId id : way) {
    const Node& node = graph.node(id);
    std::vector<ValueId> operands = {last};
    for (size_t i = 1; i < graph.inputs(id).size(); ++i) {
      const ValueId operand = graph.input(id, i);
      const Tensor* constant = operand.valid() ? graph.constant(operand) : nullptr;
      if (operand.valid() && constant == nullptr) return std::nullopt;
      operands.push_back(constant == nullptr
                             ? ValueId{}
                             : part.add_initializer(part.unique_name("constant"), *constant));
    }
    const NodeSpec spec{node.op, std::move(operands), node.attributes, node.domain, {}};
    last = part.output(part.create(spec, 1, part.end()));
  }
  part.add_output(part.main(), last);
  return part;
}

}  // namespace

bool keeps_order(const Node& node) {
  return node.domain.empty() && (contains(kKeepOrder, node.op) || contains(kDropOnes, node.op));
}

bool is_loss(const Node& node) { return node.domain.empty() && contains(kLosses, node.op); }

std::optional<Classification> find_classification(const Graph& graph) {
  const NodeId loss = graph.outputs().empty() ? NodeId{} : find_loss(graph);
  if (!loss.valid()) return std::nullopt;
  const Attributes& attributes = graph.node(loss).attributes;
  Classification kind;
  if (attributes.has("ignore_index")) kind.ignore_index = attributes.get_int("ignore_index", 0);
  kind.plain_mean = attributes.get_string("reduction", "mean") == "mean" &&
                    !graph.input(loss, 2).valid() && is_whole_loss(graph, loss);
  const bool found = find_scores(graph, graph.input(loss, 0), kind) &&
                     find_labels(graph, graph.input(loss, 1), kind);
  return found ? std::optional(kind) : std::nullopt;
}

std::vector<CountedLabels> find_counted_labels(const Graph& graph) {
  std::vector<CountedLabels> found;
  for (const NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    if (!is_loss(node) || !node.attributes.has("ignore_index")) continue;
    if (node.attributes.get_string("reduction", "mean") != "mean") continue;
    ValueId labels = graph.input(id, 1);
    const std::vector<NodeId> way = way_to(graph, labels);
    if (!labels.valid() || graph.value(labels).kind != ValueKind::kInput) continue;
    if (!is_integer(graph.value(labels).type.dtype)) continue;
    std::optional<Graph> part = part_of(graph, labels, way);
    if (!part) continue;
    found.push_back({graph.value(labels).name, std::move(*part),
                     node.attributes.get_int("ignore_index", 0), 0});
  }
  return found;
}

int64_t count_labels(const CountedLabels& labels, const Tensor& fed) {
  const Tensor read = evaluate(labels.part, {fed})[0];
  int64_t count = 0;
  for (int64_t i = 0; i < read.size(); ++i)
    count += read.at_as_int(i) != labels.ignore_index ? 1 : 0;
  return count;
}

}  // namespace halfnote
