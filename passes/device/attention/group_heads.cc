// group_heads: attention reads the heads of K and V that a group of heads of Q shares where they
// are, and adds up their gradients itself; nothing is repeated for it.
//
//   u = Unsqueeze <axes = 2> (k)   e = Expand (u)   r = Reshape (e), likewise s of v
//   y = ai.halfnote.Attention (q, r, s)           ──▶   y = ai.halfnote.Attention (q, k, v)
//
//   dq, dr, ds = ai.halfnote.AttentionGrad (dy, q, r, s, …)
//   t = Reshape (dr)   dk = ReduceSum <axes = 2> (t)   ──▶
//   dq, dk, dv = ai.halfnote.AttentionGrad (dy, q, k, v, …)
//
// Rounding: the sum over a group is taken before its 16 bits are rounded, not behind. Leaves alone:
// K and V that are repeated in other ways or not both, gradients that somebody else reads whole.
#include "passes/device/attention/group_heads.h"

#include <algorithm>
#include <optional>
#include <set>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ir/walk.h"
#include "passes/device/attention/match.h"

namespace halfnote {
namespace {

constexpr size_t kGroupedRank = 3;

/// (…, heads, rows, size) that were repeated: what was, the nodes that did, and how often.
struct Repeated {
  ValueId source;  // (…, heads / group, rows, size), maybe with a 1 behind the heads
  int64_t group = 1;
  Shape shape;             // (…, heads / group, rows, size)
  std::set<NodeId> nodes;  // gone where nobody else reads them
};

/// `shape` with `dim` before its last two.
Shape with_group(Shape shape, int64_t dim) {
  shape.insert(shape.end() - 2, dim);
  return shape;
}

class HeadGrouper {
 public:
  HeadGrouper(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  bool run() {
    bool changed = false;
    for (const NodeId id : graph_.nodes()) {
      const Node& node = graph_.node(id);
      if (node.domain != kHalfnoteDomain) continue;
      if (node.op == "Attention") changed |= group(id, 0);
      if (node.op == "AttentionGrad") changed |= group(id, 1);
    }
    if (!changed) return false;
    erase_dead(graph_, [this](const Graph&, NodeId id) { return passed_.count(id) != 0; });
    return true;
  }

 private:
  /// K stands behind Q, which is operand `q`: of a gradient it is 1.
  bool group(NodeId id, size_t q) {
    const Attributes& attributes = graph_.node(id).attributes;
    if (attributes.find("rows_first") != nullptr || attributes.get_int("packed", 0) != 0)
      return false;
    const auto k = repeated(graph_.input(id, q + 1)), v = repeated(graph_.input(id, q + 2));
    if (!k || !v || k->group != v->group) return false;
    const bool gradient = q == 1;
    std::optional<NodeId> sums[2];
    const Repeated* const operands[] = {&*k, &*v};
    for (size_t i = 0; gradient && i < 2; ++i) {
      sums[i] = sum_of(graph_.output(id, i + 1), *operands[i]);
      if (!sums[i]) return false;
    }
    Builder before = builder_at(id, graph_.before(id));
    for (size_t i = 0; i < 2; ++i) {
      passed_.insert(operands[i]->nodes.begin(), operands[i]->nodes.end());
      graph_.set_input(id, q + 1 + i, seen(before, *operands[i]).id);
    }
    for (size_t i = 0; gradient && i < 2; ++i) {
      if (sums[i]->valid()) replace_sum(id, i + 1, *sums[i], *operands[i]);
    }
    return true;
  }

  Builder builder_at(NodeId id, InsertPoint at) {
    Builder b(graph_, at, context_.infer);
    b.set_role(graph_.node(id).role);
    b.set_origin(graph_.node(id).origin);
    return b;
  }

  std::optional<Repeated> repeated(ValueId value) const {
    const NodeId merge = producer(graph_, value);
    if (!is_op(graph_, merge, "Reshape")) return std::nullopt;
    const NodeId expand = producer(graph_, graph_.input(merge, 0));
    if (!is_op(graph_, expand, "Expand")) return std::nullopt;
    const ValueId once = graph_.input(expand, 0);
    const auto whole = known_shape(graph_, value),
               all = known_shape(graph_, graph_.input(merge, 0)), one = known_shape(graph_, once);
    if (!whole || !all || !one || whole->size() < kGroupedRank) return std::nullopt;
    if (all->size() != whole->size() + 1 || one->size() != all->size()) return std::nullopt;
    Repeated found;
    found.group = (*all)[all->size() - 3];
    found.shape = *one;
    found.shape.erase(found.shape.end() - 3);
    Shape heads = found.shape;
    heads[heads.size() - 3] *= found.group;
    const bool fits = found.group > 1 && *one == with_group(found.shape, 1) &&
                      *all == with_group(found.shape, found.group) && heads == *whole;
    if (!fits) return std::nullopt;
    found.source = once;
    found.nodes = {merge, expand};
    const NodeId view = producer(graph_, once);
    const bool is_view = is_op(graph_, view, "Unsqueeze") || is_op(graph_, view, "Reshape");
    if (is_view && known_shape(graph_, graph_.input(view, 0)) == found.shape) {
      found.source = graph_.input(view, 0);
      found.nodes.insert(view);
    }
    return found;
  }

  Expr seen(Builder& b, const Repeated& operand) {
    return seen_as(b, operand.source, operand.shape);
  }

  /// The ReduceSum over the group, behind views and casts, that alone reads a gradient; an invalid
  /// one where nobody reads it.
  std::optional<NodeId> sum_of(ValueId gradient, const Repeated& operand) const {
    if (!gradient.valid() || !graph_.has_uses(gradient)) return NodeId{};
    ValueId value = gradient;
    for (NodeId id = only_reader(graph_, value); id.valid(); id = only_reader(graph_, value)) {
      if (is_op(graph_, id, "ReduceSum")) {
        const bool sums = graph_.input(id, 0) == value &&
                          known_shape(graph_, value) == with_group(operand.shape, operand.group) &&
                          sums_group(id) && is_sum_shape(graph_.output(id), operand) &&
                          !is_result(graph_.output(id));
        return sums ? std::optional(id) : std::nullopt;
      }
      const bool passes = is_op(graph_, id, "Reshape") || casts_floats(id);
      if (!passes || graph_.input(id, 0) != value) return std::nullopt;
      value = graph_.output(id);
    }
    return std::nullopt;
  }

  bool casts_floats(NodeId id) const {
    return is_cast(graph_.node(id)) && is_float(graph_.value(graph_.input(id, 0)).type.dtype) &&
           is_float(graph_.value(graph_.output(id)).type.dtype);
  }

  /// Is it over the axis of the group, and no other of the same size?
  bool sums_group(NodeId sum) const {
    const auto shape = known_shape(graph_, graph_.input(sum, 0));
    const ValueId named = graph_.input(sum, 1);
    const Tensor* axes = named.valid() ? graph_.constant(named) : nullptr;
    if (!shape || axes == nullptr || axes->size() != 1) return false;
    const int64_t rank = static_cast<int64_t>(shape->size()), axis = axes->at_as_int(0);
    return (axis < 0 ? axis + rank : axis) == rank - 3;
  }

  /// Is it what a sum over the group alone leaves?
  bool is_sum_shape(ValueId sum, const Repeated& operand) const {
    const auto shape = known_shape(graph_, sum);
    return shape == operand.shape || shape == with_group(operand.shape, 1);
  }

  /// Result `index` becomes the sum, in the place of what `sum` gives.
  void replace_sum(NodeId id, size_t index, NodeId sum, const Repeated& operand) {
    const ValueId result = graph_.output(id, index), old = graph_.output(sum);
    const Shape wanted = *known_shape(graph_, old);
    for (NodeId passed = producer(graph_, graph_.input(sum, 0)); passed != id;
         passed = producer(graph_, graph_.input(passed, 0)))
      passed_.insert(passed);
    passed_.insert(sum);
    graph_.value(result).type.shape = symbolic(operand.shape);
    graph_.value(result).scale_power = graph_.value(old).scale_power;
    Builder b = builder_at(id, graph_.before(sum));
    const DType own = graph_.value(result).type.dtype;
    for (const NodeId user : graph_.users(old)) {
      if (!casts_floats(user) || graph_.value(graph_.output(user)).type.dtype != own) continue;
      replace(graph_.output(user), result, b);
      passed_.insert(user);
    }
    const auto is_gone = [&](NodeId user) { return passed_.count(user) != 0; };
    if (graph_.value(old).type.dtype == own) {
      replace(old, result, b);
    } else if (!std::ranges::all_of(graph_.users(old), is_gone)) {
      Expr made = b.cast(seen_as(b, result, wanted), graph_.value(old).type.dtype);
      graph_.value(made.id).scale_power = graph_.value(old).scale_power;
      graph_.replace_uses(old, made.id);
    }
  }

  /// Readers of `old` read `result`, which is it but for a 1 among the dims: views that take that
  /// away again go.
  void replace(ValueId old, ValueId result, Builder& b) {
    const auto shape = known_shape(graph_, result);
    for (const NodeId user : graph_.users(old)) {
      const bool view = is_op(graph_, user, "Squeeze") || is_op(graph_, user, "Reshape");
      if (!view || known_shape(graph_, graph_.output(user)) != shape) continue;
      if (is_result(graph_.output(user))) continue;
      graph_.replace_uses(graph_.output(user), result);
      passed_.insert(user);
    }
    const auto is_gone = [&](NodeId user) { return passed_.count(user) != 0; };
    if (std::ranges::all_of(graph_.users(old), is_gone)) return;
    const Expr made = seen_as(b, result, *known_shape(graph_, old));
    graph_.value(made.id).scale_power = graph_.value(old).scale_power;
    graph_.replace_uses(old, made.id);
  }

  Expr seen_as(Builder& b, ValueId value, const Shape& shape) {
    const Expr x = b.value(value);
    if (known_shape(graph_, value) == shape) return x;
    const Expr view = b.reshape(x, b.ints({shape.begin(), shape.end()}));
    graph_.value(view.id).scale_power = graph_.value(value).scale_power;
    return view;
  }

  /// Is it read by anything but nodes?
  bool is_result(ValueId value) const {
    return std::ranges::any_of(graph_.uses(value), [](const Use& use) { return !use.by_node(); });
  }

  Graph& graph_;
  PassContext& context_;
  std::set<NodeId> passed_;
};

}  // namespace

bool group_heads(Graph& graph, PassContext& context) { return HeadGrouper(graph, context).run(); }

}  // namespace halfnote
