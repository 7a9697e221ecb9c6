// A Loop whose trips are counted, or bounded, becomes a Scan over their numbers, for
// flatten-control: Scan has a gradient and a kernel.
//
//   s, y = Loop (M, true, s0) <body (i, c, s1) => (c, s2, y1)>
//     ──▶   s, y = Scan (s0, {0, …, M − 1}) <body (s1, i) => (s2, y1)>
//
//   s = Loop (M, c0, s0) <body (i, c, s1) => (c2, s2)>      the condition depends on data
//     ──▶   a, s = Scan (c0, s0, {0, …, M − 1}) <body (a, s1, i) => (a & c2, Where(a, s2, s1))>
//
// Exact. M is a constant, or follows from shapes: then it is known when the dims are bound. In the
// second form the body runs M times; trips after the last one compute the first once more (i is 0,
// s1 is s0), so that no gradient meets an Inf or NaN that the Loop never made, and change nothing.
// Leaves alone: trip counts that depend on data, collected results of a Loop that stops early
// (their length is open), carried containers, carried values that change their shape.
#include "base/error.h"
#include "compiler/ir/query.h"
#include "compiler/ops/control/trips.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/control/flatten_control.h"

namespace halfnote {
namespace {

constexpr int kMaxDepth = 32;  // of the arithmetic between a shape and a trip count

enum class LoopForm : uint8_t { kOther, kCounted, kBounded };

/// Does a value follow from constants and shapes alone?
bool follows_from_shapes(const Graph& graph, ValueId id, int depth = 0) {
  if (!id.valid() || graph.constant(id) != nullptr) return true;
  const Value& value = graph.value(id);
  if (value.kind != ValueKind::kResult || depth > kMaxDepth) return false;
  const Node& node = graph.node(value.producer);
  if (reads_shape_only(node)) return true;
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

LoopForm form_of(const Graph& graph, NodeId node, RegionId body) {
  const auto inputs = graph.inputs(node);
  const auto results = graph.outputs(body);
  if (inputs.size() < 2 || graph.inputs(body).size() != inputs.size()) return LoopForm::kOther;
  const size_t carried = inputs.size() - 2;
  if (results.size() < carried + 1) return LoopForm::kOther;
  if (!inputs[0].valid() || !follows_from_shapes(graph, inputs[0])) return LoopForm::kOther;
  const Tensor* trips = graph.constant(inputs[0]);
  if (trips != nullptr && (trips->size() != 1 || trips->at_as_int(0) > kMaxTrips))
    return LoopForm::kOther;
  if (!all_tensors(graph, inputs.subspan(2))) return LoopForm::kOther;
  if (!all_tensors(graph, results.subspan(1))) return LoopForm::kOther;
  const bool starts = !inputs[1].valid() || is_true(graph, inputs[1]);
  if (starts && goes_on(graph, body)) return LoopForm::kCounted;
  return carried > 0 && results.size() == carried + 1 ? LoopForm::kBounded : LoopForm::kOther;
}

/// 0, 1, …, M − 1, each in the shape that the body takes.
Expr trip_numbers(Builder& b, const Graph& graph, ValueId count, const Shape& each) {
  if (const Tensor* constant = graph.constant(count)) {
    std::vector<int64_t> numbers(static_cast<size_t>(std::max<int64_t>(0, constant->at_as_int(0))));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int64_t>(i);
    Shape shape = each;
    shape.insert(shape.begin(), static_cast<int64_t>(numbers.size()));
    return b.constant(Tensor::of<int64_t>(shape, numbers));
  }
  const Expr scalar = b.reshape(b.value(count), b.ints({}));
  const Expr all = b.op("Range", {b.scalar(DType::kI64, 0), scalar, b.scalar(DType::kI64, 1)});
  return each.empty() ? all : b.op("Unsqueeze", {all, b.ints({1})});
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

/// The names of what stands in the new body of a node, from those in its old body, which all begin
/// with `front`.
struct Names {
  std::string prefix;
  std::string front;

  std::string of(std::string_view name) const {
    return prefix + std::string(without_front(name, front));
  }
};

/// The carried values and the number of the trip as inputs of a new body.
struct Formal {
  std::vector<ValueId> carried;
  ValueId trip;
};

Formal add_formal(Graph& graph, NodeId node, RegionId body, RegionId region, const Names& names) {
  const auto name = [&](ValueId id) { return graph.unique_name(names.of(graph.value(id).name)); };
  const std::vector<ValueId> formal(graph.inputs(body).begin(), graph.inputs(body).end());
  Formal made;
  for (size_t i = 2; i < formal.size(); ++i) {
    const ValueType type = graph.value(graph.input(node, i)).type;
    made.carried.push_back(graph.add_input(region, name(formal[i]), type));
  }
  made.trip =
      graph.add_input(region, name(formal[0]),
                      ValueType::tensor(DType::kI64, symbolic(shape_of_trip(graph, formal[0]))));
  return made;
}

/// Copies what stands in the body to the region; gives what stands for its outputs.
std::vector<ValueId> copy_nodes(Graph& graph, RegionId body, RegionId region, const Names& names,
                                ValueMap& values) {
  for (ValueId id : graph.initializers(body)) {
    const Value original = graph.value(id);
    values[id] = graph.add_initializer(region, names.of(original.name), original.tensor);
  }
  const std::vector<NodeId> nodes = graph.nodes(body);
  clone_nodes(graph, graph.end(region), graph, nodes, values,
              {.prefix = names.prefix, .replaced = names.front});
  std::vector<ValueId> outputs;
  for (ValueId output : graph.outputs(body)) {
    const auto found = values.find(output);
    outputs.push_back(found == values.end() ? output : found->second);
  }
  return outputs;
}

RegionId new_body(Graph& graph, NodeId node, RegionId body) {
  const RegionId region = graph.add_region(graph.node(node).region);
  graph.region_name(region) = std::string(graph.region_name(body));
  return region;
}

/// The condition as a body takes it where it runs.
Tensor go_on(const Graph& graph, ValueId formal) {
  return Tensor::scalar<bool>(true).reshaped(shape_of_trip(graph, formal));
}

/// The body with the number of the trip as its last input, and without the condition.
RegionId counted_body(Graph& graph, NodeId node, RegionId body, const Names& names) {
  const RegionId region = new_body(graph, node, body);
  const std::vector<ValueId> formal(graph.inputs(body).begin(), graph.inputs(body).end());
  const Formal made = add_formal(graph, node, body, region, names);
  ValueMap values;
  for (size_t i = 2; i < formal.size(); ++i) values[formal[i]] = made.carried[i - 2];
  values[formal[0]] = made.trip;
  const ValueId go = graph.add_initializer(region, names.prefix + "go", go_on(graph, formal[1]));
  values[formal[1]] = go;
  const std::vector<ValueId> outputs = copy_nodes(graph, body, region, names, values);
  graph.set_outputs(region, {outputs.begin() + 1, outputs.end()});
  drop_condition(graph, region, go);
  return region;
}

/// The body of a Loop that may stop early: a first carried value says whether it still runs.
RegionId bounded_body(Graph& graph, NodeId node, RegionId body, const Names& names,
                      PassContext& context) {
  const RegionId region = new_body(graph, node, body);
  const std::vector<ValueId> formal(graph.inputs(body).begin(), graph.inputs(body).end());
  const ValueId active = graph.add_input(region, graph.unique_name(names.prefix + "active"),
                                         ValueType::tensor(DType::kBool, SymbolicShape{}));
  const Formal made = add_formal(graph, node, body, region, names);
  Builder b(graph, graph.end(region), context.infer);
  b.set_role(graph.node(node).role);
  b.set_origin(graph.label(node));
  b.set_prefix(names.prefix);
  ValueMap values;
  const Expr runs = b.value(active);
  values[formal[0]] = where(runs, b.value(made.trip), b.scalar(DType::kI64, 0)).id;
  values[formal[1]] = b.constant(go_on(graph, formal[1]), "go").id;
  for (size_t i = 2; i < formal.size(); ++i) {
    values[formal[i]] = where(runs, b.value(made.carried[i - 2]), b.value(graph.input(node, i))).id;
  }
  const std::vector<ValueId> results = copy_nodes(graph, body, region, names, values);
  for (NodeId copy : graph.nodes(region)) context.infer(graph, copy);
  b.set_insert_point(graph.end(region));
  std::vector<ValueId> outputs = {
      b.op("And", {runs, b.reshape(b.value(results[0]), b.ints({}))}).id};
  for (size_t k = 0; k < made.carried.size(); ++k) {
    outputs.push_back(where(runs, b.value(results[k + 1]), b.value(made.carried[k])).id);
  }
  graph.set_outputs(region, outputs);
  return region;
}

/// Are the shapes that a body takes those that it gives?
bool keeps_shapes(const Graph& graph, RegionId region) {
  for (size_t i = 0; i < graph.outputs(region).size(); ++i) {
    const NodeId last = graph.value(graph.outputs(region)[i]).producer;
    const ValueId next = i == 0 ? graph.outputs(region)[i] : graph.input(last, 1);
    const ValueType &before = graph.value(graph.inputs(region)[i]).type,
                    &after = graph.value(next).type;
    if (!before.shape || !after.shape || before.dtype != after.dtype) return false;
    if (before.shape->size() != after.shape->size()) return false;
    for (size_t axis = 0; axis < before.shape->size(); ++axis) {
      const Dim &a = (*before.shape)[axis], &c = (*after.shape)[axis];
      const bool same = a.known() ? c.known() && a.value == c.value
                                  : !c.known() && !a.symbol.empty() && a.symbol == c.symbol;
      if (!same) return false;
    }
  }
  return true;
}

/// Tries it on a copy: shapes are known once the body is inferred with those of the first values.
bool can_be_bounded(const Graph& graph, NodeId node, RegionId body, const Names& names,
                    PassContext& context) {
  Graph trial = graph;
  try {
    return keeps_shapes(trial, bounded_body(trial, node, body, names, context));
  } catch (const Error&) {
    return false;  // the body gives what it does not take
  }
}

/// Gives the names and uses of the Loop's results to those of the Scan, from `skipped` on.
void give_results(Graph& graph, NodeId loop, NodeId scan, size_t skipped) {
  const std::vector<ValueId> outputs(graph.outputs(loop).begin(), graph.outputs(loop).end());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].valid()) continue;
    const std::string name = graph.value(outputs[i]).name;
    graph.rename(outputs[i], graph.unique_name(name + ".counted"));
    graph.replace_uses(outputs[i], graph.add_node_output(scan, i + skipped, name));
  }
}

}  // namespace

NodeId loop_to_scan(Graph& graph, NodeId node, const std::string& front, PassContext& context) {
  const Node& data = graph.node(node);
  if (data.op != "Loop" || !data.domain.empty()) return {};
  const Attribute* attribute = data.attributes.find("body");
  const auto* body = attribute == nullptr ? nullptr : std::get_if<RegionId>(attribute);
  if (body == nullptr) return {};
  const LoopForm form = form_of(graph, node, *body);
  if (form == LoopForm::kOther) return {};
  for (size_t i = 2; i < graph.inputs(node).size(); ++i) {
    const ValueType& before = graph.value(graph.input(node, i)).type;
    const ValueType& after = graph.value(graph.outputs(*body)[i - 1]).type;
    if (before.shape && after.shape && before.rank() != after.rank()) return {};
  }
  const bool bounded = form == LoopForm::kBounded;
  const Names names{graph.label(node) + "/", front};
  if (bounded && !can_be_bounded(graph, node, *body, names, context)) return {};
  Builder b = builder_at(graph, node, context);
  NodeSpec spec{"Scan", {}, {}, {}, data.name};
  if (bounded) {
    spec.name = graph.label(node);
    const ValueId first = graph.input(node, 1);
    spec.inputs.push_back(first.valid() ? b.reshape(b.value(first), b.ints({})).id
                                        : b.constant(Tensor::scalar<bool>(true), "go").id);
  }
  for (size_t i = 2; i < graph.inputs(node).size(); ++i)
    spec.inputs.push_back(graph.input(node, i));
  spec.inputs.push_back(
      trip_numbers(b, graph, graph.input(node, 0), shape_of_trip(graph, graph.inputs(*body)[0]))
          .id);
  const RegionId region = bounded ? bounded_body(graph, node, *body, names, context)
                                  : counted_body(graph, node, *body, names);
  spec.attributes = {{"body", region}, {"num_scan_inputs", int64_t{1}}};
  const NodeId scan = graph.create(std::move(spec), std::vector<std::string>{}, graph.before(node));
  graph.node(scan).role = data.role;
  graph.node(scan).origin = data.origin;
  graph.node(scan).metadata = data.metadata;
  if (bounded)
    graph.add_node_output(scan, 0, graph.unique_name(graph.node(scan).name + "/running"));
  give_results(graph, node, scan, bounded ? 1 : 0);
  graph.remove(node);
  context.infer(graph, scan);
  return scan;
}

}  // namespace halfnote
