// add_strided: the gradient of a convolution of single elements with a stride, as a residual net's
// projections are, is 0 but at every stride-th pixel: it is computed for these alone, and added
// there to the other gradient of the same operand, for GPUs.
//
//   g = ConvGradInput <strides = s> (dy, w, shape)   d = Add (e, g)
//     ──▶   g = ConvGradInput (dy, w, shape of dy's pixels)   d = AddStrided <strides = s> (e, g)
//
// Exact, but that -0 stays where 0 was added. Leaves alone: pads; a g or an e that others read; an
// e that a chain of elementwise nodes makes on its way; shapes that are not known; bodies.
#include "passes/device/products/add_strided.h"

#include <algorithm>

#include "compiler/ir/builder.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/device/norms/parts.h"

namespace halfnote {
namespace {

bool are_all(const std::vector<int64_t>& numbers, int64_t wanted) {
  return std::ranges::all_of(numbers, [=](int64_t n) { return n == wanted; });
}

/// Is it such a gradient, that the Add alone reads?
bool is_strided(const Graph& graph, NodeId node, NodeId add) {
  if (!is_main_op(graph, node, kHalfnoteDomain, "ConvGradInput")) return false;
  const ValueId g = graph.output(node);
  const auto large = known_shape(graph, g), small = known_shape(graph, graph.input(node, 0)),
             weight = known_shape(graph, graph.input(node, 1));
  if (only_user(graph, g) != add || !large || !small || !weight) return false;
  const size_t rank = large->size();
  if (rank < 3 || rank > 5 || small->size() != rank || weight->size() != rank) return false;
  const Attributes& attributes = graph.node(node).attributes;
  const std::vector<int64_t> strides = attributes.get_ints("strides", {});
  if (strides.size() != rank - 2 || are_all(strides, 1)) return false;
  if (!are_all(attributes.get_ints("pads", {}), 0)) return false;
  for (size_t i = 2; i < rank; ++i) {
    const int64_t size = (*large)[i];
    if ((*weight)[i] != 1 || size == 0 || (*small)[i] != (size - 1) / strides[i - 2] + 1)
      return false;
  }
  return true;
}

/// The operand of the Add that is one; the count of operands if none is.
size_t strided_operand(const Graph& graph, NodeId add) {
  size_t i = 0;
  for (; i < 2; ++i) {
    const ValueId own = graph.input(add, i), other = graph.input(add, 1 - i);
    if (own == other || !alike(graph, own, other) || !alike(graph, own, graph.output(add)))
      continue;
    if (only_user(graph, other) != add || is_made_on_the_way(graph, other)) continue;
    if (producer(graph, other).valid() && is_strided(graph, producer(graph, own), add)) break;
  }
  return i;
}

void rewrite(Graph& graph, NodeId add, size_t index, PassContext& context) {
  const ValueId g = graph.input(add, index), other = graph.input(add, 1 - index);
  const NodeId gradient = producer(graph, g);
  const std::vector<int64_t> strides = graph.node(gradient).attributes.get_ints("strides", {});
  Shape shape = *known_shape(graph, graph.input(gradient, 0));
  shape[1] = (*known_shape(graph, g))[1];
  Builder b(graph, graph.before(gradient), context.infer);
  graph.set_input(gradient, 2, b.ints({shape.begin(), shape.end()}).id);
  graph.node(gradient).attributes.set("strides", std::vector<int64_t>(strides.size(), 1));
  context.infer(graph, gradient);
  graph.set_input(add, 0, other);
  graph.set_input(add, 1, g);
  graph.node(add).domain = kHalfnoteDomain;
  graph.node(add).op = "AddStrided";
  graph.node(add).attributes.set("strides", strides);
}

}  // namespace

bool add_strided(Graph& graph, PassContext& context) {
  bool changed = false;
  for (const NodeId node : graph.nodes()) {
    if (!is_main_op(graph, node, "", "Add")) continue;
    const size_t index = strided_operand(graph, node);
    if (index >= 2) continue;
    rewrite(graph, node, index, context);
    changed = true;
  }
  return changed;
}

}  // namespace halfnote
