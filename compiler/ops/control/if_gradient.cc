// The gradient of an If is an If on the same condition.
//
//   y = If (c) {then: a = f(x, w)} {else: b = g(x)}
//     ──▶   dx, dw = If (c) {then: a = f(x, w); gradients of f} {else: b = g(x); dx; zeros}
//
// Each branch computes its forward nodes again: nothing is saved, and only the branch that ran is
// paid for. What one branch does not read has the gradient zero there; what neither gives one has
// none.
#include <set>

#include "base/error.h"
#include "compiler/ir/walk.h"
#include "compiler/ops/control/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::control {
namespace {

/// A branch with its backward nodes, not yet its outputs.
struct Branch {
  RegionId region;
  std::vector<ValueId> gradients;  // of what is wanted; invalid where the branch gives none
};

Branch gradient_branch(GradientContext& rule, const char* name,
                       const std::vector<ValueId>& wanted) {
  Graph& g = rule.graph();
  const RegionId forward = body_of(g, rule.node, name);
  refuse_random(g, forward);
  ValueMap values;
  const RegionId home = rule.b.insert_point().region;
  const RegionId region =
      clone_region(g, home, g, forward, values,
                   {.prefix = g.label(rule.node) + "/grad/", .role = Role::kBackward});
  const std::vector<ValueId> outputs(g.outputs(region).begin(), g.outputs(region).end());
  g.set_outputs(region, {});
  std::vector<GradientContext::Seed> seeds;
  for (size_t i = 0; i < outputs.size() && i < rule.grads.size(); ++i) {
    if (rule.grads[i].valid()) seeds.push_back({outputs[i], rule.grads[i].id});
  }
  return {region, rule.differentiate(region, seeds, wanted)};
}

/// Gradients as outputs of their branch, zeros for those it does not give.
void give(GradientContext& rule, const Branch& branch, const std::vector<ValueId>& wanted,
          const std::vector<size_t>& given) {
  Builder b = body_builder(rule, branch.region);
  std::vector<ValueId> results;
  for (size_t i : given) {
    const Expr like = b.value(wanted[i]);
    results.push_back(branch.gradients[i].valid() ? branch.gradients[i] : zero_gradient(like).id);
  }
  set_results(b, branch.region, std::move(results));
}

/// Removes a region that no node holds, with all that stands in it.
void discard(Graph& g, RegionId region) {
  g.set_outputs(region, {});
  const std::vector<NodeId> nodes = g.nodes(region);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) g.remove(*node);
  for (ValueId value : g.initializers(region)) g.remove_value(value);
}

}  // namespace

RegionId body_of(const Graph& graph, NodeId node, std::string_view attribute) {
  const Attribute* found = graph.node(node).attributes.find(attribute);
  const auto* region = found == nullptr ? nullptr : std::get_if<RegionId>(found);
  if (region != nullptr) return *region;
  throw Error(ErrorCode::kModel, "attribute \"" + std::string(attribute) + "\" is no graph")
      .at({.node = graph.label(node), .op = graph.node(node).op});
}

void refuse_random(const Graph& graph, RegionId body) {
  for (NodeId node : graph.nodes(body)) {
    const OperatorRow* row = find_operator(graph.node(node));
    if (row != nullptr && row->purity == Purity::kRandom) {
      throw Error(ErrorCode::kUnsupported, "its body draws random numbers (" + graph.label(node) +
                                               "), which computed again would be others; move "
                                               "them out of the body");
    }
    for (RegionId inner : graph.subgraphs(node)) refuse_random(graph, inner);
  }
}

void set_results(Builder& b, RegionId region, std::vector<ValueId> values) {
  std::set<ValueId> taken;
  for (ValueId& value : values) {
    const Value& data = b.graph().value(value);
    const bool own = data.kind == ValueKind::kResult && data.region == region;
    if (!own || !taken.insert(value).second) value = b.op("Identity", {b.value(value)}).id;
  }
  b.graph().set_outputs(region, std::move(values));
}

Builder body_builder(GradientContext& rule, RegionId region) {
  Builder b(rule.graph(), rule.graph().end(region), rule.infer);
  b.set_role(rule.b.role());
  b.set_origin(rule.graph().label(rule.node));
  return b;
}

std::vector<Expr> if_gradient(GradientContext& rule) {
  Graph& g = rule.graph();
  const size_t own = g.inputs(rule.node).size();
  std::vector<Expr> results(rule.inputs.size(), rule.b.none());
  std::vector<ValueId> wanted;
  std::vector<size_t> slots;
  for (size_t i = own; i < rule.inputs.size(); ++i) {
    if (!rule.needed[i]) continue;
    wanted.push_back(rule.inputs[i].id);
    slots.push_back(i);
  }
  if (wanted.empty()) return results;
  const Branch then_branch = gradient_branch(rule, "then_branch", wanted);
  const Branch else_branch = gradient_branch(rule, "else_branch", wanted);
  // What neither branch gives a gradient has none, rather than one of zeros.
  std::vector<size_t> given;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (then_branch.gradients[i].valid() || else_branch.gradients[i].valid()) given.push_back(i);
  }
  if (given.empty()) {
    for (const Branch& branch : {then_branch, else_branch}) discard(g, branch.region);
    return results;
  }
  for (const Branch& branch : {then_branch, else_branch}) give(rule, branch, wanted, given);
  const std::vector<Expr> gradients =
      rule.b.ops("If", {rule.inputs[0]}, static_cast<int>(given.size()),
                 {{"then_branch", then_branch.region}, {"else_branch", else_branch.region}});
  for (size_t k = 0; k < given.size(); ++k) {
    // Both branches give the type of the capture's gradient.
    const size_t slot = slots[given[k]];
    g.value(gradients[k].id).type = gradient_type(rule.inputs[slot].type());
    results[slot] = gradients[k];
  }
  return results;
}

}  // namespace halfnote::control
