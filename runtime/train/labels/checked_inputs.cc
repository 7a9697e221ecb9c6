#include "runtime/train/labels/checked_inputs.h"

#include <algorithm>

#include "base/error.h"
#include "runtime/train/labels/classification.h"

namespace halfnote {
namespace {

/// Does a node leave each number what it is? A Cast to fewer bits need not.
bool keeps_numbers(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.op != "Cast") return keeps_order(node);
  const DType from = graph.value(graph.input(id, 0)).type.dtype;
  const DType to = graph.value(graph.output(id)).type.dtype;
  return keeps_order(node) && (to == from || size_of(to) > size_of(from));
}

/// The graph's input that a value has its elements from, all of them; none if they are computed.
std::optional<size_t> input_behind(const Graph& graph, ValueId value) {
  while (value.valid()) {
    if (!is_integer(graph.value(value).type.dtype)) return std::nullopt;
    const auto inputs = graph.inputs();
    const auto found = std::ranges::find(inputs, value);
    if (found != inputs.end()) return static_cast<size_t>(found - inputs.begin());
    const NodeId from = graph.value(value).producer;
    if (!from.valid() || !keeps_numbers(graph, from)) return std::nullopt;
    value = graph.input(from, 0);
  }
  return std::nullopt;
}

/// The dim of a value; none where it is not known.
std::optional<int64_t> dim_of(const Graph& graph, ValueId value, int64_t axis) {
  if (!value.valid() || !graph.value(value).type.shape) return std::nullopt;
  const SymbolicShape& shape = *graph.value(value).type.shape;
  const auto rank = static_cast<int64_t>(shape.size());
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank || !shape[static_cast<size_t>(axis)].known()) return std::nullopt;
  return shape[static_cast<size_t>(axis)].value;
}

bool is_gather(const Node& node) {
  return node.domain.empty() && (node.op == "Gather" || node.op == "GatherElements");
}

}  // namespace

std::vector<CheckedInput> find_checked_inputs(const Graph& graph) {
  std::vector<CheckedInput> all;
  for (const NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    CheckedInput checked;
    checked.labels = is_loss(node);
    if (!checked.labels && !is_gather(node)) continue;
    const int64_t axis = checked.labels ? 1 : node.attributes.get_int("axis", 0);
    const auto size = dim_of(graph, graph.input(id, 0), axis);
    const auto input = input_behind(graph, graph.input(id, 1));
    if (!size || !input) continue;
    checked.input = *input;
    checked.size = *size;
    checked.node = node.name;
    checked.op = node.op;
    if (checked.labels && node.attributes.has("ignore_index"))
      checked.ignore_index = node.attributes.get_int("ignore_index", 0);
    all.push_back(std::move(checked));
  }
  return all;
}

void check_input(const CheckedInput& checked, const Tensor& fed) {
  if (!fed.defined() || !is_integer(fed.dtype())) return;  // refused for its type
  const int64_t least = checked.labels ? 0 : -checked.size;
  for (int64_t i = 0; i < fed.size(); ++i) {
    const int64_t value = fed.at_as_int(i);
    if ((value >= least && value < checked.size) || checked.ignore_index == value) continue;
    const std::string got = std::to_string(value), size = std::to_string(checked.size);
    Error error(ErrorCode::kData, checked.labels ? "label " + got + " at position " +
                                                       std::to_string(i) + " is no class"
                                                 : "index out of range");
    error.at({{}, checked.node, checked.op});
    if (!checked.labels) {
      throw std::move(error).expected("an index in [-" + size + ", " + size + ")", got);
    }
    const std::string but =
        checked.ignore_index ? " or ignore_index " + std::to_string(*checked.ignore_index) : "";
    throw std::move(error)
        .expected("0 to " + std::to_string(checked.size - 1) + but, got)
        .hint("does the model have as many outputs as the data has classes?");
  }
}

}  // namespace halfnote
