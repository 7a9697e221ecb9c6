// find_splits: values that are taken one by one from an axis are a Split, before the axis is moved.
//
//   r = Reshape (x, [.., 3, m])                       q, k, v = Split <axis = last> (x)
//   t = Transpose (Unsqueeze (r))              ──▶    (each with the Transpose that is left of t)
//   q, k, v = Gather <axis = 0> (t, 0), … 1, … 2
//
//   q, k, v = Slice (x, 0, m, last), … m, 2m, … 2m, 3m    ──▶    q, k, v = Split <axis = last> (x)
//
// So the layers of PyTorch's MultiheadAttention and timm's take Q, K and V apart, and who writes
// x[..., m:2*m], whose gradient would be a sum of three padded tensors, and is a Concat. Exact.
// Leaves alone: axes of which an index is left out or taken twice, values that somebody else reads
// whole, slices of several axes or with strides, parts of lowered operators.
#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "compiler/ops/operator.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

constexpr int64_t kMostTakenParts = 64;

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

/// The slices of one axis of a value, side by side from its first index to its last.
struct Sliced {
  size_t axis = 0;
  std::vector<NodeId> slices;
  std::vector<int64_t> sizes;
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
      const ValueId value = graph_.output(node);
      if (const auto taken = find_taken(value)) {
        changed |= rewrite(node, *taken);
      } else {
        changed |= split_slices(value);
      }
    }
    // Weights by gate, which an exporter puts into another order.
    for (const ValueId value : graph_.initializers()) changed |= split_slices(value);
    return changed;
  }

 private:
  /// Is it part of an operator that was lowered? What it was says which precision it wants.
  bool is_lowered(NodeId node) const {
    return std::ranges::any_of(graph_.node(node).metadata,
                               [](const auto& entry) { return entry.first == kLoweredFromKey; });
  }

  /// The node that takes something from a value by this use; invalid if it is not such an operator
  /// of the main graph.
  NodeId taker(const Use& use, std::string_view op) const {
    if (!use.by_node() || use.slot != 0 || !is_op(graph_, use.node(), op)) return {};
    const NodeId node = use.node();
    return graph_.node(node).region == graph_.main() && !is_lowered(node) ? node : NodeId{};
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
      const NodeId gather = taker(use, "Gather");
      if (!gather.valid()) return std::nullopt;
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

  /// The one number that an input of a Slice names; nothing if that is another one.
  std::optional<int64_t> one_number(NodeId slice, size_t input) const {
    const ValueId value =
        graph_.inputs(slice).size() > input ? graph_.input(slice, input) : ValueId{};
    const Tensor* tensor = value.valid() ? graph_.constant(value) : nullptr;
    return tensor != nullptr && tensor->size() == 1 ? std::optional(tensor->at_as_int(0))
                                                    : std::nullopt;
  }

  std::optional<Sliced> find_sliced(ValueId value) const {
    const ValueType& type = graph_.value(value).type;
    const auto uses = graph_.uses(value);
    if (!type.shape || uses.size() < 2) return std::nullopt;
    Sliced sliced;
    std::vector<std::array<int64_t, 2>> ranges;
    for (const Use& use : uses) {
      const NodeId slice = taker(use, "Slice");
      if (!slice.valid()) return std::nullopt;
      const bool has_axis = graph_.inputs(slice).size() > 3 && graph_.input(slice, 3).valid();
      const bool has_step = graph_.inputs(slice).size() > 4 && graph_.input(slice, 4).valid();
      const auto begin = one_number(slice, 1), end = one_number(slice, 2),
                 given = has_axis ? one_number(slice, 3) : 0,
                 step = has_step ? one_number(slice, 4) : 1;
      if (!begin || !end || !given || step != 1) return std::nullopt;
      const auto axis = wrapped(*given, type.shape->size());
      if (!axis || (!ranges.empty() && static_cast<size_t>(*axis) != sliced.axis))
        return std::nullopt;
      sliced.axis = static_cast<size_t>(*axis);
      const Dim& dim = (*type.shape)[sliced.axis];
      if (!dim.known()) return std::nullopt;
      const auto place = [&](int64_t at) {
        return std::clamp<int64_t>(at < 0 ? at + dim.value : at, 0, dim.value);
      };
      ranges.push_back({place(*begin), place(*end)});
      sliced.slices.push_back(slice);
    }
    return lie_side_by_side(sliced, ranges, (*type.shape)[sliced.axis].value)
               ? std::optional(std::move(sliced))
               : std::nullopt;
  }

  /// Brings the slices into the order of their ranges; false if these are not all of [0, size).
  static bool lie_side_by_side(Sliced& sliced, const std::vector<std::array<int64_t, 2>>& ranges,
                               int64_t size) {
    std::vector<size_t> order(ranges.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, {}, [&](size_t i) { return ranges[i]; });
    const std::vector<NodeId> slices = std::exchange(sliced.slices, {});
    int64_t at = 0;
    for (const size_t i : order) {
      const auto [begin, end] = ranges[i];
      if (begin != at || end <= begin) return false;
      sliced.slices.push_back(slices[i]);
      sliced.sizes.push_back(end - begin);
      at = end;
    }
    return at == size;
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
    Builder b(graph_, graph_.before(first_of(taken.gathers)), infer_);
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

  bool split_slices(ValueId value) {
    const auto sliced = find_sliced(value);
    if (sliced) rewrite_slices(value, *sliced);
    return sliced.has_value();
  }

  void rewrite_slices(ValueId whole, const Sliced& sliced) {
    const NodeId first = first_of(sliced.slices), maker = graph_.value(whole).producer;
    Builder b(graph_, graph_.before(first), infer_);
    b.set_role(graph_.node(maker.valid() ? maker : first).role);
    const std::string label = maker.valid() ? graph_.label(maker) : graph_.value(whole).name;
    b.set_origin(maker.valid() ? label : graph_.label(first));
    b.set_prefix(label + "/");
    const auto count = static_cast<int>(sliced.slices.size());
    const bool alike = std::ranges::count(sliced.sizes, sliced.sizes[0]) == count;
    std::vector<Expr> inputs = {b.value(whole)};
    Attributes attributes = {{"axis", static_cast<int64_t>(sliced.axis)}};
    if (alike) {
      attributes.set("num_outputs", int64_t{count});
    } else {
      inputs.push_back(b.ints(sliced.sizes));
    }
    const auto parts = b.ops("Split", inputs, count, std::move(attributes));
    for (size_t i = 0; i < parts.size(); ++i)
      take_place(graph_, graph_.output(sliced.slices[i]), parts[i].id);
    for (const NodeId slice : sliced.slices) graph_.remove(slice);
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

  NodeId first_of(const std::vector<NodeId>& nodes) const {
    return *std::ranges::min_element(nodes,
                                     [&](NodeId a, NodeId b) { return graph_.is_before(a, b); });
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
