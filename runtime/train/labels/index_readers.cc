#include "runtime/train/labels/index_readers.h"

#include <algorithm>
#include <array>

#include "runtime/train/labels/classification.h"

namespace halfnote {
namespace {

/// Where an operator of ONNX has its indices, and the axis that they point into by a default.
struct IndexOperand {
  std::string_view op;
  size_t operand = 1;
  bool along_axis = false;  // into the dim `axis` of operand 0
};

constexpr std::array<IndexOperand, 10> kOperands = {{{"Gather", 1, true},
                                                     {"GatherElements", 1, true},
                                                     {"GatherND", 1},
                                                     {"ScatterElements", 1, true},
                                                     {"ScatterND", 1},
                                                     {"ReverseSequence", 1},
                                                     {"RoiAlign", 2},
                                                     {"LSTM", 4},
                                                     {"GRU", 4},
                                                     {"RNN", 4}}};

/// The dim of a value; none where it is not known.
std::optional<int64_t> dim_of(const Graph& graph, ValueId value, int64_t axis) {
  if (!value.valid() || !graph.value(value).type.shape) return std::nullopt;
  const SymbolicShape& shape = *graph.value(value).type.shape;
  const auto rank = static_cast<int64_t>(shape.size());
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank || !shape[static_cast<size_t>(axis)].known()) return std::nullopt;
  return shape[static_cast<size_t>(axis)].value;
}

IndexReader read_by_loss(const Graph& graph, NodeId id) {
  const Attributes& attributes = graph.node(id).attributes;
  IndexReader reader{id, graph.input(id, 1), true, dim_of(graph, graph.input(id, 0), 1), {}};
  if (attributes.has("ignore_index")) reader.ignore_index = attributes.get_int("ignore_index", 0);
  return reader;
}

}  // namespace

std::vector<IndexReader> find_index_readers(const Graph& graph) {
  std::vector<IndexReader> all;
  for (const NodeId id : graph.all_nodes()) {
    const Node& node = graph.node(id);
    if (is_loss(node)) {
      all.push_back(read_by_loss(graph, id));
      continue;
    }
    const auto found = std::ranges::find(kOperands, std::string_view(node.op), &IndexOperand::op);
    if (!node.domain.empty() || found == kOperands.end()) continue;
    const ValueId indices = graph.input(id, found->operand);
    if (!indices.valid()) continue;
    IndexReader reader{id, indices};
    const int64_t axis = node.attributes.get_int("axis", 0);
    if (found->along_axis) reader.size = dim_of(graph, graph.input(id, 0), axis);
    all.push_back(reader);
  }
  return all;
}

}  // namespace halfnote
