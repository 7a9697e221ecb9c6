// scale_queries: a computed number for each head that attention scores are multiplied by goes to
// the queries.
//
//   s = MatMul (q, kᵗ)  m = Mul (s, scale)  …  Softmax      ──▶
//   r = Mul (q, scale)  m = MatMul (r, kᵗ)  …  Softmax
//
// Swin V2 learns a temperature a head. Between the product and the softmax it keeps the scores from
// being one attention with them (fuse-attention), and its gradient would sum over all scores. The
// queries are the smaller tensor, and scores in 16 bits are rounded once, not twice. Rounding: a
// product each is rounded elsewhere. Leaves alone: constants of one element, which fuse-attention
// knows, numbers that differ between queries or keys, scores that somebody else reads, scores that
// are no floats, and queries that are longer than their row of scores.
#include <algorithm>
#include <optional>

#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

constexpr int kMostSteps = 8;  // from the number to Softmax

class QueryScaler {
 public:
  QueryScaler(Graph& graph, const InferNode& infer) : graph_(graph), infer_(infer) {}

  bool run() {
    bool changed = false;
    for (const NodeId node : graph_.all_nodes()) {
      if (is_op(graph_, node, "Mul") || is_op(graph_, node, "Div")) changed |= rewrite(node);
    }
    return changed;
  }

 private:
  const std::optional<SymbolicShape>& shape_of(ValueId value) const {
    return graph_.value(value).type.shape;
  }

  bool is_along_last_dim(NodeId softmax) const {
    const auto& shape = shape_of(graph_.input(softmax, 0));
    const int64_t axis = graph_.node(softmax).attributes.get_int("axis", -1);
    return axis == -1 || (shape && axis == static_cast<int64_t>(shape->size()) - 1);
  }

  /// Does the value lead to a Softmax along its last dim, by sums, masks, casts and views alone?
  bool leads_to_softmax(ValueId value) const {
    for (int step = 0; step < kMostSteps; ++step) {
      const NodeId node = only_reader(graph_, value);
      if (is_op(graph_, node, "Softmax")) return is_along_last_dim(node);
      const bool goes_on = is_op(graph_, node, "Add") || is_op(graph_, node, "Sub") ||
                           is_op(graph_, node, "Cast") || is_op(graph_, node, "Reshape") ||
                           is_op(graph_, node, "Unsqueeze") || is_op(graph_, node, "Squeeze") ||
                           (is_op(graph_, node, "Where") && graph_.input(node, 0) != value);
      if (!goes_on) return false;
      value = graph_.output(node);
    }
    return false;
  }

  /// Is it a number for each head: of one element along the last two dims, and broadcast to the
  /// batch dims that Q has?
  bool is_number_of_heads(ValueId number, const SymbolicShape& query) const {
    const auto& own = shape_of(number);
    const Tensor* constant = graph_.constant(number);
    if (!own || own->size() > query.size() || (constant != nullptr && constant->size() == 1))
      return false;
    for (size_t i = 0; i < own->size(); ++i) {
      const Dim& dim = (*own)[own->size() - 1 - i];
      const bool one = dim.known() && dim.value == 1;
      if (!one && (i < 2 || !dim.same_as(query[query.size() - 1 - i]))) return false;
    }
    return true;
  }

  /// Has Q the batch dims of the scores, and no longer rows than they?
  static bool suits(const SymbolicShape& query, const SymbolicShape& scores) {
    if (query.size() != scores.size() || query.size() < 2) return false;
    const Dim &width = query.back(), &keys = scores.back();
    if (width.known() && keys.known() && width.value > keys.value) return false;
    return std::equal(query.begin(), query.end() - 2, scores.begin(),
                      [](const Dim& a, const Dim& b) { return a.same_as(b); });
  }

  bool rewrite(NodeId node) {
    const bool divides = is_op(graph_, node, "Div");
    for (const size_t slot : {0, 1}) {
      if (divides && slot == 1) break;
      const ValueId scores = graph_.input(node, slot), number = graph_.input(node, 1 - slot);
      const NodeId product = producer(graph_, scores);
      if (!is_op(graph_, product, "MatMul") || only_reader(graph_, scores) != node) continue;
      if (!is_float_value(graph_, scores)) continue;  // whole numbers are cut off by a Div
      const auto &query = shape_of(graph_.input(product, 0)), &of_scores = shape_of(scores);
      if (!query || !of_scores || !suits(*query, *of_scores)) continue;
      if (graph_.node(product).region != graph_.node(node).region) continue;
      if (!is_number_of_heads(number, *query) || !leads_to_softmax(graph_.output(node))) continue;
      move_to_query(node, product, number);
      return true;
    }
    return false;
  }

  /// The product stands where the number did: that may have been computed behind the product.
  void move_to_query(NodeId node, NodeId product, ValueId number) {
    Builder b(graph_, graph_.before(node), infer_);
    b.set_role(graph_.node(node).role);
    b.set_origin(graph_.node(node).origin);
    const Expr scaled =
        b.op(graph_.node(node).op.str(), {b.value(graph_.input(product, 0)), b.value(number)});
    name(b.last(), node);
    const Expr made = b.op("MatMul", {scaled, b.value(graph_.input(product, 1))},
                           graph_.node(product).attributes);
    name(b.last(), product);
    const ValueId old = graph_.output(node);
    graph_.value(made.id).type = graph_.value(old).type;
    take_place(graph_, old, made.id);
    graph_.remove(node);
    graph_.remove(product);
  }

  void name(NodeId made, NodeId like) {
    graph_.node(made).name = graph_.label(like);
    graph_.node(made).metadata = graph_.node(like).metadata;
  }

  Graph& graph_;
  const InferNode& infer_;
};

}  // namespace

bool scale_queries(Graph& graph, PassContext& context) {
  return QueryScaler(graph, context.infer).run();
}

}  // namespace halfnote
