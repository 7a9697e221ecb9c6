// fuse_cross_entropy: the loss and its gradient are one node, which reads the scores and writes the
// gradient; the log-probabilities never go to memory, nor do casts of scores and gradient.
//
//   x = Cast <f32> (s)
//   l, p = SoftmaxCrossEntropyLoss (x, t)
//   g = ai.halfnote.SoftmaxCrossEntropyLossGrad (dl, p, t)
//   d = Cast <bf16> (g)
//     ──▶  l, d = ai.halfnote.SoftmaxCrossEntropyLossWithGradient <out_dtype = bf16> (s, t, dl)
//
// Exact: the fused kernel rounds where the nodes did.
// Leaves alone: log-probabilities that others read, classes that are not the innermost dim, f64,
// and a loss that dl depends on.
#include "passes/device/fuse_cross_entropy.h"

#include <algorithm>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"

namespace halfnote {
namespace {

/// A loss, its gradient, and the casts around them.
struct LossPair {
  NodeId forward, gradient;
  ValueId scores;  // before a cast to f32, if there is one
  NodeId cast;     // of the gradient; invalid if there is none
};

bool is_small_float(const Graph& graph, ValueId value) {
  const DType dtype = graph.value(value).type.dtype;
  return dtype == DType::kF32 || is_16bit_float(dtype);
}

bool same_operands(const Graph& graph, const LossPair& pair) {
  if (graph.input(pair.forward, 1) != graph.input(pair.gradient, 2)) return false;
  if (graph.input(pair.forward, 2) != graph.input(pair.gradient, 3)) return false;
  const Attributes &a = graph.node(pair.forward).attributes,
                   &b = graph.node(pair.gradient).attributes;
  const auto same = [&](const char* name) {
    const Attribute *x = a.find(name), *y = b.find(name);
    return (x == nullptr) == (y == nullptr) && (x == nullptr || equal(*x, *y));
  };
  return same("reduction") && same("ignore_index");
}

/// May the fused node stand where the gradient stands? Nobody in between reads the loss.
bool loss_is_read_late(const Graph& graph, const LossPair& pair) {
  return std::ranges::all_of(graph.uses(graph.output(pair.forward)), [&](const Use& use) {
    if (!use.by_node()) return true;
    const NodeId user = use.node();
    return graph.node(user).region == graph.main() && graph.is_before(pair.gradient, user);
  });
}

/// Is dL there before the loss?
bool upstream_is_early(const Graph& graph, const LossPair& pair) {
  const NodeId maker = producer(graph, graph.input(pair.gradient, 0));
  return !maker.valid() || graph.is_before(maker, pair.forward);
}

bool find_gradient(const Graph& graph, LossPair& pair) {
  const ValueId log_prob = graph.output(pair.forward, 1);
  if (!log_prob.valid() || graph.uses(log_prob).size() != 1) return false;
  pair.gradient = graph.uses(log_prob)[0].node();
  if (!pair.gradient.valid()) return false;
  const Node& node = graph.node(pair.gradient);
  if (node.op != "SoftmaxCrossEntropyLossGrad" || node.domain != kHalfnoteDomain) return false;
  if (node.region != graph.main() || graph.input(pair.gradient, 1) != log_prob) return false;
  return same_operands(graph, pair);
}

/// The cast to 16 bits that is all that reads the gradient.
NodeId cast_of_gradient(const Graph& graph, NodeId gradient) {
  const auto uses = graph.uses(graph.output(gradient));
  if (uses.size() != 1 || !uses[0].by_node()) return {};
  const NodeId cast = uses[0].node();
  if (!is_cast(graph.node(cast)) || graph.node(cast).region != graph.main()) return {};
  return is_16bit_float(graph.value(graph.output(cast)).type.dtype) ? cast : NodeId{};
}

bool find_pair(const Graph& graph, NodeId id, LossPair& pair) {
  const Node& node = graph.node(id);
  if (node.op != "SoftmaxCrossEntropyLoss" || !node.domain.empty()) return false;
  pair.forward = id;
  pair.scores = graph.input(id, 0);
  const ValueType& type = graph.value(pair.scores).type;
  if (type.dtype != DType::kF32 || !type.shape || type.shape->size() != 2) return false;
  if (!find_gradient(graph, pair)) return false;
  if (!upstream_is_early(graph, pair) && !loss_is_read_late(graph, pair)) return false;
  const NodeId wide = producer(graph, pair.scores);
  if (wide.valid() && is_cast(graph.node(wide)) && is_small_float(graph, graph.input(wide, 0)))
    pair.scores = graph.input(wide, 0);
  pair.cast = cast_of_gradient(graph, pair.gradient);
  return true;
}

void remove_unread(Graph& graph, NodeId node) {
  for (const ValueId output : graph.outputs(node)) {
    if (output.valid() && graph.has_uses(output)) return;
  }
  graph.remove(node);
}

void fuse_pair(Graph& graph, const LossPair& pair) {
  const NodeId last = pair.cast.valid() ? pair.cast : pair.gradient;
  const ValueId loss = graph.output(pair.forward), dx = graph.output(last);
  const NodeId wide = producer(graph, graph.input(pair.forward, 0));
  NodeSpec spec;
  spec.op = "SoftmaxCrossEntropyLossWithGradient";
  spec.domain = kHalfnoteDomain;
  spec.name = graph.label(pair.forward);
  spec.inputs = {pair.scores, graph.input(pair.forward, 1), graph.input(pair.gradient, 0)};
  if (graph.input(pair.forward, 2).valid()) spec.inputs.push_back(graph.input(pair.forward, 2));
  spec.attributes = graph.node(pair.gradient).attributes;
  spec.attributes.set("out_dtype", static_cast<int64_t>(graph.value(dx).type.dtype));
  const NodeId place = upstream_is_early(graph, pair) ? pair.forward : pair.gradient;
  const NodeId both = graph.create(std::move(spec),
                                   {graph.unique_name(graph.value(loss).name + ".fused"),
                                    graph.unique_name(graph.value(dx).name + ".fused")},
                                   graph.before(place));
  graph.node(both).role = graph.node(pair.forward).role;
  graph.node(both).precision = graph.node(pair.forward).precision;
  graph.node(both).origin = graph.node(pair.forward).origin;
  const ValueId old[] = {loss, dx};
  std::string names[2];
  for (size_t i = 0; i < 2; ++i) {
    const ValueId made = graph.output(both, i);
    names[i] = graph.value(old[i]).name;
    graph.value(made).type = graph.value(old[i]).type;
    graph.value(made).scale_power = graph.value(old[i]).scale_power;
    graph.replace_uses(old[i], made);
  }
  if (pair.cast.valid()) graph.remove(pair.cast);
  graph.remove(pair.gradient);
  graph.remove(pair.forward);
  if (wide.valid() && is_cast(graph.node(wide))) remove_unread(graph, wide);
  for (size_t i = 0; i < 2; ++i) graph.rename(graph.output(both, i), names[i]);
}

}  // namespace

bool fuse_cross_entropy(Graph& graph, PassContext&) {
  bool changed = false;
  for (const NodeId node : graph.nodes()) {
    LossPair pair;
    if (!graph.node(node).alive || !find_pair(graph, node, pair)) continue;
    fuse_pair(graph, pair);
    changed = true;
  }
  return changed;
}

}  // namespace halfnote
