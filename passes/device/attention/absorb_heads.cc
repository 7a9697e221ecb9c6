// absorb_heads: attention reads its operands as a linear layer makes them, (…, rows, heads, size),
// and writes its results so; nothing is moved for it.
//
//   t = Transpose <perm = [0, 2, 1, 3]> (q)      z, max, sum = ai.halfnote.Attention
//   y, max, sum = ai.halfnote.Attention (t, k, v)    <rows_first = [1, 0, 0, 1]> (q, k, v)
//   z = Transpose <perm = [0, 2, 1, 3]> (y)
//
// The same for AttentionGrad, whose dQ, dK and dV lie as Q, K and V do, dY as Y; K may have been
// turned on the way, as transK wants it. Where Q, K and V were split from one tensor, and their
// gradients become one again, that is read and written in place:
//
//   q, k, v = Split <axis = 2> (x)  …  y = ai.halfnote.Attention <rows_first = …> (q, k, v)   ──▶
//   y = ai.halfnote.Attention <packed = 1, rows_first = …> (x, x, x)
//
// The same where they were turned before they were split, as `permute(2, 0, 3, 1, 4)` does:
//
//   t = Transpose <perm = [2, 0, 3, 1, 4]> (x)   (rows, 3, heads, size) → (3, heads, rows, size)
//   q, k, v = Split <axis = 0> (t)  …  y = ai.halfnote.Attention (q, k, v)   ──▶   the same
//
// Exact. Leaves alone: other permutations, a Y that somebody reads with its heads first, parts in
// another order.
#include "passes/device/attention/absorb_heads.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/ops/attention.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ir/walk.h"
#include "passes/device/attention/match.h"

namespace halfnote {
namespace {

constexpr size_t kQ = 0, kK = 1, kV = 2, kY = 3;  // numbers of rows_first
constexpr size_t kResultOfForward = 4;            // operand Y of AttentionGrad, dY is its first
constexpr size_t kLeastRank = 3;

using Perm = std::vector<int64_t>;

/// How heads come before rows, and how they go back.
struct Turn {
  Perm there, back;
};

Turn turn_of(size_t rank, bool trans_k) {
  Perm same(rank);
  std::iota(same.begin(), same.end(), 0);
  Turn turn{same, same};
  if (trans_k) {  // (rows, heads, size) → (heads, size, rows)
    std::rotate(turn.there.end() - 3, turn.there.end() - 2, turn.there.end());
    std::rotate(turn.back.end() - 3, turn.back.end() - 1, turn.back.end());
  } else {
    turn.there = turn.back = swap_rows_and_heads(same);
  }
  return turn;
}

bool is_attention(const Node& node) {
  return node.domain == kHalfnoteDomain && node.op == "Attention";
}

bool is_gradient(const Node& node) {
  return node.domain == kHalfnoteDomain && node.op == "AttentionGrad";
}

size_t rank_in(const Graph& graph, ValueId value) {
  const ValueType& type = graph.value(value).type;
  return type.shape ? type.shape->size() : 0;
}

/// How Q, K and V of one tensor (…, rows, 3, heads, size) become (3, …, heads, rows, size), and how
/// their gradients go back; of a tensor of so many dims.
Turn turn_of_stack(size_t rank) {
  Perm there(rank), back(rank);
  std::iota(there.begin(), there.end(), 0);
  std::rotate(there.begin(), there.end() - 3, there.end() - 2);  // the 3 in front
  std::swap(there[rank - 3], there[rank - 2]);
  for (size_t i = 0; i < rank; ++i) back[static_cast<size_t>(there[i])] = static_cast<int64_t>(i);
  return {there, back};
}

bool permutes(const Graph& graph, NodeId id, const Perm& perm) {
  if (!id.valid()) return false;
  const Node& node = graph.node(id);
  return is_op(node, "Transpose") && node.attributes.get_ints("perm") == perm;
}

class HeadAbsorber {
 public:
  HeadAbsorber(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  bool run() {
    for (const NodeId id : graph_.nodes()) {
      const bool gradient = is_gradient(graph_.node(id));
      if (!gradient && !is_attention(graph_.node(id))) continue;
      absorb_stack(id, gradient);
      for (const size_t operand : {kQ, kK, kV}) absorb_operand(id, operand, gradient);
      if (!gradient) absorb_result(id);
    }
    for (const NodeId id : graph_.nodes()) {
      const bool gradient = is_gradient(graph_.node(id));
      if (gradient || is_attention(graph_.node(id))) absorb_split(id, gradient);
    }
    if (!changed_) return false;
    erase_dead(graph_, [this](const Graph&, NodeId id) { return passed_.count(id) != 0; });
    return true;
  }

 private:
  Builder builder_at(NodeId id, InsertPoint at) {
    Builder b(graph_, at, context_.infer);
    b.set_role(graph_.node(id).role);
    b.set_origin(graph_.node(id).origin);
    return b;
  }

  void set_flag(NodeId id, size_t operand) {
    Attributes& attributes = graph_.node(id).attributes;
    std::vector<int64_t> flags = attributes.get_ints("rows_first");
    flags.resize(4);
    flags[operand] = 1;
    attributes.set("rows_first", flags);
    changed_ = true;
  }

  /// What stands before the transpose in place of what it gives.
  void read_through(NodeId id, size_t slot) {
    const NodeId transpose = producer(graph_, graph_.input(id, slot));
    passed_.insert(transpose);
    graph_.set_input(id, slot, graph_.input(transpose, 0));
  }

  void absorb_operand(NodeId id, size_t operand, bool gradient) {
    const size_t slot = operand + (gradient ? 1 : 0);
    const bool trans_k = operand == kK && graph_.node(id).attributes.get_int("transK", 0) != 0;
    const size_t rank = rank_in(graph_, graph_.input(id, slot));
    if (rank < kLeastRank || (gradient && is_result(graph_.output(id, operand)))) return;
    const Turn turn = turn_of(rank, trans_k);
    if (!permutes(graph_, producer(graph_, graph_.input(id, slot)), turn.there)) return;
    read_through(id, slot);
    if (trans_k) graph_.node(id).attributes.erase("transK");
    set_flag(id, operand);
    if (gradient) turn_result(id, operand, turn);
  }

  /// Is it read by anything but nodes, so that it is to stay as it is?
  bool is_result(ValueId value) const {
    return value.valid() &&
           std::ranges::any_of(graph_.uses(value), [](const Use& use) { return !use.by_node(); });
  }

  /// A node that turns `value` back and whose result is free to be another value.
  bool turns_back(NodeId user, const Perm& back) const {
    return permutes(graph_, user, back) && !is_result(graph_.output(user));
  }

  /// The result lies as its operand does now: transposes back go, others find it as it was.
  void turn_result(NodeId id, size_t index, const Turn& turn) {
    const ValueId value = graph_.output(id, index);
    if (!value.valid()) return;
    std::vector<Use> others;
    for (const Use& use : graph_.uses(value)) {
      if (!turns_back(use.node(), turn.back)) others.push_back(use);
    }
    pass_back(value, turn.back);
    if (others.empty()) return;
    Builder b = builder_at(id, graph_.after(id));
    const Expr turned = b.transpose(b.value(value), turn.there);
    graph_.value(turned.id).scale_power = graph_.value(value).scale_power;
    for (const Use& use : others) graph_.replace_use(use, turned.id);
  }

  /// Gives `value` the shape that the transposes `back` gave it, and their readers.
  void pass_back(ValueId value, const Perm& back) {
    const SymbolicShape before = *graph_.value(value).type.shape;
    SymbolicShape after;
    for (const int64_t axis : back) after.push_back(before[static_cast<size_t>(axis)]);
    for (const NodeId user : graph_.users(value)) {
      if (!turns_back(user, back)) continue;
      graph_.replace_uses(graph_.output(user), value);
      graph_.remove(user);
    }
    graph_.value(value).type.shape = after;
  }

  /// Y, where all readers take it with its rows first: transposes, and the gradient, which reads
  /// the same of dY.
  void absorb_result(NodeId id) {
    const ValueId y = graph_.output(id);
    const size_t rank = rank_in(graph_, y);
    if (rank < kLeastRank) return;
    const Turn turn = turn_of(rank, false);
    std::vector<NodeId> gradients;
    bool pays = false;
    for (const Use& use : graph_.uses(y)) {
      if (!use.by_node()) return;
      const NodeId user = use.node();
      const bool back = turns_back(user, turn.back);
      pays |= back;
      if (back) continue;
      const bool gradient = is_gradient(graph_.node(user)) && use.slot == kResultOfForward;
      if (!gradient || !permutes(graph_, producer(graph_, graph_.input(user, 0)), turn.there))
        return;
      gradients.push_back(user);
    }
    if (!pays) return;
    set_flag(id, kY);
    for (const NodeId gradient : gradients) {
      set_flag(gradient, kY);
      read_through(gradient, 0);
    }
    pass_back(y, turn.back);
  }

  // --- Q, K and V that were turned together ----------------------------------------------------

  /// Is `part` one of three, a 1 in front of the dims of `seen`, which is it without that?
  bool is_part_seen_as(ValueId part, ValueId seen) const {
    auto with_one = known_shape(graph_, seen);
    if (!with_one) return false;
    with_one->insert(with_one->begin(), 1);
    return known_shape(graph_, part) == with_one;
  }
  bool is_view(NodeId id) const {
    return is_op(graph_, id, "Reshape") || is_op(graph_, id, "Squeeze") ||
           is_op(graph_, id, "Unsqueeze");
  }

  /// The Split along the first dim whose three results are the operands from `slot` on.
  NodeId split_of_stack(NodeId id, size_t slot) const {
    NodeId split;
    for (const size_t operand : {kQ, kK, kV}) {
      const NodeId view = producer(graph_, graph_.input(id, slot + operand));
      if (!view.valid() || !is_view(view)) return {};
      const ValueId part = graph_.input(view, 0);
      const NodeId from = producer(graph_, part);
      if (!is_op(graph_, from, "Split") || graph_.outputs(from).size() != 3) return {};
      split = operand == kQ ? from : split;
      const bool fits = from == split && graph_.output(split, operand) == part &&
                        is_part_seen_as(part, graph_.input(id, slot + operand));
      if (!fits) return {};
    }
    return graph_.node(split).attributes.get_int("axis", 0) == 0 ? split : NodeId{};
  }
  /// The Concat along the first dim that alone reads the three gradients.
  NodeId concat_of_stack(NodeId id) const {
    NodeId concat;
    for (const size_t result : {kQ, kK, kV}) {
      const NodeId view = only_reader(graph_, graph_.output(id, result));
      if (!view.valid() || !is_view(view)) return {};
      const ValueId part = graph_.output(view);
      const NodeId reader = only_reader(graph_, part);
      if (!is_op(graph_, reader, "Concat") || graph_.inputs(reader).size() != 3) return {};
      concat = result == kQ ? reader : concat;
      const bool fits = reader == concat && graph_.input(concat, result) == part &&
                        is_part_seen_as(part, graph_.output(id, result));
      if (!fits) return {};
    }
    return graph_.node(concat).attributes.get_int("axis", 0) == 0 ? concat : NodeId{};
  }

  void absorb_stack(NodeId id, bool gradient) {
    const Attributes& attributes = graph_.node(id).attributes;
    const std::vector<int64_t> first = attributes.get_ints("rows_first");
    const bool is_seen_so = first.size() == 4 && first[kQ] + first[kK] + first[kV] != 0;
    if (is_seen_so || attributes.get_int("transK", 0) != 0) return;
    const size_t slot = gradient ? 1 : 0, rank = rank_in(graph_, graph_.input(id, slot)) + 1;
    const NodeId split = rank > kLeastRank + 1 ? split_of_stack(id, slot) : NodeId{};
    if (!split.valid()) return;
    const Turn turn = turn_of_stack(rank);
    const NodeId turned = producer(graph_, graph_.input(split, 0));
    if (!permutes(graph_, turned, turn.there)) return;
    NodeId back;
    if (gradient) {
      const NodeId concat = concat_of_stack(id);
      back = concat.valid() ? only_reader(graph_, graph_.output(concat)) : NodeId{};
      if (!permutes(graph_, back, turn.back) || is_result(graph_.output(back))) return;
    }
    passed_.insert({split, turned});
    for (const size_t operand : {kQ, kK, kV}) {
      passed_.insert(producer(graph_, graph_.input(id, slot + operand)));
      set_flag(id, operand);
    }
    for (const size_t operand : {kQ, kK, kV})
      graph_.set_input(id, slot + operand, graph_.input(turned, 0));
    graph_.node(id).attributes.set("packed", int64_t{1});
    if (gradient) give_stack(id, back);
  }
  /// The first result becomes what `back` makes of all three.
  void give_stack(NodeId id, NodeId back) {
    const ValueId first = graph_.output(id), joined = graph_.output(back);
    std::vector<NodeId> gone = {back, producer(graph_, graph_.input(back, 0))};
    for (const size_t result : {kQ, kK, kV})
      gone.push_back(only_reader(graph_, graph_.output(id, result)));
    graph_.value(first).type.shape = graph_.value(joined).type.shape;
    graph_.value(first).scale_power = graph_.value(joined).scale_power;
    graph_.replace_uses(joined, first);
    for (const NodeId node : gone) graph_.remove(node);
    for (const size_t result : {kV, kK}) graph_.drop_output(id, result);
  }

  // --- Q, K and V that were split, then turned --------------------------------------------------

  /// The Split, with the shape (…, rows, 3·heads·size) of what it reads, whose three results are
  /// the operands of this node from `slot` on, each seen as (…, rows, heads, size).
  NodeId split_of(NodeId id, size_t slot) const {
    NodeId split;
    for (const size_t operand : {kQ, kK, kV}) {
      const NodeId view = producer(graph_, graph_.input(id, slot + operand));
      if (!view.valid() || graph_.node(view).op != "Reshape") return {};
      const ValueId part = graph_.input(view, 0);
      const NodeId from = producer(graph_, part);
      const bool same = from.valid() && (operand == kQ || from == split);
      if (!same || graph_.node(from).op != "Split" || !graph_.node(from).domain.empty()) return {};
      split = from;
      const bool fits = graph_.outputs(split).size() == 3 &&
                        graph_.output(split, operand) == part &&
                        is_row_of_heads(part, graph_.input(id, slot + operand)) &&
                        graph_.value(graph_.input(id, slot + operand)).type ==
                            graph_.value(graph_.input(id, slot)).type;
      if (!fits) return {};
    }
    const auto rank = static_cast<int64_t>(rank_in(graph_, graph_.input(split, 0)));
    const int64_t axis = graph_.node(split).attributes.get_int("axis", 0);
    return axis == rank - 1 || axis == -1 ? split : NodeId{};
  }

  /// Is `heads` (…, heads, size) a view of the rows (…, heads·size) of `row`?
  bool is_row_of_heads(ValueId row, ValueId heads) const {
    const auto rows = known_shape(graph_, row), split = known_shape(graph_, heads);
    return rows && split && split->size() >= kLeastRank && !rows->empty() &&
           element_count(*rows) == element_count(*split) &&
           rows->back() == split->back() * (*split)[split->size() - 2];
  }

  /// The Concat that makes one of the three gradients, each seen as (…, rows, heads·size).
  NodeId concat_of(NodeId id) const {
    NodeId concat;
    for (const size_t result : {kQ, kK, kV}) {
      const NodeId view = only_reader(graph_, graph_.output(id, result));
      if (!view.valid() || graph_.node(view).op != "Reshape") return {};
      const ValueId row = graph_.output(view);
      const NodeId reader = only_reader(graph_, row);
      if (!reader.valid() || graph_.node(reader).op != "Concat" || is_result(graph_.output(reader)))
        return {};
      concat = result == kQ ? reader : concat;
      const bool fits = reader == concat && graph_.inputs(concat).size() == 3 &&
                        graph_.input(concat, result) == row &&
                        is_row_of_heads(row, graph_.output(id, result));
      if (!fits) return {};
    }
    const auto rank = static_cast<int64_t>(rank_in(graph_, graph_.output(concat)));
    const int64_t axis = graph_.node(concat).attributes.get_int("axis", 0);
    return axis == rank - 1 || axis == -1 ? concat : NodeId{};
  }

  void absorb_split(NodeId id, bool gradient) {
    const size_t slot = gradient ? 1 : 0;
    const std::vector<int64_t> first = graph_.node(id).attributes.get_ints("rows_first");
    if (first.size() != 4 || first[kQ] == 0 || first[kK] == 0 || first[kV] == 0) return;
    const NodeId split = split_of(id, slot), concat = gradient ? concat_of(id) : NodeId{};
    if (!split.valid() || (gradient && !concat.valid())) return;
    Shape shape = concrete(*graph_.value(graph_.input(id, slot)).type.shape);
    shape.insert(shape.end() - 2, 3);
    passed_.insert(split);
    for (const size_t operand : {kQ, kK, kV})
      passed_.insert(producer(graph_, graph_.input(id, slot + operand)));
    Builder b = builder_at(id, graph_.before(id));
    const Expr all =
        b.reshape(b.value(graph_.input(split, 0)), b.ints({shape.begin(), shape.end()}));
    for (const size_t operand : {kQ, kK, kV}) graph_.set_input(id, slot + operand, all.id);
    graph_.node(id).attributes.set("packed", int64_t{1});
    if (gradient) join_results(id, concat, shape);
  }

  /// The first result becomes that of all three parts, in place of what `concat` makes.
  void join_results(NodeId id, NodeId concat, const Shape& shape) {
    const ValueId first = graph_.output(id), joined = graph_.output(concat);
    const Shape flat = concrete(*graph_.value(joined).type.shape);
    std::vector<NodeId> gone = {concat};
    for (const size_t result : {kQ, kK, kV})
      gone.push_back(only_reader(graph_, graph_.output(id, result)));
    graph_.value(first).type.shape = symbolic(shape);
    Builder b = builder_at(id, graph_.after(id));
    const Expr row = b.reshape(b.value(first), b.ints({flat.begin(), flat.end()}));
    graph_.value(row.id).scale_power = graph_.value(joined).scale_power;
    graph_.replace_uses(joined, row.id);
    for (const NodeId node : gone) graph_.remove(node);
    for (const size_t result : {kV, kK}) graph_.drop_output(id, result);
  }

  Graph& graph_;
  PassContext& context_;
  std::set<NodeId> passed_;  // transposes of operands
  bool changed_ = false;
};

}  // namespace

bool absorb_heads(Graph& graph, PassContext& context) { return HeadAbsorber(graph, context).run(); }

}  // namespace halfnote
