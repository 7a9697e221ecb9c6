#include "passes/train/backward.h"

#include <algorithm>

#include "compiler/ir/model.h"
#include "compiler/ir/walk.h"
#include "compiler/ops/rule_support.h"
#include "passes/train/gradient_path.h"

namespace halfnote {
namespace {

/// Every op on the way that has no gradient, in the order of the model; `nodes` are last first.
void note_missing(const Graph& graph, const std::vector<NodeId>& nodes, UnsupportedOps& problems) {
  for (auto id = nodes.rbegin(); id != nodes.rend(); ++id) {
    const OperatorRow* row = find_operator(graph.node(*id));
    if (row != nullptr && row->gradient != nullptr) continue;
    problems.add(graph, *id, why_no_gradient(graph, *id));
  }
}

}  // namespace

Backward::Backward(Graph& graph, RegionId region, const InferNode& infer, UnsupportedOps& problems)
    : graph_(graph), infer_(infer), problems_(problems), builder_(graph, graph.end(region), infer) {
  builder_.set_role(Role::kBackward);
}

void Backward::seed(ValueId value, Expr gradient) {
  auto [found, is_new] = gradients_.try_emplace(value, gradient);
  if (!is_new) found->second = found->second + gradient;
}

void Backward::run(const std::vector<NodeId>& nodes, const std::vector<ValueId>& sources) {
  const std::vector<bool> reached = reached_from(graph_, nodes, sources);
  std::vector<ValueId> seeds;
  for (const auto& [value, gradient] : gradients_) seeds.push_back(value);
  const std::vector<NodeId> order = nodes_between(graph_, nodes, reached, seeds);
  note_missing(graph_, order, problems_);
  for (NodeId node : order) visit(node, reached);
}

void Backward::ask(const std::vector<NodeId>& nodes, const std::vector<ValueId>& sources,
                   std::span<const ValueId> ends, const std::function<bool(NodeId)>& judged) {
  const std::vector<bool> reached = reached_from(graph_, nodes, sources);
  std::vector<NodeId> order = nodes_between(graph_, nodes, reached, ends);
  const std::vector<bool> wanted = wanted_by(graph_, order, ends);
  std::erase_if(order, [&](NodeId node) { return !judged(node); });
  ask_rules(order, reached, wanted, judged);
}

void Backward::ask_rules(const std::vector<NodeId>& order, const std::vector<bool>& reached,
                         const std::vector<bool>& wanted,
                         const std::function<bool(NodeId)>& judged) {
  note_missing(graph_, order, problems_);
  asking_ = true;
  for (NodeId node : order) {
    const OperatorRow* row = find_operator(graph_.node(node));
    if (row == nullptr || row->gradient == nullptr) continue;
    for (RegionId body : graph_.subgraphs(node)) ask_body(node, body, reached, judged);
    if (!has_known_types(graph_, node)) continue;
    // Any gradient will do, if it has the type of its value: the value itself has. None comes to a
    // result that is only kept: statistics, or what gradients read that a pass has made already.
    for (ValueId output : graph_.outputs(node)) {
      if (!output.valid() || !wanted[output.index]) continue;
      gradients_.insert_or_assign(output, builder_.value(output));
    }
    try {
      visit(node, reached);
    } catch (const Error&) {  // the model is wrong there: that is told when all else is right
    }
  }
}

/// Asks what stands in a body, by its own names: what it is given may have a gradient if an operand
/// of the node or a capture has.
void Backward::ask_body(NodeId node, RegionId body, const std::vector<bool>& reached,
                        const std::function<bool(NodeId)>& judged) {
  std::vector<ValueId> sources;
  bool any = false;
  for (ValueId input : graph_.inputs(node)) any |= input.valid() && reached[input.index];
  for (ValueId capture : captures(graph_, node)) {
    if (capture.index < reached.size() && reached[capture.index]) sources.push_back(capture);
  }
  if (any || !sources.empty()) {
    for (ValueId input : graph_.inputs(body)) {
      if (is_float(graph_.value(input).type.dtype)) sources.push_back(input);
    }
  }
  const std::vector<ValueId> ends(graph_.outputs(body).begin(), graph_.outputs(body).end());
  Backward inner(graph_, body, infer_, problems_);
  inner.ask(graph_.nodes(body), sources, ends, judged);
}

ValueId Backward::gradient(ValueId value) const {
  const auto found = gradients_.find(value);
  return found == gradients_.end() ? ValueId{} : found->second.id;
}

void Backward::visit(NodeId node, const std::vector<bool>& reached) {
  GradientContext rule{builder_, node, {}, {}, {}, {}, infer_};
  bool any = false;
  for (ValueId output : graph_.outputs(node)) {
    rule.outputs.push_back(builder_.value(output));
    const auto found = output.valid() ? gradients_.find(output) : gradients_.end();
    rule.grads.push_back(found == gradients_.end() ? builder_.none() : found->second);
    any |= rule.grads.back().valid();
  }
  if (!any) return;
  const std::vector<ValueId> inputs = operands_of(graph_, node);
  for (ValueId input : inputs) {
    rule.inputs.push_back(builder_.value(input));
    rule.needed.push_back(input.valid() && input.index < reached.size() && reached[input.index]);
  }
  rule.differentiate = [this](RegionId region, const std::vector<GradientContext::Seed>& seeds,
                              const std::vector<ValueId>& sources) {
    UnsupportedOps told;  // by `ask_body`
    Backward inner(graph_, region, infer_, asking_ ? told : problems_);
    const std::vector<NodeId> forward = graph_.nodes(region);
    for (const auto& [value, gradient] : seeds) inner.seed(value, inner.builder_.value(gradient));
    inner.run(forward, sources);
    std::vector<ValueId> gradients;
    for (ValueId source : sources) gradients.push_back(inner.gradient(source));
    return gradients;
  };
  const Node& data = graph_.node(node);
  builder_.set_origin(graph_.label(node));
  const Place place{{}, data.name, data.op};
  const std::vector<bool> needed = rule.needed;
  const std::vector<Expr> results = gradient_of(node, rule, place);
  if (asking_) note_given(node, inputs.size(), results);
  for (size_t i = 0; i < results.size() && i < inputs.size(); ++i) {
    if (results[i].valid() && needed[i] && !asking_) contribute(inputs[i], results[i], place);
  }
}

void Backward::note_given(NodeId node, size_t operands, const std::vector<Expr>& results) {
  std::vector<bool>& given = given_[node];
  given.assign(operands, false);
  for (size_t i = 0; i < std::min(operands, results.size()); ++i) given[i] = results[i].valid();
}

bool Backward::gives(NodeId node, size_t i) const {
  const auto found = given_.find(node);
  return found == given_.end() || found->second[i];
}

/// What the rule gives. A rule that refuses is noted; the operands themselves stand in for its
/// gradients, so that the nodes before it are asked too.
std::vector<Expr> Backward::gradient_of(NodeId node, GradientContext& rule, const Place& place) {
  const OperatorRow* row = find_operator(graph_.node(node));
  if (row == nullptr || row->gradient == nullptr) return rule.inputs;  // noted already
  const std::vector<Expr> operands = rule.inputs;
  try {
    return row->gradient(rule);
  } catch (Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw error.within(place);
    const NodeId other = undone_otherwise(graph_, node);
    problems_.add(graph_, node,
                  other.valid() ? "it does not undo " + graph_.label(other) +
                                      ": another scale, zero point or axis"
                                : error.problem(),
                  other.valid() ? "" : error.hint_text());
    return operands;
  }
}

void Backward::contribute(ValueId value, Expr gradient, const Place& place) {
  const ValueType& to = graph_.value(value).type;
  const ValueType& from = gradient.type();
  if (from.dtype != gradient_dtype(to.dtype) || from.rank() != to.rank()) {
    throw Error(ErrorCode::kInternal, "a gradient rule gave another type than its operand's")
        .at(place)
        .expected(to_string(gradient_type(to)), to_string(from));
  }
  seed(value, gradient);
}

}  // namespace halfnote
