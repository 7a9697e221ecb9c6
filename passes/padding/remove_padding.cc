#include "passes/padding/remove_padding.h"

#include <algorithm>
#include <numeric>

#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"

namespace halfnote {
namespace {

constexpr int64_t kRowStep = 8;  // elements of 16 bits in 16 bytes

int remove_nodes(Graph& graph, const std::vector<NodeId>& nodes) {
  for (NodeId id : nodes) {
    const ValueId result = graph.output(id);
    const ValueId source = graph.input(id, 0);
    const std::string name = graph.value(result).name;
    bool names_output = false;
    for (const Use& use : graph.uses(result)) names_output |= use.kind == UseKind::kRegionOutput;
    graph.replace_uses(result, source);
    graph.remove(id);
    // A graph output keeps its name.
    if (names_output && graph.value(source).kind == ValueKind::kResult) graph.rename(source, name);
  }
  if (nodes.empty()) return 0;
  // Sizes change back: forget those of the results, inference sets them. Symbols never grew.
  for (NodeId id : graph.nodes()) {
    for (ValueId output : graph.outputs(id)) {
      if (!output.valid() || !graph.value(output).type.shape) continue;
      for (Dim& dim : *graph.value(output).type.shape) {
        if (dim.known()) dim = Dim();
      }
    }
  }
  return static_cast<int>(nodes.size());
}

/// The values that padding made larger, those of one region together: all padding of a region goes
/// or stays. Only that of matrix products goes: around convolutions, shapes and groups of channels
/// are padded too.
class PaddedRegions {
 public:
  PaddedRegions(const Graph& graph, const Graph& padded, const Graph& plain)
      : graph_(graph),
        padded_(padded),
        plain_(plain),
        parent_(graph.value_count()),
        of_product_(graph.value_count()),
        gains_(graph.value_count()) {
    std::iota(parent_.begin(), parent_.end(), uint32_t{0});
    for (const NodeId id : graph.nodes()) {
      if (!is_padding(graph.node(id))) join_operands(id);
    }
    for (const NodeId id : graph.nodes()) {
      const OperatorRow* row = find_operator(graph.node(id));
      if (row == nullptr || row->flops == nullptr || is_padding(graph.node(id))) continue;
      for_padded(id, [&](ValueId value) {
        of_product_[root(value)] = true;
        if (gains(id, value)) gains_[root(value)] = true;
      });
    }
  }

  bool is_useless(NodeId marked) {
    const ValueId result = graph_.output(marked), source = graph_.input(marked, 0);
    const uint32_t inside = root(is_padded(result) ? result : source);
    return of_product_[inside] && !gains_[inside];
  }

 private:
  /// Without padding; what padding made is the value behind it.
  std::optional<Shape> plain_shape(ValueId value) const {
    while (value.valid()) {
      const NodeId from = graph_.value(value).producer;
      if (!from.valid() || !is_padding(graph_.node(from))) break;
      value = graph_.input(from, 0);
    }
    return known_shape(plain_, value);
  }
  /// Where a size is not known: it may be.
  bool is_padded(ValueId value) const {
    const auto own = known_shape(padded_, value);
    return !own || own != plain_shape(value);
  }
  template <class Body>
  void for_padded(NodeId id, const Body& body) const {
    for (const ValueId value : graph_.inputs(id)) {
      if (value.valid() && is_padded(value)) body(value);
    }
    for (const ValueId value : graph_.outputs(id)) {
      if (value.valid() && is_padded(value)) body(value);
    }
  }
  void join_operands(NodeId id) {
    ValueId first;
    for_padded(id, [&](ValueId value) {
      if (first.valid()) parent_[root(value)] = root(first);
      first = value;
    });
  }
  uint32_t root(ValueId value) {
    uint32_t at = value.index;
    while (parent_[at] != at) at = parent_[at] = parent_[parent_[at]];
    return at;
  }

  /// Do tensor cores want `value` so, an operand or result of contraction `id`?
  bool gains(NodeId id, ValueId value) const {
    const auto own = plain_shape(value);
    if (!own) return true;  // nobody knows
    if (own->empty() || !is_16bit_float(graph_.value(graph_.input(id, 0)).type.dtype)) return false;
    const Node& node = graph_.node(id);
    const bool product = node.op == "MatMul" || node.op == "Gemm";
    if (!product) return true;
    return own->back() % kRowStep != 0 && !(is_stack(id, 0) && is_stack(id, 1));
  }
  bool is_stack(NodeId id, size_t input) const {
    const auto shape = plain_shape(graph_.input(id, input));
    return shape && shape->size() > 2 && element_count(Shape(shape->begin(), shape->end() - 2)) > 1;
  }

  const Graph& graph_;
  const Graph &padded_, &plain_;  // that graph with its sizes, and with those it had
  std::vector<uint32_t> parent_;
  std::vector<bool> of_product_, gains_;  // by root
};

}  // namespace

bool is_padding(const Node& node) {
  return std::any_of(node.metadata.begin(), node.metadata.end(),
                     [](const auto& entry) { return entry.first == kPaddingMark; });
}

int remove_padding(Graph& graph) {
  std::vector<NodeId> marked;
  for (NodeId id : graph.nodes()) {
    if (is_padding(graph.node(id))) marked.push_back(id);
  }
  return remove_nodes(graph, marked);
}

int remove_useless_padding(Graph& graph, const Graph& padded, const Graph& plain) {
  PaddedRegions regions(graph, padded, plain);
  std::vector<NodeId> useless;
  for (NodeId id : graph.nodes()) {
    if (is_padding(graph.node(id)) && regions.is_useless(id)) useless.push_back(id);
  }
  return remove_nodes(graph, useless);
}

}  // namespace halfnote
