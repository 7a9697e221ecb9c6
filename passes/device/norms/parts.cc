#include "passes/device/norms/parts.h"

#include "base/ops/pointwise.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"

namespace halfnote {

namespace {

bool is_elementwise(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  return find_pointwise(node.domain, node.op) != nullptr;
}

}  // namespace

bool is_main_op(const Graph& graph, NodeId id, std::string_view domain, std::string_view op) {
  if (!id.valid()) return false;
  const Node& node = graph.node(id);
  return node.op == op && node.domain == domain && node.region == graph.main();
}

NodeId only_user(const Graph& graph, ValueId value) {
  const auto uses = graph.uses(value);
  return uses.size() == 1 && uses[0].by_node() ? uses[0].node() : NodeId{};
}

bool alike(const Graph& graph, ValueId a, ValueId b) {
  if (!a.valid() || !b.valid()) return false;
  const ValueType &x = graph.value(a).type, &y = graph.value(b).type;
  return x.dtype == y.dtype && x.shape && y.shape && *x.shape == *y.shape;
}

bool is_made_before(const Graph& graph, ValueId value, NodeId node) {
  const NodeId maker = producer(graph, value);
  return !maker.valid() || graph.is_before(maker, node);
}

void take_over(Graph& graph, ValueId from, ValueId to) {
  graph.value(to).scale_power = graph.value(from).scale_power;
  take_place(graph, from, to);
  graph.remove(graph.value(from).producer);
}

bool is_made_on_the_way(const Graph& graph, ValueId value) {
  const NodeId maker = producer(graph, value);
  return maker.valid() && only_user(graph, value).valid() && is_elementwise(graph, maker);
}

bool goes_into_chain(const Graph& graph, ValueId value) {
  const NodeId user = only_user(graph, value);
  return user.valid() && is_elementwise(graph, user);
}

}  // namespace halfnote
