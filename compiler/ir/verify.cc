#include "compiler/ir/verify.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "compiler/ir/graph_access.h"

namespace halfnote {
namespace {

constexpr size_t kMaxFindings = 20;

bool is_typed(const ValueType& type) {
  if (type.kind == TypeKind::kUnknown) return false;
  return !type.is_tensor() || type.dtype != DType::kUndefined;
}

/// Same rank and no two different numbers; what is symbolic or unknown may still turn out equal.
bool may_match(const ValueType& a, const ValueType& b) {
  if (!a.shape || !b.shape) return true;
  if (a.shape->size() != b.shape->size()) return false;
  for (size_t i = 0; i < a.shape->size(); ++i) {
    const Dim& x = (*a.shape)[i];
    const Dim& y = (*b.shape)[i];
    if (x.known() && y.known() && x.value != y.value) return false;
  }
  return true;
}

bool may_take(const ValueType& state, const ValueType& next) {
  return next.is_tensor() && next.dtype == state.dtype && may_match(next, state);
}

/// Is it the type of the tensor, and all numbers?
bool is_type_of(const ValueType& type, const Tensor& tensor) {
  const Shape& shape = tensor.shape();
  return type.is_tensor() && type.dtype == tensor.dtype() && type.shape &&
         std::equal(type.shape->begin(), type.shape->end(), shape.begin(), shape.end(),
                    [](const Dim& dim, int64_t size) { return dim.is(size); });
}

class Verifier {
 public:
  Verifier(const Graph& graph, const VerifyOptions& options, bool is_function)
      : graph_(graph),
        options_(options),
        is_function_(is_function),
        position_(graph.node_capacity(), kNowhere),
        reached_(graph.region_count(), false),
        listed_(graph.value_count(), false),
        made_(graph.value_count(), false) {}

  std::vector<std::string> run() {
    walk_regions();
    if (!findings_.empty()) return std::move(findings_);  // the rest relies on sound lists
    check_unreached();
    for (uint32_t i = 0; i < graph_.value_count(); ++i) made_[i] = is_result_of_its_producer(i);
    for (RegionId region : order_) check_region(region);
    for (uint32_t i = 0; i < graph_.value_count(); ++i) check_value(ValueId{i});
    check_names();
    for (uint32_t i = 0; i < graph_.states().size(); ++i) check_state(i);
    if (reads_ != listed_uses_ || !findings_.empty()) {
      for (uint32_t i = 0; i < graph_.value_count(); ++i) check_uses(ValueId{i});
    }
    return std::move(findings_);
  }

 private:
  static constexpr uint32_t kNowhere = Handle<struct Tag>::kInvalid;

  void report(std::string finding) { findings_.push_back(std::move(finding)); }

  std::string name_of(NodeId id) const {
    if (!id.valid()) return "no node";
    const Node& node = graph_.node(id);
    return "node \"" + (node.name.empty() ? "#" + std::to_string(id.index) : node.name) + "\" (" +
           node.op + ")";
  }
  std::string name_of(ValueId id) const {
    if (!id.valid()) return "an absent value";
    if (id.index >= graph_.value_count()) return "a value that does not exist";
    return "value \"" + graph_.value(id).name + "\"";
  }
  std::string name_of(RegionId id) const {
    return id == graph_.main() ? "the graph" : "region " + std::to_string(id.index);
  }

  /// Who reads, for messages.
  std::string name_of(const Use& use) const {
    switch (use.kind) {
      case UseKind::kNodeInput:
        return name_of(NodeId{use.owner});
      case UseKind::kRegionOutput:
        return "output " + std::to_string(use.slot) + " of " + name_of(RegionId{use.owner});
      case UseKind::kStateNext:
        break;
    }
    return "state \"" + graph_.value(graph_.states()[use.slot].current).name + "\"";
  }

  // --- regions and lists of nodes ----------------------------------------------------------------

  /// Visits all regions from the main one; a region that is reached twice is not walked again, so
  /// this ends.
  void walk_regions() {
    reached_[0] = true;
    order_.push_back(graph_.main());
    if (graph_.region_owner(graph_.main()).valid()) report("the main region has an owner");
    if (graph_.parent(graph_.main()).valid()) report("the main region has a parent");
    for (size_t i = 0; i < order_.size(); ++i) walk_nodes(order_[i]);
  }

  void walk_nodes(RegionId region) {
    NodeId before;
    uint32_t position = 0;
    for (NodeId id = graph_.first(region); id.valid(); id = graph_.next(id)) {
      if (position_[id.index] != kNowhere) return report(name_of(id) + " is linked twice");
      position_[id.index] = position++;
      ++reached_nodes_;
      check_link(region, before, id);
      for (RegionId inner : graph_.subgraphs(id)) enter(inner, id);
      before = id;
    }
    if (GraphAccess::last(graph_, region) != before) {
      report("the last node of " + name_of(region) + " is not the end of its list");
    }
  }

  void check_link(RegionId region, NodeId before, NodeId id) {
    const Node& node = graph_.node(id);
    if (!node.alive) report(name_of(id) + " is removed but still linked");
    if (node.region != region) report(name_of(id) + " says it is in another region");
    if (graph_.prev(id) != before) report(name_of(id) + " is not linked to the node before it");
    if (before.valid() && GraphAccess::order(graph_, before) >= GraphAccess::order(graph_, id)) {
      report(name_of(id) + " does not have a greater order than the node before it");
    }
  }

  void enter(RegionId region, NodeId owner) {
    if (!region.valid() || region.index >= graph_.region_count()) {
      return report(name_of(owner) + " holds a region that does not exist");
    }
    if (reached_[region.index]) return report(name_of(region) + " is held twice");
    reached_[region.index] = true;
    order_.push_back(region);
    if (graph_.region_owner(region) != owner) {
      report(name_of(region) + " is held by " + name_of(owner) + " but owned by " +
             name_of(graph_.region_owner(region)));
    }
    if (graph_.parent(region) != graph_.node(owner).region) {
      report(name_of(region) + " does not stand below the region of its owner");
    }
  }

  void check_unreached() {
    if (reached_nodes_ != graph_.node_count()) {
      report("the graph counts " + std::to_string(graph_.node_count()) + " nodes but links " +
             std::to_string(reached_nodes_));
    }
    for (uint32_t i = 1; i < graph_.region_count(); ++i) {
      const RegionId region{i};
      if (reached_[i]) continue;
      const bool empty = !graph_.first(region).valid() && graph_.inputs(region).empty() &&
                         graph_.outputs(region).empty() && graph_.initializers(region).empty();
      if (!empty) report(name_of(region) + " is held by no node but is not empty");
    }
  }

  // --- operands ----------------------------------------------------------------------------------

  void check_region(RegionId region) {
    for (ValueId input : graph_.inputs(region)) check_input(region, input);
    for (NodeId id = graph_.first(region); id.valid(); id = graph_.next(id)) check_node(id);
    const auto outputs = graph_.outputs(region);
    for (uint32_t slot = 0; slot < outputs.size(); ++slot) {
      const Use use{UseKind::kRegionOutput, region.index, slot};
      if (!outputs[slot].valid()) {
        report(name_of(use) + " is absent");
        continue;
      }
      check_operand(outputs[slot], use, region, NodeId{});
    }
  }

  void check_input(RegionId region, ValueId id) {
    const Value& value = graph_.value(id);
    listed_[id.index] = true;
    const ValueKind kind = region == graph_.main() ? ValueKind::kInput : ValueKind::kRegionInput;
    if (!value.alive) report(name_of(id) + " is removed but still an input");
    if (value.kind != kind || value.region != region) {
      report(name_of(id) + " is an input of " + name_of(region) + " but says otherwise");
    }
  }

  void check_node(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.op.empty()) report(name_of(id) + " has no op");
    const auto inputs = graph_.inputs(id);
    for (uint32_t slot = 0; slot < inputs.size(); ++slot) {
      if (!inputs[slot].valid()) continue;
      check_operand(inputs[slot], {UseKind::kNodeInput, id.index, slot}, node.region, id);
    }
    for (uint32_t slot = 0; slot < graph_.outputs(id).size(); ++slot) {
      const ValueId output = graph_.output(id, slot);
      if (output.valid()) check_result(id, output, slot);
    }
    if (is_function_) return;
    for (const auto& [key, attribute] : node.attributes) {
      if (!std::holds_alternative<AttributeReference>(attribute)) continue;
      report("attribute \"" + key + "\" of " + name_of(id) +
             " is a reference, which only a function body may hold");
    }
  }

  void check_result(NodeId id, ValueId output, uint32_t slot) {
    const Value& value = graph_.value(output);
    if (!value.alive) report(name_of(output) + " is removed but still a result");
    const bool agrees = value.kind == ValueKind::kResult && value.producer == id &&
                        value.output == slot && value.region == graph_.node(id).region;
    if (!agrees) report(name_of(output) + " is a result of " + name_of(id) + " but says otherwise");
  }

  /// A read of `id` in `region` by `node`, or by the end of the region.
  void check_operand(ValueId id, const Use& use, RegionId region, NodeId node) {
    if (id.index >= graph_.value_count())
      return report(name_of(use) + " reads a value that does not exist");
    const auto uses = graph_.uses(id);
    const uint32_t position = GraphAccess::use_index(graph_, use);
    if (position >= uses.size() || !(uses[position] == use)) {
      report(name_of(use) + " reads " + name_of(id) + ", whose list of uses does not say so");
    }
    ++reads_;
    const Value& value = graph_.value(id);
    if (!value.alive) return report(name_of(use) + " reads " + name_of(id) + ", which is removed");
    // Up to the region of the value: there its definition must stand before the node that holds the
    // reader.
    NodeId at = node;
    for (RegionId r = region; r != value.region; r = graph_.parent(r)) {
      if (!r.valid())
        return report(name_of(use) + " reads " + name_of(id) + " of a region it is not in");
      at = graph_.region_owner(r);
    }
    if (value.kind != ValueKind::kResult) return;
    if (!made_[id.index] || position_[value.producer.index] == kNowhere) {
      return report(name_of(use) + " reads " + name_of(id) +
                    ", whose producer is not in the graph");
    }
    // The end of a region comes after all its nodes.
    if (at.valid() && position_[value.producer.index] >= position_[at.index]) {
      report(name_of(use) + " reads " + name_of(id) + " before it is defined");
    }
  }

  // --- values and states -------------------------------------------------------------------------

  void check_value(ValueId id) {
    const Value& value = graph_.value(id);
    if (!value.alive) {
      if (graph_.has_uses(id)) report("removed " + name_of(id) + " has uses");
      return;
    }
    if (value.name.empty()) report("value #" + std::to_string(id.index) + " has no name");
    if (id.index % options_.name_stride == 0 && graph_.find(value.name) != id) {
      report("the name of " + name_of(id) + " leads to another value, or to none");
    }
    listed_uses_ += graph_.uses(id).size();
    if (value.kind == ValueKind::kInitializer) return check_initializer(id);
    if (value.kind == ValueKind::kResult && !made_[id.index]) {
      report(name_of(id) + " is not a result of its producer");
    }
    if (value.kind != ValueKind::kResult && !listed_[id.index]) {
      report(name_of(id) + " is an input of no region");
    }
    if (value.trainable) report(name_of(id) + " is trainable but no initializer");
    if (options_.typed && !is_typed(value.type)) report(name_of(id) + " has no type");
  }

  /// Does the list of a value say what is not so? Each read was found at a place of its own in the
  /// list of its value: where there are as many reads as uses are listed, there are no others.
  void check_uses(ValueId id) {
    if (!graph_.value(id).alive) return;
    const auto uses = graph_.uses(id);
    for (uint32_t i = 0; i < uses.size(); ++i) {
      if (reader_of(uses[i]) != id) {
        report(name_of(id) + " lists a use that does not exist");
      } else if (GraphAccess::use_index(graph_, uses[i]) != i) {
        report(name_of(id) + " lists a use whose reader points to another place of the list");
      }
    }
  }

  /// Each value was found by its name: what there is besides leads to none.
  void check_names() {
    size_t alive = 0;
    for (uint32_t i = 0; i < graph_.value_count(); ++i) alive += graph_.value(ValueId{i}).alive;
    if (findings_.empty() && GraphAccess::name_count(graph_) != alive) {
      report("the graph keeps " + std::to_string(GraphAccess::name_count(graph_)) + " names for " +
             std::to_string(alive) + " values");
    }
  }

  bool is_result_of_its_producer(uint32_t index) const {
    const Value& value = graph_.value(ValueId{index});
    return value.kind == ValueKind::kResult && value.producer.index < graph_.node_capacity() &&
           graph_.output(value.producer, value.output).index == index &&
           graph_.node(value.producer).alive;
  }

  /// What the place that a use speaks of really holds.
  ValueId reader_of(const Use& use) const {
    const auto at = [&](std::span<const ValueId> list) {
      return use.slot < list.size() ? list[use.slot] : ValueId{};
    };
    switch (use.kind) {
      case UseKind::kNodeInput:
        return use.owner < graph_.node_capacity() ? at(graph_.inputs(NodeId{use.owner}))
                                                  : ValueId{};
      case UseKind::kRegionOutput:
        return use.owner < graph_.region_count() ? at(graph_.outputs(RegionId{use.owner}))
                                                 : ValueId{};
      case UseKind::kStateNext:
        break;
    }
    return use.slot < graph_.states().size() ? graph_.states()[use.slot].next : ValueId{};
  }

  void check_initializer(ValueId id) {
    const Value& value = graph_.value(id);
    if (!value.tensor.defined()) return report("initializer " + name_of(id) + " has no data");
    if (!is_type_of(value.type, value.tensor)) {
      const auto type = ValueType::tensor(value.tensor.dtype(), symbolic(value.tensor.shape()));
      report("initializer " + name_of(id) + " is " + to_string(value.type) + " but its data is " +
             to_string(type));
    }
    if (value.region.index >= reached_.size() || !reached_[value.region.index]) {
      report("initializer " + name_of(id) + " is in a region that no node holds");
    }
  }

  void check_state(uint32_t index) {
    const State& state = graph_.states()[index];
    if (state.current.index >= graph_.value_count()) {
      return report("state " + std::to_string(index) + " has no current value");
    }
    const auto what = [&] { return name_of(Use{UseKind::kStateNext, 0, index}); };
    const Value& current = graph_.value(state.current);
    if (!current.alive || current.kind != ValueKind::kInitializer ||
        current.region != graph_.main()) {
      return report(what() + " is no initializer of the graph");
    }
    if (graph_.state_of(state.current) != index) report(what() + " has two new values");
    if (!state.next.valid()) return report(what() + " has no new value");
    check_operand(state.next, {UseKind::kStateNext, 0, index}, graph_.main(), NodeId{});
    if (state.next.index >= graph_.value_count()) return;
    const ValueType& next = graph_.value(state.next).type;
    if (!is_typed(next)) return;  // reported with the value where types are asked for
    if (!may_take(current.type, next)) {
      report(what() + " is " + to_string(current.type) + " but its new value \"" +
             graph_.value(state.next).name + "\" is " + to_string(next));
    }
  }

  const Graph& graph_;
  const VerifyOptions& options_;
  bool is_function_;
  std::vector<uint32_t> position_;  // of a node in its region
  std::vector<bool> reached_;       // regions
  std::vector<bool> listed_;        // values that are inputs of a region
  std::vector<bool> made_;          // values that are results of their producers
  std::vector<RegionId> order_;
  uint32_t reached_nodes_ = 0;
  size_t reads_ = 0, listed_uses_ = 0;
  std::vector<std::string> findings_;
};

[[noreturn]] void refuse(const std::string& what, const std::vector<std::string>& findings,
                         const VerifyOptions& options, const std::string& file) {
  std::string list;
  for (size_t i = 0; i < findings.size() && i < kMaxFindings; ++i) {
    list += (i == 0 ? "" : "; ") + findings[i];
  }
  if (findings.size() > kMaxFindings) {
    list += "; and " + std::to_string(findings.size() - kMaxFindings) + " more";
  }
  throw Error(options.code, what + " is not valid: " + list).at({file, "", ""});
}

void verify_graph(const Graph& graph, const std::string& what, const VerifyOptions& options,
                  bool is_function, const std::string& file) {
  const auto findings = Verifier(graph, options, is_function).run();
  if (!findings.empty()) refuse(what, findings, options, file);
}

/// The initialization of a step against the step's and the model's initializers.
std::vector<std::string> check_bindings(const Model& model, const TrainingStep& step) {
  std::vector<std::string> findings;
  if (!step.initialization.inputs().empty()) {
    findings.emplace_back("the initialization has inputs");
  }
  std::unordered_map<std::string_view, ValueId> outputs;
  for (ValueId value : step.initialization.outputs()) {
    outputs.emplace(step.initialization.value(value).name, value);
  }
  std::set<std::string_view> bound;
  for (const auto& [target, source] : step.initialization_binding) {
    if (!bound.insert(target).second) findings.push_back("\"" + target + "\" is initialized twice");
    const Graph& home = step.graph.find(target).valid() ? step.graph : model.graph;
    const ValueId initializer = home.find(target);
    if (!initializer.valid() || home.value(initializer).kind != ValueKind::kInitializer) {
      findings.push_back("\"" + target + "\" is initialized but is no initializer");
      continue;
    }
    const auto output = outputs.find(source);
    if (output == outputs.end()) {
      findings.push_back("\"" + source + "\" is no output of the initialization");
      continue;
    }
    const ValueType& got = step.initialization.value(output->second).type;
    const ValueType& want = home.value(initializer).type;
    if (got.is_tensor() && got.dtype != want.dtype) {
      findings.push_back("\"" + target + "\" is " + to_string(want) + " but is initialized with " +
                         to_string(got));
    }
  }
  return findings;
}

}  // namespace

void verify(const Graph& graph, const VerifyOptions& options) {
  verify_graph(graph, "graph \"" + graph.name + "\"", options, false, "");
}

void verify(const Model& model, const VerifyOptions& options) {
  verify(
      model, [](const Graph&) { return true; }, options);
}

void verify(const Model& model, const std::function<bool(const Graph&)>& wanted,
            const VerifyOptions& options) {
  const auto check = [&](const Graph& graph, const std::string& what) {
    if (wanted(graph)) verify_graph(graph, what, options, false, model.source);
  };
  check(model.graph, "graph \"" + model.graph.name + "\"");
  const VerifyOptions untyped{false, options.code, options.name_stride};
  for (const Function& function : model.functions) {
    if (!wanted(function.body)) continue;
    const std::string name = "function \"" + function.domain +
                             (function.domain.empty() ? "" : ".") + function.name + "\"";
    verify_graph(function.body, name, untyped, true, model.source);
  }
  std::set<std::string> names;
  for (const TrainingStep& step : model.training) {
    const std::string what = "training step \"" + step.name + "\"";
    check(step.graph, what);
    check(step.initialization, "the initialization of " + what);
    auto findings = check_bindings(model, step);
    if (!names.insert(step.name).second) findings.emplace_back("its name is taken");
    if (!findings.empty()) refuse(what, findings, options, model.source);
  }
}

void check_state_types(const Graph& graph) {
  for (const State& state : graph.states()) {
    const Value &current = graph.value(state.current), &next = graph.value(state.next);
    if (!is_typed(next.type) || may_take(current.type, next.type)) continue;
    throw Error(ErrorCode::kModel, "update_binding: \"" + next.name +
                                       "\" cannot be the new value of \"" + current.name + "\"")
        .expected(to_string(current.type) + ", as the initializer is", to_string(next.type));
  }
}

}  // namespace halfnote
