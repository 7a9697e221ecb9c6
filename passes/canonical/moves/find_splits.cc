// find_splits: values that are taken one by one from an axis are a Split, before the axis is moved.
//
//   r = Reshape (x, [.., 3, m])                       q, k, v = Split <axis = last> (x)
//   t = Transpose (Unsqueeze (r))              ──▶    (each with the Transpose that is left of t)
//   q, k, v = Gather <axis = 0> (t, 0), … 1, … 2
//
// So the layers of PyTorch's MultiheadAttention and timm's take Q, K and V apart, whose gradient
// would be a sum of three padded tensors, and is a Concat. Exact. Leaves alone: axes of which an
// index is left out or taken twice, values that somebody else reads whole, parts of lowered
// operators.
#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "compiler/ops/operator.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

constexpr int64_t kMostTakenParts = 64;

bool is_op(const Graph& graph, NodeId node, std::string_view op) {
  return node.valid() && graph.node(node).domain.empty() && graph.node(node).op == op;
}

std::optional<int64_t> wrapped(int64_t axis, size_t rank) {
  const auto size = static_cast<int64_t>(rank);
  if (axis < 0) axis += size;
  return axis >= 0 && axis < size ? std::optional(axis) : std::nullopt;
}

/// All that is taken from one axis of a value, by index.
struct Taken {
  size_t axis = 0;
  std::vector<NodeId> gathers;
};

/// Where the taken axis comes from: `source` holds the parts side by side along `axis`; seen
/// without the axis, a part has `shape`, and its dims `order` are those of what was taken.
struct Origin {
  ValueId source;
  size_t axis = 0;
  SymbolicShape shape;
  std::vector<int64_t> order;
};

class SplitFinder {
 public:
  SplitFinder(Graph& graph, const InferNode& infer) : graph_(graph), infer_(infer) {}

  bool run() {
    bool changed = false;
    for (const NodeId node : graph_.nodes()) {
      // Only first results: no op that has several is on the way of heads.
      if (graph_.outputs(node).size() != 1) continue;
      if (const auto taken = find_taken(graph_.output(node))) changed |= rewrite(node, *taken);
    }
    return changed;
  }

 private:
  /// Is it part of an operator that was lowered? What it was says which precision it wants.
  bool is_lowered(NodeId node) const {
    return std::ranges::any_of(graph_.node(node).metadata,
                               [](const auto& entry) { return entry.first == kLoweredFromKey; });
  }

  std::optional<int64_t> index_of(NodeId gather, int64_t count) const {
    const Tensor* index = graph_.constant(graph_.input(gather, 1));
    if (index == nullptr || !index->shape().empty()) return std::nullopt;
    const int64_t i = index->at_as_int(0);
    return wrapped(i, static_cast<size_t>(count));
  }

  std::optional<Taken> find_taken(ValueId value) const {
    const ValueType& type = graph_.value(value).type;
    const auto uses = graph_.uses(value);
    if (!type.shape || uses.size() < 2) return std::nullopt;
    Taken taken;
    for (const Use& use : uses) {
      if (!use.by_node() || use.slot != 0 || !is_op(graph_, use.node(), "Gather"))
        return std::nullopt;
      const NodeId gather = use.node();
      if (graph_.node(gather).region != graph_.main() || is_lowered(gather)) return std::nullopt;
      const auto axis =
          wrapped(graph_.node(gather).attributes.get_int("axis", 0), type.shape->size());
      if (!axis || (!taken.gathers.empty() && static_cast<size_t>(*axis) != taken.axis))
        return std::nullopt;
      taken.axis = static_cast<size_t>(*axis);
      const Dim& dim = (*type.shape)[taken.axis];
      if (!dim.known() || dim.value > kMostTakenParts || !dim.is(static_cast<int64_t>(uses.size())))
        return std::nullopt;
      taken.gathers.resize(uses.size());
      const auto index = index_of(gather, dim.value);
      if (!index || taken.gathers[static_cast<size_t>(*index)].valid()) return std::nullopt;
      taken.gathers[static_cast<size_t>(*index)] = gather;
    }
    return taken;
  }

  /// Follows the axis up, past what only moves dims. `order`: for each dim of the value that is
  /// taken from its place in the value that is looked at; -1 where it has none there.
  Origin origin_of(ValueId value, size_t axis) const {
    std::vector<int64_t> order(graph_.value(value).type.shape->size());
    std::iota(order.begin(), order.end(), 0);
    for (NodeId node = producer(graph_, value); node.valid(); node = producer(graph_, value)) {
      if (graph_.node(node).region != graph_.main()) break;
      const ValueId above = graph_.input(node, 0);
      if (!above.valid() || !graph_.value(above).type.shape) break;
      if (!pass_transpose(node, order, axis) && !pass_ones(node, order, axis)) break;
      value = above;
    }
    return without_view(value, order, axis);
  }

  bool pass_transpose(NodeId node, std::vector<int64_t>& order, size_t& axis) const {
    if (!is_op(graph_, node, "Transpose")) return false;
    const auto perm = graph_.node(node).attributes.get_ints("perm");
    if (perm.size() != static_cast<size_t>(graph_.value(graph_.output(node)).type.rank()))
      return false;
    for (int64_t& dim : order) dim = dim < 0 ? dim : perm[static_cast<size_t>(dim)];
    axis = static_cast<size_t>(perm[axis]);
    return true;
  }

  /// An Unsqueeze or Squeeze: dims of size 1 come and go.
  bool pass_ones(NodeId node, std::vector<int64_t>& order, size_t& axis) const {
    const bool adds = is_op(graph_, node, "Unsqueeze");
    if (!adds && !is_op(graph_, node, "Squeeze")) return false;
    const ValueId named = graph_.input(node, 1);
    const Tensor* axes = named.valid() ? graph_.constant(named) : nullptr;
    const ValueType& above = graph_.value(graph_.input(node, 0)).type;
    const ValueType& below = graph_.value(graph_.output(node)).type;
    if (axes == nullptr || !above.shape || !below.shape) return false;
    const size_t rank = adds ? below.shape->size() : above.shape->size();
    std::vector<bool> ones(rank, false);
    for (const int64_t one : axes->to_ints()) {
      const auto at = wrapped(one, rank);
      if (!at) return false;
      ones[static_cast<size_t>(*at)] = true;
    }
    // Of each dim of the side with the ones, its place on the other side.
    std::vector<int64_t> place(rank, -1), from;
    for (size_t i = 0; i < rank; ++i) {
      if (ones[i]) continue;
      place[i] = static_cast<int64_t>(from.size());
      from.push_back(static_cast<int64_t>(i));
    }
    if (adds && place[axis] < 0) return false;
    const std::vector<int64_t>& up = adds ? place : from;
    for (int64_t& dim : order) dim = dim < 0 ? dim : up[static_cast<size_t>(dim)];
    axis = static_cast<size_t>(up[axis]);
    return true;
  }

  /// The value itself, or what a Reshape cut the axis out of.
  Origin without_view(ValueId value, std::vector<int64_t> order, size_t axis) const {
    Origin origin{value, axis, *graph_.value(value).type.shape, {}};
    const NodeId node = producer(graph_, value);
    if (is_op(graph_, node, "Reshape")) cut_of(node, origin);
    origin.shape = *graph_.value(value).type.shape;
    origin.shape.erase(origin.shape.begin() + static_cast<std::ptrdiff_t>(axis));
    for (int64_t& dim : order) dim -= dim > static_cast<int64_t>(axis) ? 1 : 0;
    origin.order = std::move(order);
    return origin;
  }

  /// A Reshape [a, n·m, b] → [a, n, m, b] whose axis is n.
  void cut_of(NodeId reshape, Origin& origin) const {
    const ValueType& from = graph_.value(graph_.input(reshape, 0)).type;
    const SymbolicShape& to = *graph_.value(graph_.output(reshape)).type.shape;
    const size_t axis = origin.axis;
    if (!from.shape || from.shape->size() <= axis || from.shape->size() >= to.size()) return;
    for (size_t i = 0; i < axis; ++i) {
      if (!(*from.shape)[i].same_as(to[i])) return;
    }
    const size_t behind = from.shape->size() - axis - 1;
    int64_t product = 1;
    for (size_t i = axis; i < to.size() - behind; ++i) {
      if (!to[i].known()) return;
      product *= to[i].value;
    }
    for (size_t i = 0; i < behind; ++i) {
      if (!(*from.shape)[axis + 1 + i].same_as(to[to.size() - behind + i])) return;
    }
    if ((*from.shape)[axis].is(product)) origin.source = graph_.input(reshape, 0);
  }

  /// What a Reshape has to be given to make the shape of a part; nothing if too much is open. The
  /// dims before the axis are those of the source.
  static std::optional<std::vector<int64_t>> target_of(const Origin& origin) {
    std::vector<int64_t> target;
    bool open = false;
    for (size_t i = 0; i < origin.shape.size(); ++i) {
      const Dim& dim = origin.shape[i];
      if (dim.known() && dim.value == 0) return std::nullopt;
      if (!dim.known() && i >= origin.axis && std::exchange(open, true)) return std::nullopt;
      target.push_back(dim.known() ? dim.value : i < origin.axis ? 0 : -1);
    }
    return target;
  }

  bool rewrite(NodeId maker, const Taken& taken) {
    const ValueId value = graph_.output(maker);
    Origin origin = origin_of(value, taken.axis);
    const auto target = target_of(origin);
    if (!target || origin.shape.empty()) return false;
    const auto count = static_cast<int64_t>(taken.gathers.size());
    Builder b(graph_, graph_.before(taken.gathers[first_of(taken)]), infer_);
    b.set_role(graph_.node(maker).role);
    b.set_origin(graph_.label(maker));
    b.set_prefix(graph_.label(maker) + "/");
    const auto parts = b.ops("Split", {b.value(origin.source)}, static_cast<int>(count),
                             {{"axis", static_cast<int64_t>(origin.axis)}, {"num_outputs", count}});
    origin.order.erase(origin.order.begin() + static_cast<std::ptrdiff_t>(taken.axis));
    for (size_t i = 0; i < parts.size(); ++i) {
      const Expr part = b.reshape(parts[i], b.ints(*target));
      replace(taken.gathers[i], turned(b, part, origin.order));
    }
    for (const NodeId gather : taken.gathers) graph_.remove(gather);
    return true;
  }

  /// The dims of a part as they were taken; -1: one of size 1.
  static Expr turned(Builder& b, Expr part, const std::vector<int64_t>& order) {
    std::vector<int64_t> perm, ones;
    for (size_t i = 0; i < order.size(); ++i) {
      if (order[i] >= 0) {
        perm.push_back(order[i]);
      } else {
        ones.push_back(static_cast<int64_t>(i));
      }
    }
    // Dims that a Squeeze took away were of size 1: they come last, and go.
    std::vector<int64_t> gone;
    for (int64_t i = 0; i < part.rank(); ++i) {
      if (std::ranges::find(perm, i) == perm.end()) gone.push_back(i);
    }
    if (!gone.empty()) {
      for (int64_t& dim : perm)
        dim -= std::ranges::count_if(gone, [&](int64_t one) { return one < dim; });
      part = b.op("Squeeze", {part, b.ints(gone)});
    }
    if (!std::ranges::is_sorted(perm)) part = b.transpose(part, perm);
    return ones.empty() ? part : b.op("Unsqueeze", {part, b.ints(ones)});
  }

  size_t first_of(const Taken& taken) const {
    size_t first = 0;
    for (size_t i = 1; i < taken.gathers.size(); ++i) {
      if (graph_.is_before(taken.gathers[i], taken.gathers[first])) first = i;
    }
    return first;
  }

  void replace(NodeId gather, Expr made) {
    graph_.node(producer(graph_, made.id)).name = graph_.node(gather).name;
    take_place(graph_, graph_.output(gather), made.id);
  }

  Graph& graph_;
  const InferNode& infer_;
};

}  // namespace

bool find_splits(Graph& graph, PassContext& context) {
  return SplitFinder(graph, context.infer).run();
}

}  // namespace halfnote
