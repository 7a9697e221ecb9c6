// fold_factors: gradients are unscaled and clipped where they are read, not in passes over memory.
//
//   f = AllFinite (g, …)                  n, f = GlobalNorm <scaled = 1> (g, …, s)
//   a = Mul (Cast <f32> (g), s)           w1, … = AdamW (w, g, …, t, f, s, c)
//   n = GlobalNorm (a, …)          ──▶
//   b = Mul (a, c)
//   w1, … = AdamW (w, b, …, t, f)
//
// So a step reads each gradient twice: to judge all of them (are they finite, how long are they),
// and to update. Exact: the readers round as Cast and Mul do, one factor after the other. Leaves
// alone: factors that are no scalars, gradients that anything else reads too, a norm of gradients
// with different factors.
#include "passes/device/update/fold_factors.h"

#include <algorithm>
#include <set>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"
#include "passes/pass_through.h"

namespace halfnote {
namespace {

constexpr size_t kFactors = 2;  // that an optimizer takes

/// A gradient before it is widened and scaled.
struct Raw {
  ValueId source;
  std::vector<ValueId> factors;  // in the order in which they are multiplied
};

class FactorFolder {
 public:
  explicit FactorFolder(Graph& graph) : graph_(graph) {}

  bool run() {
    for (const NodeId node : graph_.nodes()) {
      if (is_ours(node, "GlobalNorm")) fold_norm(node);
      if (is_ours(node, "AllFinite")) fold_check(node);
    }
    for (const NodeId node : graph_.nodes()) {
      if (commit_of(node)) fold_update(node);
    }
    for (const NodeId node : graph_.nodes()) {
      if (graph_.node(node).alive && is_ours(node, "GlobalNorm")) join_check(node);
    }
    for (const ValueId value : passed_) remove_unread(value);
    return changed_;
  }

 private:
  bool is_ours(NodeId node, std::string_view op) const {
    return graph_.node(node).domain == kHalfnoteDomain && graph_.node(node).op == op;
  }

  /// The input `commit` of an optimizer node; nothing for others.
  std::optional<size_t> commit_of(NodeId node) const {
    const OperatorRow* row = find_operator(graph_.node(node));
    if (row == nullptr || row->commit_input < 0) return std::nullopt;
    return static_cast<size_t>(row->commit_input);
  }

  bool is_scalar(ValueId value) const {
    const ValueType& type = graph_.value(value).type;
    return type.has_concrete_shape() && type.shape->empty();
  }

  bool is_mul(NodeId node) const { return is_op(graph_, node, "Mul"); }

  /// Do only nodes that can scale it themselves read the gradient?
  bool is_only_judged(ValueId value) const {
    return std::ranges::all_of(graph_.uses(value), [&](const Use& use) {
      if (!use.by_node() || graph_.node(use.node()).region != graph_.main()) return false;
      if (is_ours(use.node(), "GlobalNorm") || is_ours(use.node(), "AllFinite")) return true;
      if (commit_of(use.node())) return use.slot == 1;
      return is_mul(use.node()) && is_scalar(graph_.input(use.node(), 1 - use.slot)) &&
             is_only_judged(graph_.output(use.node()));
    });
  }

  /// Goes back over products with scalars, at most `factors` of them, and one widening cast.
  Raw raw_of(ValueId gradient, size_t factors) {
    Raw raw{gradient, {}};
    while (raw.factors.size() < factors) {
      const NodeId node = producer(graph_, raw.source);
      if (!node.valid() || !is_mul(node) || !is_only_judged(raw.source)) break;
      const ValueId a = graph_.input(node, 0), b = graph_.input(node, 1);
      if (!is_scalar(a) && !is_scalar(b)) break;
      raw.factors.insert(raw.factors.begin(), is_scalar(b) ? b : a);
      raw.source = is_scalar(b) ? a : b;
    }
    const NodeId node = producer(graph_, raw.source);
    if (!node.valid() || !is_cast(graph_.node(node)) || !is_only_judged(raw.source)) return raw;
    if (is_16bit_float(graph_.value(graph_.input(node, 0)).type.dtype) &&
        graph_.value(raw.source).type.dtype == DType::kF32) {
      raw.source = graph_.input(node, 0);
    }
    return raw;
  }

  void replace(NodeId node, size_t slot, ValueId by) {
    const ValueId old = graph_.input(node, slot);
    if (old == by) return;
    graph_.set_input(node, slot, by);
    passed_.push_back(old);
    changed_ = true;
  }

  void fold_norm(NodeId node) {
    std::vector<Raw> all;
    for (const ValueId gradient : graph_.inputs(node)) all.push_back(raw_of(gradient, 1));
    const auto same = [&](const Raw& raw) { return raw.factors == all.front().factors; };
    const bool wide = std::ranges::any_of(
        all, [&](const Raw& raw) { return graph_.value(raw.source).type.dtype == DType::kF64; });
    if (wide || !std::ranges::all_of(all, same)) return;
    for (size_t i = 0; i < all.size(); ++i) replace(node, i, all[i].source);
    if (all.front().factors.empty()) return;
    graph_.add_node_input(node, all.front().factors.front());
    graph_.node(node).attributes.set("scaled", int64_t{1});
  }

  void fold_check(NodeId node) {
    for (size_t i = 0; i < graph_.inputs(node).size(); ++i) {
      replace(node, i, raw_of(graph_.input(node, i), 0).source);
    }
  }

  void fold_update(NodeId node) {
    const ValueId gradient = graph_.input(node, 1);
    if (!gradient.valid()) return;
    const Raw raw = raw_of(gradient, kFactors);
    if (raw.source == gradient) return;
    replace(node, 1, raw.source);
    const size_t first = *commit_of(node) + 1;
    for (size_t i = 0; i < raw.factors.size(); ++i) {
      while (graph_.inputs(node).size() <= first + i) graph_.add_node_input(node, ValueId{});
      graph_.set_input(node, first + i, raw.factors[i]);
    }
  }

  std::set<ValueId> gradients_of(NodeId norm) const {
    const auto inputs = graph_.inputs(norm);
    const bool scaled = graph_.node(norm).attributes.get_int("scaled", 0) != 0;
    return {inputs.begin(), inputs.end() - (scaled ? 1 : 0)};
  }

  /// The norm reads what a check reads: it gives the answer too, if it stands before all who ask.
  void join_check(NodeId norm) {
    const std::set<ValueId> gradients = gradients_of(norm);
    for (const NodeId node : graph_.nodes()) {
      if (!graph_.node(node).alive || !is_ours(node, "AllFinite")) continue;
      const auto inputs = graph_.inputs(node);
      if (std::set<ValueId>(inputs.begin(), inputs.end()) != gradients) continue;
      const ValueId finite = graph_.output(node);
      const bool early = std::ranges::all_of(graph_.uses(finite), [&](const Use& use) {
        return !use.by_node() || graph_.is_before(norm, outermost(use.node()));
      });
      if (!early) continue;
      const std::string name = graph_.value(finite).name;
      const ValueId answer = graph_.add_node_output(norm, 1, graph_.unique_name(name));
      graph_.value(answer).type = graph_.value(finite).type;
      graph_.replace_uses(finite, answer);
      graph_.remove(node);
      graph_.rename(answer, name);
      changed_ = true;
      return;
    }
  }

  /// The node of the main region that `node` stands in.
  NodeId outermost(NodeId node) const {
    while (graph_.node(node).region != graph_.main()) {
      node = graph_.region_owner(graph_.node(node).region);
    }
    return node;
  }

  /// Removes the products and casts that led to a gradient, as far as nobody reads them.
  void remove_unread(ValueId value) {
    while (graph_.value(value).alive && !graph_.has_uses(value)) {
      const NodeId node = producer(graph_, value);
      if (!node.valid() || !(is_mul(node) || is_cast(graph_.node(node)))) return;
      const ValueId a = graph_.input(node, 0);
      value = is_mul(node) && is_scalar(a) ? graph_.input(node, 1) : a;
      graph_.remove(node);
    }
  }

  Graph& graph_;
  std::vector<ValueId> passed_;  // what readers no longer read
  bool changed_ = false;
};

}  // namespace

bool fold_factors(Graph& graph, PassContext&) { return FactorFolder(graph).run(); }

}  // namespace halfnote
