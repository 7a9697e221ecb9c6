#include "passes/device/margins.h"

#include "compiler/ir/query.h"

namespace halfnote {
namespace {

bool is_zero(const Graph& graph, ValueId value) {
  if (!value.valid()) return true;
  const Tensor* constant = graph.constant(value);
  return constant != nullptr && constant->size() == 1 && constant->at_as_double(0) == 0;
}

}  // namespace

bool is_standard(const Graph& graph, NodeId id, std::string_view op) {
  return id.valid() && graph.node(id).op == op && graph.node(id).domain.empty();
}

bool keeps_last_dim(const Graph& graph, NodeId id) {
  if (!is_standard(graph, id, "Reshape")) return false;
  const auto x = known_shape(graph, graph.input(id, 0)), y = known_shape(graph, graph.output(id));
  return x && y && !x->empty() && !y->empty() && x->back() == y->back() && element_count(*x) > 0;
}

std::optional<std::vector<int64_t>> known_numbers(const Graph& graph, NodeId id, size_t input) {
  const ValueId value = graph.input(id, input);
  if (!value.valid()) return std::vector<int64_t>{};
  const Tensor* constant = graph.constant(value);
  if (constant == nullptr || constant->dtype() != DType::kI64) return std::nullopt;
  const auto data = constant->data<int64_t>();
  return std::vector<int64_t>(data.begin(), data.end());
}

std::optional<std::vector<size_t>> named_dims(const Graph& graph, NodeId id, size_t axes,
                                              size_t rank) {
  const auto given = known_numbers(graph, id, axes);
  if (!given) return std::nullopt;
  std::vector<size_t> dims;
  for (const int64_t axis : *given)
    dims.push_back(static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis));
  if (!graph.input(id, axes).valid()) {
    for (size_t dim = 0; dim < rank; ++dim) dims.push_back(dim);
  }
  const bool inside = std::ranges::all_of(dims, [&](size_t dim) { return dim < rank; });
  return inside ? std::optional(dims) : std::nullopt;
}

std::optional<Margins> margins_of_slice(const Graph& graph, NodeId id) {
  const auto x = known_shape(graph, graph.input(id, 0)), y = known_shape(graph, graph.output(id));
  const auto starts = known_numbers(graph, id, 1), steps = known_numbers(graph, id, 4);
  if (!x || !y || x->empty() || !starts || !steps) return std::nullopt;
  if (!std::ranges::all_of(*steps, [](int64_t step) { return step == 1; })) return std::nullopt;
  const auto dims = named_dims(graph, id, 3, x->size());
  if (!dims || dims->size() < starts->size()) return std::nullopt;
  Margins margins{std::vector<int64_t>(x->size(), 0), std::vector<int64_t>(x->size(), 0)};
  for (size_t i = 0; i < starts->size(); ++i) {
    const size_t dim = (*dims)[i];
    const int64_t start = (*starts)[i] < 0 ? (*starts)[i] + (*x)[dim] : (*starts)[i];
    margins.before[dim] = std::clamp<int64_t>(start, 0, (*x)[dim]);
  }
  for (size_t dim = 0; dim < x->size(); ++dim)
    margins.behind[dim] = (*x)[dim] - (*y)[dim] - margins.before[dim];
  return margins;
}

std::optional<Margins> margins_of_pad(const Graph& graph, NodeId id) {
  const auto x = known_shape(graph, graph.input(id, 0));
  const auto pads = known_numbers(graph, id, 1);
  if (!x || x->empty() || !pads || !is_zero(graph, graph.input(id, 2))) return std::nullopt;
  if (graph.node(id).attributes.get_string("mode", "constant") != "constant") return std::nullopt;
  const auto dims = named_dims(graph, id, 3, x->size());
  if (!dims || pads->size() != 2 * dims->size()) return std::nullopt;
  Margins margins{std::vector<int64_t>(x->size(), 0), std::vector<int64_t>(x->size(), 0)};
  for (size_t i = 0; i < dims->size(); ++i) {
    margins.before[(*dims)[i]] = (*pads)[i];
    margins.behind[(*dims)[i]] = (*pads)[dims->size() + i];
  }
  const auto negative = [](int64_t n) { return n < 0; };
  if (std::ranges::any_of(margins.before, negative)) return std::nullopt;
  if (std::ranges::any_of(margins.behind, negative)) return std::nullopt;
  return margins;
}

}  // namespace halfnote
