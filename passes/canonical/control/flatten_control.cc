// flatten-control: control flow and containers of known structure become plain nodes.
//
//   y = If (true) <then_branch = {y1 = Relu(x)} …>      ──▶   y = Relu(x)
//   s = Loop (3, , s0) <body = {… s2 = Add(s1, w)}>     ──▶   s = Add(Add(Add(s0, w), w), w)
//   y = Scan (x) <body = {y1 = MatMul(x1, w)}>          ──▶   Split, MatMul …, Concat
//
// Exact. The copies of a body bear the name of their node and the number of the trip as prefix, the
// inner node's name as origin, and its metadata; what is constant in them is folded as they are
// made, so that conditions and positions that count trips are known. Unrolled is what takes at most
// 4096 nodes (trips times nodes of the body, loops in it written out), 16,384 copies in all of a
// graph. Sequences and optional values whose elements are
// known become tensors (flatten_containers.cc); a longer Loop that only counts becomes a Scan
// (flatten_loop.cc). Leaves alone: conditions, trip counts, lengths and
// positions that depend on data or on open dims, longer loops, graphs that have none of these.
#include "passes/canonical/control/flatten_control.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "compiler/ops/control/trips.h"
#include "passes/canonical/control/conditions.h"
#include "passes/canonical/fold_constants.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

int64_t count_nodes(const Graph& graph, RegionId region) {
  int64_t count = 0;
  for (NodeId node : graph.nodes(region)) {
    ++count;
    for (RegionId inner : graph.subgraphs(node)) count += count_nodes(graph, inner);
  }
  return count;
}

/// The subgraph that an attribute holds.
std::optional<RegionId> body_of(const Graph& graph, NodeId node, const char* name) {
  const Attribute* found = graph.node(node).attributes.find(name);
  const auto* region = found == nullptr ? nullptr : std::get_if<RegionId>(found);
  if (region == nullptr) return std::nullopt;
  return *region;
}

std::optional<bool> truth(const Graph& graph, ValueId value) {
  const Tensor* tensor = graph.constant(value);
  if (tensor == nullptr || tensor->size() != 1) return std::nullopt;
  return tensor->at_as_int(0) != 0;
}

/// One axis or direction of each operand; nothing where the attribute has another length.
std::optional<std::vector<int64_t>> per_operand(const Attributes& attributes, const char* name,
                                                size_t count) {
  std::vector<int64_t> values = attributes.get_ints(name, std::vector<int64_t>(count, 0));
  if (values.size() != count) return std::nullopt;
  return values;
}

/// The operands of a Scan, and what its attributes say of them.
struct ScanForm {
  size_t carried = 0, scans = 0, results = 0;
  int64_t length = 0;
  std::vector<int64_t> input_axes, input_turns, output_axes, output_turns;

  /// Nothing where the length is open or the attributes do not fit.
  static std::optional<ScanForm> of(const Graph& graph, NodeId node, RegionId body) {
    const Attributes& attributes = graph.node(node).attributes;
    const size_t operands = graph.inputs(node).size();
    const auto count = static_cast<size_t>(attributes.get_int("num_scan_inputs", 0));
    if (count < 1 || count > operands || graph.inputs(body).size() != operands) return {};
    ScanForm form;
    form.carried = operands - count;
    form.scans = count;
    if (graph.outputs(body).size() < form.carried) return {};
    form.results = graph.outputs(body).size() - form.carried;
    const auto axes = per_operand(attributes, "scan_input_axes", count);
    const auto turns = per_operand(attributes, "scan_input_directions", count);
    const auto out_axes = per_operand(attributes, "scan_output_axes", form.results);
    const auto out_turns = per_operand(attributes, "scan_output_directions", form.results);
    if (!axes || !turns || !out_axes || !out_turns) return {};
    form.input_axes = *axes;
    form.input_turns = *turns;
    form.output_axes = *out_axes;
    form.output_turns = *out_turns;
    if (!form.measure(graph, node)) return {};
    return form;
  }

 private:
  bool measure(const Graph& graph, NodeId node) {
    for (size_t k = 0; k < scans; ++k) {
      const ValueType& type = graph.value(graph.input(node, carried + k)).type;
      if (!type.is_tensor() || type.rank() < 1) return false;
      input_axes[k] = normalize_axis(input_axes[k], type.rank());
      const Dim& dim = (*type.shape)[static_cast<size_t>(input_axes[k])];
      if (!dim.known() || (k > 0 && dim.value != length)) return false;
      length = dim.value;
    }
    return true;
  }
};

/// The trips of a Loop or Scan as far as they are known before it is written out: nothing if they
/// are not.
std::optional<int64_t> known_trips(const Graph& graph, NodeId node, RegionId body) {
  if (graph.node(node).op == "Scan") {
    const auto form = ScanForm::of(graph, node, body);
    if (form) return form->length;
    return std::nullopt;
  }
  if (graph.node(node).op != "Loop" || graph.inputs(node).empty()) return std::nullopt;
  const Tensor* trips = graph.constant(graph.input(node, 0));
  if (trips == nullptr || trips->size() != 1) return std::nullopt;
  return std::max<int64_t>(0, trips->at_as_int(0));
}

/// The nodes that a region comes to once the loops in it are written out that may be.
int64_t written_nodes(const Graph& graph, RegionId region) {
  int64_t count = 0;
  for (NodeId node : graph.nodes(region)) {
    int64_t inside = 0;
    for (RegionId inner : graph.subgraphs(node)) inside += written_nodes(graph, inner);
    const auto body = graph.node(node).domain.empty() ? body_of(graph, node, "body") : std::nullopt;
    const auto trips = body ? known_trips(graph, node, *body) : std::nullopt;
    const bool unrolls = trips && *trips <= kMaxUnrolledNodes / std::max<int64_t>(1, inside);
    count += unrolls ? *trips * inside : 1 + inside;
  }
  return count;
}

class Flattening {
 public:
  Flattening(Graph& graph, PassContext& context)
      : graph_(graph), context_(context), folder_(graph, context), containers_(graph, context) {}

  bool run() {
    visit_region(graph_.main());
    return containers_.sweep() || changed_;
  }

  bool inline_branches() {
    bool any = false;
    for (NodeId node : graph_.all_nodes()) {
      const Node& data = graph_.node(node);
      if (data.alive && is_op(data, "If")) any |= inline_branch(node);
    }
    return any;
  }

  bool inline_branch(NodeId node) {
    // As in check-nodes, which lets pass what stands in the other branch.
    const std::optional<bool> yes = Conditions(graph_, context_).truth(graph_.input(node, 0));
    if (!yes) return false;
    const auto branch = body_of(graph_, node, *yes ? "then_branch" : "else_branch");
    if (!branch) return false;
    return finish(node, copy_body(node, *branch, hoist(node, *branch), graph_.label(node) + "/"));
  }

 private:
  void visit_region(RegionId region) {
    for (NodeId node : graph_.nodes(region)) {
      if (graph_.node(node).alive) visit(node);
    }
  }

  void visit(NodeId node) {
    const Place place{{}, graph_.label(node), graph_.node(node).op};
    try {
      if (folder_.visit(node) || containers_.visit(node) || flatten(node)) {
        changed_ = true;
        return;
      }
    } catch (Error& error) {
      throw error.within(place);
    }
    for (RegionId region : graph_.subgraphs(node)) visit_region(region);
    std::string label = graph_.label(node);
    const NodeId scan = loop_to_scan(graph_, node, front_, context_);
    if (!scan.valid()) return;
    changed_ = true;
    const Front inside(*this, std::move(label) + "/");
    if (unroll_scan(scan)) return;
    for (RegionId region : graph_.subgraphs(scan)) visit_region(region);
  }

  bool flatten(NodeId node) {
    const Node& data = graph_.node(node);
    if (!data.domain.empty()) return false;
    if (data.op == "If") return inline_branch(node);
    if (data.op == "Loop") return unroll_loop(node);
    if (data.op == "Scan") return unroll_scan(node);
    if (data.op == "SequenceMap") return unroll_map(node);
    return false;
  }

  /// What all names begin with in the body at hand, while this lives: copies of bodies that are
  /// copies have names as long as they are deep.
  class Front {
   public:
    Front(Flattening& all, std::string now)
        : front_(all.front_), before_(std::exchange(front_, std::move(now))) {}
    Front(const Front&) = delete;
    Front& operator=(const Front&) = delete;
    ~Front() { front_ = std::move(before_); }

   private:
    std::string& front_;
    std::string before_;
  };

  /// How many trips of a body may be written out.
  int64_t most_trips(RegionId body) const {
    const int64_t most = std::clamp<int64_t>(left_, 0, kMaxUnrolledNodes);
    return most / std::max<int64_t>(1, written_nodes(graph_, body));
  }

  // --- copies ------------------------------------------------------------------------------------

  /// The initializers of a body stand once, for all its copies.
  ValueMap hoist(NodeId owner, RegionId body) {
    ValueMap values;
    for (ValueId id : graph_.initializers(body)) {
      const Value original = graph_.value(id);
      const std::string name(without_front(original.name, front_));
      values[id] = graph_.add_initializer(graph_.node(owner).region,
                                          graph_.label(owner) + "/" + name, original.tensor);
    }
    return values;
  }

  /// Copies a body before its node and flattens the copies; gives what stands for its outputs.
  std::vector<ValueId> copy_body(NodeId owner, RegionId body, ValueMap values,
                                 const std::string& prefix) {
    const NodeId before = graph_.prev(owner);
    const std::vector<NodeId> originals = graph_.nodes(body);
    left_ -= count_nodes(graph_, body);
    clone_nodes(graph_, graph_.before(owner), graph_, originals, values,
                {.prefix = prefix, .replaced = front_});
    std::vector<NodeId> made;
    NodeId at = before.valid() ? graph_.next(before) : graph_.first(graph_.node(owner).region);
    for (; at != owner; at = graph_.next(at)) made.push_back(at);
    for (size_t i = 0; i < made.size(); ++i) {
      Node& node = graph_.node(made[i]);
      if (node.origin.empty()) node.origin = without_front(graph_.label(originals[i]), front_);
      open_dims(made[i]);
    }
    // What holds the outputs sees them replaced while the copies are flattened.
    NodeSpec spec{"Identity", {}, {}, {}, {}};
    for (ValueId output : graph_.outputs(body)) {
      const auto found = values.find(output);
      spec.inputs.push_back(found == values.end() ? output : found->second);
    }
    const NodeId holder =
        graph_.create(std::move(spec), std::vector<std::string>{}, graph_.before(owner));
    const Front inside(*this, prefix);
    for (NodeId node : made) {
      if (graph_.node(node).alive) visit(node);
    }
    const std::vector<ValueId> outputs(graph_.inputs(holder).begin(), graph_.inputs(holder).end());
    graph_.remove(holder);
    return outputs;
  }

  /// A dim of a body may differ from trip to trip: its name says nothing of a copy.
  void open_dims(NodeId node) {
    for (ValueId output : graph_.outputs(node)) {
      if (!output.valid() || !graph_.value(output).type.shape) continue;
      for (Dim& dim : *graph_.value(output).type.shape) {
        if (!dim.known()) dim = Dim{};
      }
    }
  }

  /// Where a copy stands that may have to go again.
  struct Mark {
    NodeId before;
    uint32_t values = 0;
    bool changed = false;
  };
  Mark mark(NodeId node) const { return {graph_.prev(node), graph_.value_count(), changed_}; }

  bool undo(NodeId node, const Mark& mark) {
    while (graph_.prev(node) != mark.before) graph_.remove(graph_.prev(node));
    for (uint32_t i = mark.values; i < graph_.value_count(); ++i) {
      const Value& value = graph_.value(ValueId{i});
      if (!value.alive || value.kind != ValueKind::kInitializer) continue;
      if (!graph_.has_uses(ValueId{i})) graph_.remove_value(ValueId{i});
    }
    changed_ = mark.changed;
    return false;
  }

  bool finish(NodeId node, const std::vector<ValueId>& results) {
    graph_.node(node).name = graph_.label(node);  // of an unnamed node, before its results go
    for (size_t i = 0; i < graph_.outputs(node).size() && i < results.size(); ++i) {
      give_result(graph_, node, graph_.output(node, i), results[i], context_);
      // The value of a sequence that is passed on by an Identity.
      const NodeId last = graph_.prev(node);
      if (last.valid()) containers_.visit(last);
    }
    graph_.remove(node);
    return true;
  }

  std::string prefix(NodeId node, int64_t trip) const {
    return graph_.label(node) + "/" + std::to_string(trip) + "/";
  }

  // --- the ops -----------------------------------------------------------------------------------

  /// What was collected of one result: stacked, or an empty tensor; invalid if its shape is open.
  ValueId collect(NodeId node, ValueId inner, const std::vector<ValueId>& parts, int64_t axis) {
    Builder b = builder_at(graph_, node, context_);
    if (!parts.empty()) {
      std::vector<Expr> pieces;
      for (ValueId part : parts) pieces.push_back(b.value(part));
      return stack_parts(b, pieces, axis).id;
    }
    const ValueType& type = graph_.value(inner).type;
    if (!type.has_concrete_shape()) return {};
    Shape shape = concrete(*type.shape);
    shape.insert(shape.begin() + normalize_axis(axis, type.rank() + 1), 0);
    return b.constant(Tensor(type.dtype, shape)).id;
  }

  bool unroll_loop(NodeId node) {
    const auto body = body_of(graph_, node, "body");
    if (!body || graph_.inputs(*body).size() < 2) return false;
    const size_t carried = graph_.inputs(*body).size() - 2;
    if (graph_.outputs(*body).size() < carried + 1) return false;
    const bool bounded = graph_.input(node, 0).valid();
    const Tensor* trips = graph_.constant(graph_.input(node, 0));
    std::optional<bool> go =
        graph_.input(node, 1).valid() ? truth(graph_, graph_.input(node, 1)) : std::optional(true);
    if (!go || (*go && bounded && (trips == nullptr || trips->size() != 1))) return false;
    const int64_t limit = most_trips(*body);
    const int64_t last = !*go ? 0 : bounded ? trips->at_as_int(0) : limit + 1;
    if (bounded && last > limit) return false;

    const Mark start = mark(node);
    std::vector<ValueId> state(graph_.inputs(node).begin() + 2, graph_.inputs(node).end());
    state.resize(carried);
    std::vector<std::vector<ValueId>> collected(graph_.outputs(*body).size() - 1 - carried);
    const ValueMap shared = hoist(node, *body);
    for (int64_t trip = 0; trip < last && *go; ++trip) {
      if (trip == limit) return undo(node, start);
      ValueMap values = shared;
      Builder b = builder_at(graph_, node, context_);
      const auto scalar = [&](size_t i, Tensor value, const char* name) {
        const ValueId formal = graph_.inputs(*body)[i];
        values[formal] = b.constant(value.reshaped(shape_of_trip(graph_, formal)), name).id;
      };
      scalar(0, Tensor::scalar<int64_t>(trip), "trip");
      scalar(1, Tensor::scalar<bool>(true), "go");
      for (size_t k = 0; k < carried; ++k) values[graph_.inputs(*body)[2 + k]] = state[k];
      const std::vector<ValueId> results =
          copy_body(node, *body, std::move(values), prefix(node, trip));
      go = truth(graph_, results[0]);
      if (!go && trip + 1 < last) return undo(node, start);
      if (!go) go = false;  // the last trip by count: whether it would go on does not matter
      for (size_t k = 0; k < carried; ++k) state[k] = results[1 + k];
      for (size_t k = 0; k < collected.size(); ++k)
        collected[k].push_back(results[1 + carried + k]);
    }
    for (size_t k = 0; k < collected.size(); ++k) {
      const ValueId inner = graph_.outputs(*body)[1 + carried + k];
      state.push_back(collect(node, inner, collected[k], 0));
      if (!state.back().valid()) return undo(node, start);
    }
    return finish(node, state);
  }

  bool unroll_scan(NodeId node) {
    const auto body = body_of(graph_, node, "body");
    const auto form = body ? ScanForm::of(graph_, node, *body) : std::nullopt;
    if (!form) return false;
    if (form->length > most_trips(*body)) return false;
    const Mark start = mark(node);
    const std::vector<std::vector<ValueId>> parts = scan_parts(node, *form);
    std::vector<ValueId> state(graph_.inputs(node).begin(),
                               graph_.inputs(node).begin() + static_cast<int64_t>(form->carried));
    std::vector<std::vector<ValueId>> collected(form->results);
    const ValueMap shared = hoist(node, *body);
    for (int64_t trip = 0; trip < form->length; ++trip) {
      ValueMap values = shared;
      for (size_t k = 0; k < form->carried; ++k) values[graph_.inputs(*body)[k]] = state[k];
      for (size_t k = 0; k < form->scans; ++k) {
        const int64_t at = form->input_turns[k] != 0 ? form->length - 1 - trip : trip;
        values[graph_.inputs(*body)[form->carried + k]] = parts[k][static_cast<size_t>(at)];
      }
      const std::vector<ValueId> results =
          copy_body(node, *body, std::move(values), prefix(node, trip));
      for (size_t k = 0; k < form->carried; ++k) state[k] = results[k];
      for (size_t k = 0; k < form->results; ++k) {
        auto& list = collected[k];
        list.insert(form->output_turns[k] != 0 ? list.begin() : list.end(),
                    results[form->carried + k]);
      }
    }
    for (size_t k = 0; k < form->results; ++k) {
      const ValueId inner = graph_.outputs(*body)[form->carried + k];
      state.push_back(collect(node, inner, collected[k], form->output_axes[k]));
      if (!state.back().valid()) return undo(node, start);
    }
    return finish(node, state);
  }

  /// The elements of each scan input along its axis.
  std::vector<std::vector<ValueId>> scan_parts(NodeId node, const ScanForm& form) {
    Builder b = builder_at(graph_, node, context_);
    const std::vector<int64_t> ones(static_cast<size_t>(form.length), 1);
    std::vector<std::vector<ValueId>> all;
    for (size_t k = 0; k < form.scans; ++k) {
      all.emplace_back();
      if (form.length == 0) continue;
      const Expr whole = b.value(graph_.input(node, form.carried + k));
      for (Expr part : split_parts(b, whole, form.input_axes[k], ones)) {
        all.back().push_back(b.op("Squeeze", {part, b.ints({form.input_axes[k]})}).id);
      }
    }
    return all;
  }

  /// SequenceMap runs its body on the elements of the first sequence, and of the other sequences;
  /// tensors are the same for all.
  bool unroll_map(NodeId node) {
    const auto body = body_of(graph_, node, "body");
    const std::vector<ValueId>* first = containers_.elements(graph_.input(node, 0));
    if (!body || first == nullptr || graph_.inputs(*body).size() != graph_.inputs(node).size())
      return false;
    const size_t length = first->size();
    for (ValueId input : graph_.inputs(node)) {
      const std::vector<ValueId>* elements = containers_.elements(input);
      if (elements == nullptr && graph_.value(input).type.kind != TypeKind::kTensor) return false;
      if (elements != nullptr && elements->size() != length) return false;
    }
    if (length == 0 || static_cast<int64_t>(length) > most_trips(*body)) return false;
    std::vector<std::vector<ValueId>> collected(graph_.outputs(*body).size());
    const ValueMap shared = hoist(node, *body);
    for (size_t trip = 0; trip < length; ++trip) {
      ValueMap values = shared;
      for (size_t k = 0; k < graph_.inputs(node).size(); ++k) {
        const std::vector<ValueId>* elements = containers_.elements(graph_.input(node, k));
        values[graph_.inputs(*body)[k]] =
            elements == nullptr ? graph_.input(node, k) : (*elements)[trip];
      }
      const std::vector<ValueId> results =
          copy_body(node, *body, std::move(values), prefix(node, static_cast<int64_t>(trip)));
      for (size_t k = 0; k < results.size(); ++k) collected[k].push_back(results[k]);
    }
    std::vector<ValueId> results;
    Builder b = builder_at(graph_, node, context_);
    for (const std::vector<ValueId>& list : collected) {
      std::vector<Expr> elements;
      for (ValueId element : list) elements.push_back(b.value(element));
      results.push_back(b.ops("SequenceConstruct", elements, 1)[0].id);
      containers_.visit(b.last());
    }
    return finish(node, results);
  }

  Graph& graph_;
  PassContext& context_;
  Folder folder_;
  Containers containers_;
  std::string front_;  // of all names in the body at hand
  int64_t left_ = kMaxCopiedNodes;
  bool changed_ = false;
};

/// Is there anything for the pass?
bool has_structure(const Graph& graph) {
  for (NodeId node : graph.nodes()) {
    if (!graph.subgraphs(node).empty()) return true;
    for (ValueId output : graph.outputs(node)) {
      if (!output.valid()) continue;
      const TypeKind kind = graph.value(output).type.kind;
      if (kind == TypeKind::kSequence || kind == TypeKind::kOptional) return true;
    }
    for (ValueId input : graph.inputs(node)) {
      if (!input.valid()) continue;
      const TypeKind kind = graph.value(input).type.kind;
      if (kind == TypeKind::kSequence || kind == TypeKind::kOptional) return true;
    }
  }
  return false;
}

}  // namespace

void give_result(Graph& graph, NodeId node, ValueId output, ValueId value, PassContext& context) {
  if (!output.valid() || !graph.has_uses(output)) return;
  const ValueKind kind = graph.value(value).kind;
  const bool made = kind == ValueKind::kResult || kind == ValueKind::kInitializer;
  const bool own = made && graph.value(value).name.starts_with(graph.label(node) + "/") &&
                   !graph.value(value).trainable;
  if (!own) {
    graph.replace_uses_if(output, value, [](const Use& use) { return use.by_node(); });
    if (!graph.has_uses(output)) return;
    Builder b = builder_at(graph, node, context);
    value = b.op("Identity", {b.value(value)}).id;
  }
  take_place(graph, output, value);
}

std::vector<Expr> split_parts(Builder& b, Expr x, int64_t axis, const std::vector<int64_t>& sizes) {
  if (sizes.size() == 1) return {x};
  return b.ops("Split", {x, b.ints(sizes)}, static_cast<int>(sizes.size()), {{"axis", axis}});
}

Expr stack_parts(Builder& b, const std::vector<Expr>& parts, int64_t axis) {
  std::vector<Expr> raised;
  for (Expr part : parts) raised.push_back(b.op("Unsqueeze", {part, b.ints({axis})}));
  if (raised.size() == 1) return raised[0];
  return b.ops("Concat", raised, 1, {{"axis", axis}})[0];
}

Builder builder_at(Graph& graph, NodeId node, PassContext& context) {
  Builder b(graph, graph.before(node), context.infer);
  b.set_role(graph.node(node).role);
  b.set_origin(graph.label(node));
  b.set_prefix(graph.label(node) + "/");
  return b;
}

bool take_branch(Graph& graph, NodeId node, PassContext& context) {
  const Node& data = graph.node(node);
  return is_op(data, "If") && Flattening(graph, context).inline_branch(node);
}

bool take_branches(Graph& graph, PassContext& context) {
  return has_structure(graph) && Flattening(graph, context).inline_branches();
}

bool flatten_control(Graph& graph, PassContext& context) {
  return has_structure(graph) && Flattening(graph, context).run();
}

}  // namespace halfnote
