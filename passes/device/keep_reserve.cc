// keep-reserve: a recurrent op and its gradient pass on what their kernel keeps, instead of gates
// and cells. A library that computes both has a form of its own for it, for GPUs only.
//
//   y, yh, yc, gates, cells = LSTM (x, w, r, b)
//   dx, dw, dr = LSTMGrad (x, w, r, , , , , y, gates, cells, dy)
//     ──▶
//   y, yh, yc, kept = LSTM <reserve = 10000> (x, w, r, b)        # kept: u8[10000]
//   dx, dw, dr = LSTMGrad <reserve = 10000> (x, w, r, , , , , y, kept, , dy)
//
// Exact: what is computed stays. Leaves alone: what the device has no use for, rows with lengths,
// peepholes, gates or cells that somebody else reads, a gradient of other operands, bodies.
#include "passes/device/keep_reserve.h"

#include <optional>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/pass_through.h"

namespace halfnote {
namespace {

/// Where operands stand, by op.
struct Slots {
  size_t gates_output;                              // of the forward op
  size_t first_state, states, y, gates, peepholes;  // of the gradient; the stash is behind gates
};

Slots slots_of(RecurrentOp op) {
  if (op == RecurrentOp::kLstm)
    return {.gates_output = 3, .first_state = 4, .states = 2, .y = 7, .gates = 8, .peepholes = 6};
  return {.gates_output = 2, .first_state = 4, .states = 1, .y = 5, .gates = 6, .peepholes = 0};
}

constexpr size_t kForwardLengths = 4, kForwardState = 5, kForwardPeepholes = 7;

/// The gradient that alone reads the value as operand `index`; invalid if there is none, or others
/// do.
NodeId gradient_of(const Graph& graph, NodeId node, ValueId value, size_t index) {
  if (!value.valid() || is_region_output(graph, value)) return {};
  const NodeId reader = only_reader(graph, value);
  if (!reader.valid() || graph.node(reader).region != graph.node(node).region) return {};
  const Node& data = graph.node(reader);
  const bool fits = data.domain == kHalfnoteDomain && data.op == graph.node(node).op + "Grad" &&
                    graph.input(reader, index) == value;
  return fits ? reader : NodeId{};
}

bool same_attributes(const Graph& graph, NodeId node, NodeId gradient) {
  Attributes a = graph.node(node).attributes, b = graph.node(gradient).attributes;
  a.erase("out_dtype");
  b.erase("out_dtype");
  return a == b;
}

bool same_operands(const Graph& graph, NodeId node, NodeId gradient, const Slots& slots) {
  for (size_t i = 0; i < 3; ++i) {
    if (graph.input(node, i) != graph.input(gradient, i)) return false;
  }
  for (size_t i = 0; i < slots.states; ++i) {
    if (graph.input(node, kForwardState + i) != graph.input(gradient, slots.first_state + i))
      return false;
  }
  return graph.output(node, 0) == graph.input(gradient, slots.y);
}

std::optional<RecurrentSize> size_of_node(const Graph& graph, NodeId node, const Recurrence& r) {
  const auto x = known_shape(graph, graph.input(node, 0));
  const auto weights = known_shape(graph, graph.input(node, 2));
  if (!x || !weights || x->size() != 3 || weights->size() != 3) return std::nullopt;
  const auto [time, batch] = r.batch_first ? std::pair{1, 0} : std::pair{0, 1};
  return RecurrentSize{r,
                       (*x)[static_cast<size_t>(time)],
                       (*x)[static_cast<size_t>(batch)],
                       (*x)[2],
                       (*weights)[2],
                       graph.value(graph.input(node, 0)).type.dtype};
}

/// The gradient of a node with which it could pass on a reserve; invalid if it shall not.
NodeId partner_of(const Graph& graph, NodeId node, const Recurrence& r) {
  const Slots slots = slots_of(r.op);
  const bool lstm = r.op == RecurrentOp::kLstm;
  if (graph.input(node, kForwardLengths).valid()) return {};
  if (lstm && graph.input(node, kForwardPeepholes).valid()) return {};
  const NodeId gradient =
      gradient_of(graph, node, graph.output(node, slots.gates_output), slots.gates);
  if (!gradient.valid() || !same_attributes(graph, node, gradient)) return {};
  if (graph.input(gradient, 3).valid() || (lstm && graph.input(gradient, slots.peepholes).valid()))
    return {};
  const ValueId stash = graph.output(node, slots.gates_output + 1);
  if (stash.valid() && (graph.has_uses(stash) || is_region_output(graph, stash)) &&
      gradient_of(graph, node, stash, slots.gates + 1) != gradient)
    return {};
  return same_operands(graph, node, gradient, slots) ? gradient : NodeId{};
}

void pass_on(Graph& graph, NodeId node, NodeId gradient, const Slots& slots, int64_t bytes) {
  for (const NodeId each : {node, gradient}) graph.node(each).attributes.set("reserve", bytes);
  graph.value(graph.output(node, slots.gates_output)).type =
      ValueType::tensor(DType::kU8, {Dim(bytes)});
  const ValueId stash = graph.output(node, slots.gates_output + 1);
  if (!stash.valid()) return;
  if (graph.has_uses(stash)) graph.set_input(gradient, slots.gates + 1, {});
  graph.drop_output(node, slots.gates_output + 1);
}

}  // namespace

bool keep_reserve(Graph& graph, PassContext&, int64_t (*bytes)(const RecurrentSize&)) {
  bool changed = false;
  for (const NodeId node : graph.nodes()) {
    const Node& data = graph.node(node);
    if (data.domain != kHalfnoteDomain) continue;
    if (data.op != "LSTM" && data.op != "GRU" && data.op != "RNN") continue;
    const auto shape = known_shape(graph, graph.input(node, 2));
    if (!shape || shape->empty()) continue;
    const Recurrence r = recurrence_of(*recurrent_op(data.op), data.attributes, shape->back());
    if (r.reserve > 0) continue;
    const NodeId gradient = partner_of(graph, node, r);
    if (!gradient.valid()) continue;
    const auto size = size_of_node(graph, node, r);
    const int64_t wanted = size ? bytes(*size) : 0;
    if (wanted == 0) continue;
    pass_on(graph, node, gradient, slots_of(r.op), wanted);
    changed = true;
  }
  return changed;
}

}  // namespace halfnote
