#include "compiler/ir/graph.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <type_traits>

namespace halfnote {
namespace {

// Labels of the order within a region: appended nodes are a step apart, all stay below 2^62.
constexpr int64_t kOrderStep = int64_t{1} << 24;
constexpr int kOrderBits = 62;

constexpr std::array<std::string_view, 5> kRoleNames = {"forward", "loss", "backward", "scaling",
                                                        "optimizer"};
constexpr std::array<std::string_view, 7> kStateNames = {
    "weight", "moment", "statistic", "scaler", "counter", "accumulator", "random"};

template <class Enum, size_t N>
std::optional<Enum> from_name(const std::array<std::string_view, N>& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

}  // namespace

std::string_view role_name(Role role) { return kRoleNames[static_cast<size_t>(role)]; }
std::optional<Role> role_from_name(std::string_view name) {
  return from_name<Role>(kRoleNames, name);
}
std::string_view state_kind_name(StateKind kind) { return kStateNames[static_cast<size_t>(kind)]; }
std::optional<StateKind> state_kind_from_name(std::string_view name) {
  return from_name<StateKind>(kStateNames, name);
}

// A vector of graphs moves them when it grows.
static_assert(std::is_nothrow_move_constructible_v<Graph>);

std::string op_name(const Node& node) {
  return node.domain.empty() ? node.op.str() : node.domain + "." + node.op;
}

Graph::Graph() { regions_.push_back({}); }

// --- regions -------------------------------------------------------------------------------------

RegionId Graph::add_region(RegionId parent) {
  Region region;
  region.parent = parent;
  regions_.push_back(std::move(region));
  return RegionId{region_count() - 1};
}

RegionId Graph::parent(RegionId region) const { return regions_[region.index].parent; }
std::span<const ValueId> Graph::inputs(RegionId region) const {
  return regions_[region.index].inputs;
}
std::span<const ValueId> Graph::outputs(RegionId region) const {
  return regions_[region.index].outputs;
}
std::string& Graph::region_name(RegionId region) {
  return region == main() ? name : regions_[region.index].name;
}
const std::string& Graph::region_name(RegionId region) const {
  return region == main() ? name : regions_[region.index].name;
}
NodeId Graph::region_owner(RegionId region) const { return regions_[region.index].owner; }

std::vector<ValueId> Graph::initializers(RegionId region) const {
  std::vector<ValueId> found;
  for (ValueId id : regions_[region.index].initializers) {
    if (values_[id.index].alive) found.push_back(id);
  }
  return found;
}

void Graph::set_outputs(RegionId region, std::vector<ValueId> values) {
  Region& data = regions_[region.index];
  for (size_t i = 0; i < data.outputs.size(); ++i) {
    remove_use(data.outputs[i], data.output_use_index[i]);
  }
  data.outputs.clear();
  data.output_use_index.clear();
  for (ValueId value : values) add_output(region, value);
}

void Graph::add_output(RegionId region, ValueId value) {
  Region& data = regions_[region.index];
  data.outputs.push_back(value);
  data.output_use_index.push_back(0);
  add_use(value,
          {UseKind::kRegionOutput, region.index, static_cast<uint32_t>(data.outputs.size() - 1)});
}

// --- values --------------------------------------------------------------------------------------

ValueId Graph::new_value(Value value) {
  const ValueId id{value_count()};
  by_name_.insert(value.name, id);
  values_.emplace_back(std::move(value));
  uses_.emplace_back();
  return id;
}

ValueId Graph::add_input(RegionId region, std::string value_name, ValueType type) {
  Value value;
  value.name = unique_name(value_name);
  value.type = std::move(type);
  value.kind = region == main() ? ValueKind::kInput : ValueKind::kRegionInput;
  value.region = region;
  const ValueId id = new_value(std::move(value));
  regions_[region.index].inputs.push_back(id);
  return id;
}

ValueId Graph::add_initializer(RegionId region, std::string value_name, Tensor tensor) {
  Value value;
  value.name = unique_name(value_name);
  value.type = ValueType::tensor(tensor.dtype(), symbolic(tensor.shape()));
  value.kind = ValueKind::kInitializer;
  value.region = region;
  value.tensor = std::move(tensor);
  const ValueId id = new_value(std::move(value));
  regions_[region.index].initializers.push_back(id);
  return id;
}

void Graph::remove_value(ValueId id) {
  Value& value = values_[id.index];
  assert(!has_uses(id) && value.kind != ValueKind::kResult);
  by_name_.erase(value.name, id);
  value.alive = false;
  value.tensor = {};
  if (value.kind != ValueKind::kInitializer) std::erase(regions_[value.region.index].inputs, id);
}

std::vector<NodeId> Graph::users(ValueId value) const {
  std::vector<NodeId> found;
  for (const Use& use : uses(value)) {
    if (use.by_node()) found.push_back(use.node());
  }
  // One region: the order of its list. Several: by region first, which is the order of nesting.
  std::sort(found.begin(), found.end(), [&](NodeId a, NodeId b) {
    return std::pair(node(a).region, links_[a.index].order) <
           std::pair(node(b).region, links_[b.index].order);
  });
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

ValueId& Graph::used_value(const Use& use) {
  switch (use.kind) {
    case UseKind::kNodeInput:
      return operands_[use.owner].inputs[use.slot];
    case UseKind::kRegionOutput:
      return regions_[use.owner].outputs[use.slot];
    case UseKind::kStateNext:
      break;
  }
  return states_[use.slot].next;
}

uint32_t& Graph::use_position(const Use& use) {
  switch (use.kind) {
    case UseKind::kNodeInput:
      return operands_[use.owner].use_index[use.slot];
    case UseKind::kRegionOutput:
      return regions_[use.owner].output_use_index[use.slot];
    case UseKind::kStateNext:
      break;
  }
  return state_use_index_[use.slot];
}

void Graph::add_use(ValueId value, Use use) {
  auto& list = uses_[value.index];
  use_position(use) = static_cast<uint32_t>(list.size());
  list.push_back(use);
}

void Graph::remove_use(ValueId value, uint32_t position) {
  auto& list = uses_[value.index];
  list[position] = list.back();
  use_position(list[position]) = position;
  list.pop_back();
}

void Graph::replace_use(Use use, ValueId to) {
  ValueId& slot = used_value(use);
  if (slot == to) return;
  if (slot.valid()) remove_use(slot, use_position(use));
  slot = to;
  if (to.valid()) add_use(to, use);
}

void Graph::replace_uses(ValueId from, ValueId to) {
  if (from == to) return;
  for (const Use& use : uses_[from.index]) {
    used_value(use) = to;
    add_use(to, use);
  }
  uses_[from.index].clear();
}

ValueId Graph::find(std::string_view value_name) const {
  return by_name_.find(value_name,
                       [&](ValueId id) -> std::string_view { return values_[id.index].name; });
}

void Graph::rename(ValueId id, std::string new_name) {
  Value& value = values_[id.index];
  if (value.name == new_name) return;
  assert(!find(new_name).valid());
  by_name_.erase(value.name, id);
  by_name_.insert(new_name, id);
  value.name = std::move(new_name);
}

std::string Graph::unique_name(std::string_view hint) {
  std::string candidate(hint.empty() ? std::string_view("value") : hint);
  if (!find(candidate).valid()) return candidate;
  uint32_t& counter = name_counter_[candidate];
  const std::string base = candidate;
  do {
    candidate = base + "_" + std::to_string(++counter);
  } while (find(candidate).valid());
  return candidate;
}

const Tensor* Graph::constant(ValueId id) const {
  if (!id.valid()) return nullptr;
  const Value& value = values_[id.index];
  if (value.kind == ValueKind::kInitializer) {
    // A trainable weight or a state changes from step to step.
    if (value.trainable || state_of(id)) return nullptr;
    return &value.tensor;
  }
  if (value.kind != ValueKind::kResult) return nullptr;
  const Node& producer = nodes_[value.producer.index];
  if (producer.op != "Constant" || !producer.domain.empty()) return nullptr;
  const Attribute* attribute = producer.attributes.find("value");
  return attribute == nullptr ? nullptr : std::get_if<Tensor>(attribute);
}

// --- nodes ---------------------------------------------------------------------------------------

NodeId Graph::create(NodeSpec spec, std::vector<std::string> output_names, InsertPoint at) {
  const NodeId id{node_capacity()};
  Node& node = nodes_.emplace_back();
  links_.emplace_back();
  operands_.emplace_back();
  node.domain = std::move(spec.domain);
  node.op = std::move(spec.op);
  node.name = std::move(spec.name);
  node.attributes = std::move(spec.attributes);
  node.region = at.region;
  ++alive_nodes_;
  for (const auto& [key, attribute] : node.attributes) {
    if (const auto* region = std::get_if<RegionId>(&attribute)) regions_[region->index].owner = id;
    if (const auto* list = std::get_if<std::vector<RegionId>>(&attribute)) {
      for (RegionId region : *list) regions_[region.index].owner = id;
    }
  }
  for (ValueId input : spec.inputs) add_node_input(id, input);
  for (size_t i = 0; i < output_names.size(); ++i) {
    if (output_names[i] == "-") {
      operands_[id.index].outputs.push_back(ValueId{});
    } else {
      add_node_output(id, i, std::move(output_names[i]));
    }
  }
  link(id, at);
  return id;
}

NodeId Graph::create(NodeSpec spec, int output_count, InsertPoint at) {
  return create(std::move(spec), std::vector<std::string>(static_cast<size_t>(output_count)), at);
}

void Graph::remove(NodeId id) {
  for (RegionId region : subgraphs(id)) {
    set_outputs(region, {});
    std::vector<NodeId> body = nodes(region);
    for (auto inner = body.rbegin(); inner != body.rend(); ++inner) remove(*inner);
    for (ValueId value : initializers(region)) remove_value(value);
    while (!regions_[region.index].inputs.empty())
      remove_value(regions_[region.index].inputs.back());
  }
  resize_inputs(id, 0);
  for (ValueId output : operands_[id.index].outputs) {
    if (!output.valid()) continue;
    assert(!has_uses(output));
    by_name_.erase(values_[output.index].name, output);
    values_[output.index].alive = false;
  }
  unlink(id);
  Node& node = nodes_[id.index];
  operands_[id.index].outputs.clear();
  node.attributes = {};
  node.alive = false;
  --alive_nodes_;
}

void Graph::move_before(NodeId id, InsertPoint at) {
  if (at.before == id) return;
  unlink(id);
  link(id, at);
  Node& node = nodes_[id.index];
  if (node.region == at.region) return;
  node.region = at.region;
  for (ValueId output : operands_[id.index].outputs) {
    if (output.valid()) values_[output.index].region = at.region;
  }
  for (RegionId region : subgraphs(id)) regions_[region.index].parent = at.region;
}

ValueId Graph::input(NodeId node, size_t index) const {
  const auto& list = operands_[node.index].inputs;
  return index < list.size() ? list[index] : ValueId{};
}

ValueId Graph::output(NodeId node, size_t index) const {
  const auto& list = operands_[node.index].outputs;
  return index < list.size() ? list[index] : ValueId{};
}

const std::string& Graph::label(NodeId id) const {
  const Node& data = node(id);
  if (!data.name.empty()) return data.name;
  for (ValueId result : operands_[id.index].outputs) {
    if (result.valid()) return value(result).name;
  }
  return data.op;
}

void Graph::set_input(NodeId node, size_t index, ValueId value) {
  while (operands_[node.index].inputs.size() <= index) add_node_input(node, ValueId{});
  replace_use({UseKind::kNodeInput, node.index, static_cast<uint32_t>(index)}, value);
}

void Graph::add_node_input(NodeId id, ValueId value) {
  Operands& operands = operands_[id.index];
  operands.inputs.push_back(value);
  operands.use_index.push_back(0);
  if (!value.valid()) return;
  const auto slot = static_cast<uint32_t>(operands.inputs.size() - 1);
  add_use(value, {UseKind::kNodeInput, id.index, slot});
}

void Graph::resize_inputs(NodeId id, size_t count) {
  auto& [inputs, use_index, outputs] = operands_[id.index];
  while (!inputs.empty() && (inputs.size() > count || !inputs.back().valid())) {
    if (inputs.back().valid()) remove_use(inputs.back(), use_index.back());
    inputs.pop_back();
    use_index.pop_back();
  }
}

ValueId Graph::add_node_output(NodeId id, size_t index, std::string value_name) {
  if (value_name.empty()) {
    const Node& node = nodes_[id.index];
    value_name = (node.name.empty() ? node.op.str() : node.name) + (index == 0 ? "" : "_out");
  }
  Value value;
  value.name = unique_name(value_name);
  value.region = nodes_[id.index].region;
  value.producer = id;
  value.output = static_cast<uint32_t>(index);
  const ValueId result = new_value(std::move(value));
  auto& list = operands_[id.index].outputs;
  while (list.size() <= index) list.push_back({});
  assert(!list[index].valid());
  list[index] = result;
  return result;
}

void Graph::drop_output(NodeId id, size_t index) {
  auto& list = operands_[id.index].outputs;
  assert(list[index].valid() && !has_uses(list[index]));
  Value& value = values_[list[index].index];
  by_name_.erase(value.name, list[index]);
  value.alive = false;
  list[index] = ValueId{};
  while (!list.empty() && !list.back().valid()) list.pop_back();
}

NodeId Graph::first(RegionId region) const { return regions_[region.index].first; }

std::vector<NodeId> Graph::nodes(RegionId region) const {
  std::vector<NodeId> list;
  if (region == main()) list.reserve(alive_nodes_);
  // Each node says only where the next one is: of a large graph each step would wait for memory.
  // Mostly nodes stand in the order in which they were made.
  constexpr uint32_t kAhead = 12;
  const uint32_t last = node_capacity() - 1;
  for (NodeId id = first(region); id.valid(); id = next(id)) {
    list.push_back(id);
    __builtin_prefetch(&links_[std::min(id.index + kAhead, last)]);
  }
  return list;
}

std::vector<NodeId> Graph::all_nodes() const {
  if (region_count() == 1) return nodes(main());
  std::vector<NodeId> list;
  std::vector<NodeId> stack;  // where to go on in each open region
  for (NodeId id = first(main()); id.valid() || !stack.empty();) {
    if (!id.valid()) {
      id = stack.back();
      stack.pop_back();
      continue;
    }
    list.push_back(id);
    const auto inner = subgraphs(id);
    id = next(id);
    if (inner.empty()) continue;
    stack.push_back(id);
    for (size_t i = inner.size(); i-- > 1;) stack.push_back(first(inner[i]));
    id = first(inner[0]);
  }
  return list;
}

std::vector<RegionId> Graph::subgraphs(NodeId node) const {
  std::vector<RegionId> found;
  if (region_count() == 1) return found;  // no look at the node, which is the point of it
  for (const auto& [key, attribute] : nodes_[node.index].attributes) {
    if (const auto* region = std::get_if<RegionId>(&attribute)) found.push_back(*region);
    if (const auto* list = std::get_if<std::vector<RegionId>>(&attribute)) {
      found.insert(found.end(), list->begin(), list->end());
    }
  }
  return found;
}

bool Graph::is_before(NodeId a, NodeId b) const {
  return links_[a.index].order < links_[b.index].order;
}

bool Graph::is_inside(RegionId inner, RegionId outer) const {
  for (RegionId region = inner; region.valid(); region = parent(region)) {
    if (region == outer) return true;
  }
  return false;
}

void Graph::link(NodeId id, InsertPoint at) {
  Region& region = regions_[at.region.index];
  Links& own = links_[id.index];
  own.next = at.before;
  own.prev = at.before.valid() ? prev(at.before) : region.last;
  (own.prev.valid() ? links_[own.prev.index].next : region.first) = id;
  (own.next.valid() ? links_[own.next.index].prev : region.last) = id;

  const int64_t low = own.prev.valid() ? links_[own.prev.index].order : 0;
  if (!own.next.valid()) {
    own.order = low + kOrderStep;
    return;
  }
  const int64_t high = links_[own.next.index].order;
  own.order = low + (high - low) / 2;
  if (own.order == low) make_room(id);
}

void Graph::unlink(NodeId id) {
  Links& own = links_[id.index];
  Region& region = regions_[nodes_[id.index].region.index];
  (own.prev.valid() ? links_[own.prev.index].next : region.first) = own.next;
  (own.next.valid() ? links_[own.next.index].prev : region.last) = own.prev;
  own.prev = own.next = NodeId{};
}

// Bender et al., "Two simplified algorithms for maintaining order in a list" (2002): spreads the
// labels of the smallest aligned range around the node that is sparse enough, which costs O(log n)
// label changes per insertion, amortised.
void Graph::make_room(NodeId id) {
  const int64_t label = links_[id.index].order;
  NodeId begin = id, end = id;  // the first and the last node whose label is in the range
  int64_t count = 1;
  double limit = 1;  // (2 / 1.3)^bits: nodes that a range of 2^bits labels may hold
  for (int bits = 1; bits < kOrderBits; ++bits) {
    limit *= 2 / 1.3;
    const int64_t low = (label >> bits) << bits;
    const int64_t high = low + ((int64_t{1} << bits) - 1);
    for (NodeId p = prev(begin); p.valid() && links_[p.index].order >= low; p = prev(p)) {
      begin = p;
      ++count;
    }
    for (NodeId n = next(end); n.valid() && links_[n.index].order <= high; n = next(n)) {
      end = n;
      ++count;
    }
    const int64_t step = (int64_t{1} << bits) / count;
    if (static_cast<double>(count) > limit || step < 2) continue;
    int64_t order = low + step / 2;
    for (NodeId n = begin;; n = next(n), order += step) {
      links_[n.index].order = order;
      if (n == end) return;
    }
  }
}

// --- training state ------------------------------------------------------------------------------

uint32_t Graph::add_state(ValueId current, ValueId next, StateKind kind) {
  assert(value(current).kind == ValueKind::kInitializer);
  const auto index = static_cast<uint32_t>(states_.size());
  states_.push_back({current, next, kind});
  state_use_index_.push_back(0);
  values_[current.index].state = index + 1;
  add_use(next, {UseKind::kStateNext, 0, index});
  return index;
}

void Graph::set_state_next(uint32_t state, ValueId next) {
  replace_use({UseKind::kStateNext, 0, state}, next);
}

void Graph::remove_state(uint32_t state) {
  remove_use(states_[state].next, state_use_index_[state]);
  values_[states_[state].current.index].state = 0;
  states_.erase(states_.begin() + state);
  state_use_index_.erase(state_use_index_.begin() + state);
  for (uint32_t i = state; i < states_.size(); ++i) {
    values_[states_[i].current.index].state = i + 1;
    uses_[states_[i].next.index][state_use_index_[i]].slot = i;
  }
}

std::optional<uint32_t> Graph::state_of(ValueId current) const {
  const uint32_t state = values_[current.index].state;
  return state == 0 ? std::nullopt : std::optional(state - 1);
}

}  // namespace halfnote
