// A Loop whose trips are counted becomes a Scan over their numbers, for flatten-control: Scan has a
// gradient and a kernel.
//
//   s, y = Loop (M, true, s0) <body (i, c, s1) => (c, s2, y1)>
//     ──▶   s, y = Scan (s0, {0, …, M − 1}) <body (s1, i) => (s2, y1)>
//
// Exact. M is a constant, or follows from shapes: then it is known when the dims are bound. Leaves
// alone: trip counts and conditions that depend on data, carried containers, carried values that
// change their shape.
#include "base/error.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/flatten_control.h"

namespace halfnote {
namespace {

constexpr int kMaxDepth = 32;  // of the arithmetic between a shape and a trip count

/// Does a value follow from constants and shapes alone?
bool follows_from_shapes(const Graph& graph, ValueId id, int depth = 0) {
  if (!id.valid() || graph.constant(id) != nullptr) return true;
  const Value& value = graph.value(id);
  if (value.kind != ValueKind::kResult || depth > kMaxDepth) return false;
  const Node& node = graph.node(value.producer);
  if (node.domain.empty() && (node.op == "Shape" || node.op == "Size")) return true;
  const OperatorRow* row = find_operator(node);
  if (row == nullptr || row->purity != Purity::kPure) return false;
  if (!graph.subgraphs(value.producer).empty()) return false;
  for (ValueId input : graph.inputs(value.producer)) {
    if (!follows_from_shapes(graph, input, depth + 1)) return false;
  }
  return true;
}

bool is_true(const Graph& graph, ValueId id) {
  const Tensor* constant = graph.constant(id);
  return constant != nullptr && constant->size() == 1 && constant->at_as_int(0) != 0;
}

/// Is the condition for the next trip that of this one, or true?
bool goes_on(const Graph& graph, RegionId body) {
  ValueId id = graph.outputs(body)[0];
  while (id != graph.inputs(body)[1]) {
    if (is_true(graph, id)) return true;
    const Value& value = graph.value(id);
    if (value.kind != ValueKind::kResult || graph.node(value.producer).op != "Identity")
      return false;
    id = graph.input(value.producer, 0);
  }
  return true;
}

bool all_tensors(const Graph& graph, std::span<const ValueId> values) {
  for (ValueId value : values) {
    if (!value.valid() || !graph.value(value).type.is_tensor()) return false;
  }
  return true;
}

bool is_counted(const Graph& graph, NodeId node, RegionId body) {
  const auto inputs = graph.inputs(node);
  if (inputs.size() < 2 || graph.inputs(body).size() != inputs.size()) return false;
  if (graph.outputs(body).size() + 1 < inputs.size()) return false;
  if (!inputs[0].valid() || !follows_from_shapes(graph, inputs[0])) return false;
  if (inputs[1].valid() && !is_true(graph, inputs[1])) return false;
  if (graph.value(graph.inputs(body)[0]).type.rank() > 0) return false;
  return goes_on(graph, body) && all_tensors(graph, inputs.subspan(2)) &&
         all_tensors(graph, graph.outputs(body).subspan(1));
}

/// 0, 1, …, M − 1.
Expr trip_numbers(Builder& b, const Graph& graph, ValueId count) {
  if (const Tensor* constant = graph.constant(count)) {
    std::vector<int64_t> numbers(static_cast<size_t>(std::max<int64_t>(0, constant->at_as_int(0))));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i);
    return b.ints(numbers);
  }
  const Expr scalar = b.reshape(b.value(count), b.ints({}));
  return b.op("Range", {b.scalar(DType::kI64, 0), scalar, b.scalar(DType::kI64, 1)});
}

/// What only made the condition for the next trip goes.
void drop_condition(Graph& graph, RegionId region, ValueId go) {
  const std::vector<NodeId> nodes = graph.nodes(region);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    bool used = false;
    for (ValueId output : graph.outputs(*node)) used |= output.valid() && graph.has_uses(output);
    if (!used) graph.remove(*node);
  }
  if (!graph.has_uses(go)) graph.remove_value(go);
}

/// The body with the number of the trip as its last input, and without the condition.
RegionId scan_body(Graph& graph, NodeId node, RegionId body) {
  const RegionId region = graph.add_region(graph.node(node).region);
  graph.region_name(region) = std::string(graph.region_name(body));
  const std::vector<ValueId> formal(graph.inputs(body).begin(), graph.inputs(body).end());
  const std::string prefix = graph.label(node) + "/";
  ValueMap values;
  for (size_t i = 2; i < formal.size(); ++i) {
    values[formal[i]] =
        graph.add_input(region, graph.unique_name(prefix + graph.value(formal[i]).name),
                        graph.value(graph.input(node, i)).type);
  }
  values[formal[0]] =
      graph.add_input(region, graph.unique_name(prefix + graph.value(formal[0]).name),
                      ValueType::tensor(DType::kI64, SymbolicShape{}));
  const ValueId go = graph.add_initializer(region, prefix + "go", Tensor::scalar<bool>(true));
  values[formal[1]] = go;
  for (ValueId id : graph.initializers(body)) {
    const Value original = graph.value(id);
    values[id] = graph.add_initializer(region, prefix + original.name, original.tensor);
  }
  const std::vector<NodeId> nodes = graph.nodes(body);
  clone_nodes(graph, graph.end(region), graph, nodes, values, {.prefix = prefix});
  std::vector<ValueId> outputs;
  for (size_t i = 1; i < graph.outputs(body).size(); ++i) {
    const auto found = values.find(graph.outputs(body)[i]);
    outputs.push_back(found == values.end() ? graph.outputs(body)[i] : found->second);
  }
  graph.set_outputs(region, outputs);
  drop_condition(graph, region, go);
  return region;
}

}  // namespace

NodeId loop_to_scan(Graph& graph, NodeId node, PassContext& context) {
  const Node& data = graph.node(node);
  if (data.op != "Loop" || !data.domain.empty()) return {};
  const Attribute* attribute = data.attributes.find("body");
  const auto* body = attribute == nullptr ? nullptr : std::get_if<RegionId>(attribute);
  if (body == nullptr || !is_counted(graph, node, *body)) return {};
  for (size_t i = 2; i < graph.inputs(node).size(); ++i) {
    const ValueType& before = graph.value(graph.input(node, i)).type;
    const ValueType& after = graph.value(graph.outputs(*body)[i - 1]).type;
    if (before.shape && after.shape && before.rank() != after.rank()) return {};
  }
  Builder b = builder_at(graph, node, context);
  NodeSpec spec{"Scan", {}, {}, {}, data.name};
  for (size_t i = 2; i < graph.inputs(node).size(); ++i)
    spec.inputs.push_back(graph.input(node, i));
  spec.inputs.push_back(trip_numbers(b, graph, graph.input(node, 0)).id);
  spec.attributes = {{"body", scan_body(graph, node, *body)}, {"num_scan_inputs", int64_t{1}}};
  const std::vector<ValueId> outputs(graph.outputs(node).begin(), graph.outputs(node).end());
  const NodeId scan = graph.create(std::move(spec), std::vector<std::string>{}, graph.before(node));
  graph.node(scan).role = data.role;
  graph.node(scan).origin = data.origin;
  graph.node(scan).metadata = data.metadata;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].valid()) continue;
    const std::string name = graph.value(outputs[i]).name;
    graph.rename(outputs[i], graph.unique_name(name + ".counted"));
    graph.replace_uses(outputs[i], graph.add_node_output(scan, i, name));
  }
  graph.remove(node);
  context.infer(graph, scan);
  return scan;
}

}  // namespace halfnote
