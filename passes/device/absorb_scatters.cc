// absorb_scatters: rows that are added to zeros, and the sum to another gradient, are added to that
// gradient at once. A tied embedding has it: one gradient from the product at its end, one from the
// lookup at its beginning.
//
//   z = ConstantOfShape <0> (shape)
//   s = ScatterND <reduction = "add"> (z, i, u)      ──▶   y = ScatterND <reduction = "add"> (p, i,
//   u) y = Add(p, s)
//
// Rounding: the same numbers are summed in f32 (f64), those of one element in another order: with
// k updates of an element, within k + 1 units in the last place of the sum of their magnitudes.
// Leaves alone: small tensors (nothing is gained, and they keep every bit), 16-bit sums, scatters
// that others read too, zeros that are a state.
#include "passes/device/absorb_scatters.h"

#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "passes/pass_through.h"

namespace halfnote {
namespace {

constexpr int64_t kLeastElements = int64_t{1} << 16;  // below it no memory is walked through

bool is_zeros(const Graph& graph, ValueId value) {
  if (const Tensor* constant = graph.constant(value))
    return !graph.state_of(value) && all_zero(*constant);
  const NodeId node = producer(graph, value);
  if (!is_op(graph, node, "ConstantOfShape")) return false;
  const Attribute* fill = graph.node(node).attributes.find("value");
  const Tensor* filler = fill == nullptr ? nullptr : std::get_if<Tensor>(fill);
  return fill == nullptr || (filler != nullptr && all_zero(*filler));
}

/// The scatter that makes the operand, if it can add to the other one instead; else invalid.
NodeId scatter_of(const Graph& graph, NodeId add, size_t operand) {
  const ValueId sum = graph.input(add, operand), other = graph.input(add, 1 - operand);
  const NodeId scatter = producer(graph, sum);
  if (!is_op(graph, scatter, "ScatterND") && !is_op(graph, scatter, "ScatterElements")) return {};
  if (graph.node(scatter).attributes.get_string("reduction", "none") != "add") return {};
  if (graph.node(scatter).region != graph.node(add).region) return {};
  const ValueType &type = graph.value(sum).type, &into = graph.value(other).type;
  if (type.dtype != DType::kF32 && type.dtype != DType::kF64) return {};
  if (!type.has_concrete_shape() || !into.has_concrete_shape()) return {};
  if (concrete(*type.shape) != concrete(*into.shape)) return {};
  if (element_count(concrete(*type.shape)) < kLeastElements) return {};
  // An initializer would have to be copied first: nothing gained.
  if (!producer(graph, other).valid() || graph.uses(sum).size() != 1) return {};
  return is_zeros(graph, graph.input(scatter, 0)) ? scatter : NodeId{};
}

void absorb_scatter(Graph& graph, NodeId add, NodeId scatter, ValueId into) {
  graph.move_before(scatter, graph.before(add));
  const ValueId zeros = graph.input(scatter, 0);
  graph.set_input(scatter, 0, into);
  if (!graph.has_uses(zeros) && producer(graph, zeros).valid())
    graph.remove(producer(graph, zeros));
  const ValueId sum = graph.output(scatter), result = graph.output(add);
  graph.value(sum).scale_power = graph.value(result).scale_power;
  take_place(graph, result, sum);
  graph.remove(add);
}

}  // namespace

bool absorb_scatters(Graph& graph, PassContext&) {
  bool changed = false;
  for (const NodeId node : graph.nodes()) {
    if (!is_op(graph, node, "Add")) continue;
    for (size_t operand = 0; operand < 2; ++operand) {
      const NodeId scatter = scatter_of(graph, node, operand);
      if (!scatter.valid()) continue;
      absorb_scatter(graph, node, scatter, graph.input(node, 1 - operand));
      changed = true;
      break;
    }
  }
  return changed;
}

}  // namespace halfnote
