// Smaller extents for a problem that is being shrunk.
#include <algorithm>
#include <set>

#include "runtime/core/interpret/pieces.h"
#include "tests/random/shrink.h"

namespace halfnote::random {
namespace {

/// One extent and what takes its place.
struct Resize {
  int64_t from = 0, to = 0;

  Tensor cut(Tensor tensor) const {
    for (size_t axis = 0; axis < tensor.shape().size(); ++axis) {
      if (tensor.shape()[axis] != from) continue;
      tensor = slice_along(tensor, static_cast<int64_t>(axis), 0, to);
    }
    return tensor;
  }

  /// Numbers of a constant that are the extent.
  Tensor renumbered(const Tensor& tensor) const {
    if (tensor.dtype() != DType::kI64) return tensor;
    Tensor changed = tensor.deep_copy();
    for (int64_t& x : changed.mutable_data<int64_t>()) {
      if (x == from) x = to;
    }
    return changed;
  }

  /// Labels of classes that are gone.
  Tensor relabelled(const Tensor& tensor) const {
    if (tensor.dtype() != DType::kI64 || to < 1) return tensor;
    Tensor changed = tensor.deep_copy();
    for (int64_t& x : changed.mutable_data<int64_t>()) x = std::min(x, to - 1);
    return changed;
  }

  void change(ValueType& type) const {
    if (!type.shape) return;
    SymbolicShape shape = *type.shape;
    for (Dim& dim : shape) {
      if (dim.is(from)) dim = Dim(to);
    }
    type.shape = std::move(shape);
  }

  Attribute changed(const std::string& name, const Attribute& attribute) const {
    static constexpr std::string_view kExtents[] = {"hidden_size", "group", "num_groups"};
    const auto* number = std::get_if<int64_t>(&attribute);
    const bool is_extent = std::ranges::find(kExtents, name) != std::end(kExtents);
    if (number != nullptr && is_extent && *number == from) return to;
    const auto* numbers = std::get_if<std::vector<int64_t>>(&attribute);
    if (numbers == nullptr || name != "kernel_shape") return attribute;
    std::vector<int64_t> kernel = *numbers;
    std::ranges::replace(kernel, from, to);
    return kernel;
  }
};

Problem resized(Problem problem, const Resize& resize) {
  Graph& graph = problem.model.graph;
  for (uint32_t i = 0; i < graph.value_count(); ++i) {
    Value& value = graph.value(ValueId{i});
    if (!value.alive) continue;
    resize.change(value.type);
    if (value.kind != ValueKind::kInitializer) continue;
    // A list of numbers keeps its length: it is as long as a rank.
    const bool listed = !is_float(value.tensor.dtype()) && value.tensor.shape().size() < 2;
    value.tensor = resize.renumbered(listed ? value.tensor : resize.cut(value.tensor));
    value.type = ValueType::tensor(value.tensor.dtype(), symbolic(value.tensor.shape()));
  }
  for (Tensor& input : problem.inputs) input = resize.relabelled(resize.cut(input));
  for (NodeId id : graph.all_nodes()) {
    Node& node = graph.node(id);
    Attributes attributes;
    for (const auto& [name, attribute] : node.attributes) {
      attributes.set(name, resize.changed(name, attribute));
    }
    node.attributes = std::move(attributes);
  }
  return problem;
}

}  // namespace

std::vector<Problem> with_smaller_sizes(const Problem& problem) {
  std::set<int64_t, std::greater<>> extents;
  const auto collect = [&](const Tensor& tensor) {
    for (int64_t extent : tensor.shape()) {
      if (extent > 1) extents.insert(extent);
    }
  };
  for (const Tensor& input : problem.inputs) collect(input);
  for (ValueId id : problem.model.graph.initializers()) {
    if (is_float(problem.model.graph.value(id).tensor.dtype())) {
      collect(problem.model.graph.value(id).tensor);
    }
  }
  std::vector<Problem> smaller;
  for (int64_t extent : extents) {
    std::set<int64_t> goals = {1, 2, extent / 2, extent - 1};
    for (int64_t goal : goals) {
      if (goal >= 1 && goal < extent) smaller.push_back(resized(problem, {extent, goal}));
    }
  }
  return smaller;
}

}  // namespace halfnote::random
