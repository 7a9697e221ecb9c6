// keep_padded_classes: scores whose classes are padded for tensor cores stay so from their product
// to the products of their gradient, for GPUs only. The loss is told how many classes count.
//
//   s = Slice (p: [8,104], to [8,100])            b' = Pad (b, to [104])
//   x = Add (s, b)                                x' = Add (p, b')
//   l, d = SoftmaxCrossEntropyLossWithGradient    l, d' = SoftmaxCrossEntropyLossWithGradient
//     (x, t, dl)                           ──▶      <classes = 100> (x', t, dl)
//   d' = Pad (d, to [8,104])                      sum' = ReduceSum <axes = [0]> (d')
//   sum = ReduceSum <axes = [0]> (d)              sum = Slice (sum', to [100])
//
// Reshapes, casts from 16 bits, and slices and pads of other dims may stand in between. Exact: the
// loss does not read the padding, and writes zeros there, as Pad did. Leaves alone: gradients that
// nobody pads, bodies, and slices that take off more than an eighth. Whoever else reads scores or
// gradient reads a slice of what is padded now.
#include "passes/device/keep_padded_classes.h"

#include <algorithm>
#include <set>

#include "compiler/ir/builder.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "passes/device/margins.h"
#include "passes/pass_through.h"

namespace halfnote {
namespace {

/// One loss, and what lies between it and the products before and behind it.
class ClassKeeper {
 public:
  ClassKeeper(Graph& graph, PassContext& context, NodeId loss)
      : graph_(graph), b_(graph, graph.before(loss), context.infer), loss_(loss) {}

  bool run() {
    if (!find_scores() || !find_takers()) return false;
    const ValueId whole = graph_.input(slice_, 0);
    std::vector<ValueId> wide = {whole};
    for (const NodeId id : way_) wide.push_back(padded_scores(id, wide.back()));
    graph_.set_input(loss_, 0, wide.back());
    graph_.node(loss_).attributes.set("classes", classes_);
    for (size_t i = way_.size(); i-- > 0;) {
      const bool skipped = wide[i + 1] == wide[i];
      if (!skipped || !graph_.has_uses(graph_.output(way_[i]))) leave(way_[i], wide[i + 1]);
    }
    if (!graph_.has_uses(graph_.output(slice_))) graph_.remove(slice_);
    widen_gradient();
    return true;
  }

 private:
  /// From the loss back to the Slice that took the padding off.
  bool find_scores() {
    const auto scores = known_shape(graph_, graph_.input(loss_, 0));
    if (!scores || scores->size() != 2 || graph_.node(loss_).attributes.has("classes"))
      return false;
    classes_ = scores->back();
    for (ValueId at = graph_.input(loss_, 0);;) {
      const NodeId id = producer(graph_, at);
      if (!id.valid() || graph_.node(id).region != graph_.main()) return false;
      if (ends_at(id)) break;
      if (!is_on_way(id)) return false;
      way_.push_back(id);
      at = graph_.input(id, scores_of(id));
    }
    std::ranges::reverse(way_);
    return true;
  }

  bool ends_at(NodeId id) {
    if (!is_standard(graph_, id, "Slice")) return false;
    const auto margins = margins_of_slice(graph_, id);
    if (!margins || !margins->only_behind_last()) return false;
    padding_ = margins->behind.back();
    slice_ = id;
    return padding_ <= std::max(kLittlePadding, classes_ / 8);
  }

  bool is_on_way(NodeId id) const {
    if (keeps_last_dim(graph_, id)) return true;
    if (is_standard(graph_, id, "Slice")) {
      const auto margins = margins_of_slice(graph_, id);
      return margins && margins->none_at_last() && !names_last_dim(id);
    }
    if (is_standard(graph_, id, "Add")) return adds_bias(id, 0) || adds_bias(id, 1);
    return is_cast(graph_.node(id)) && is_16bit_float(dtype_of(graph_.input(id, 0))) &&
           dtype_of(graph_.output(id)) == DType::kF32;
  }

  /// Does a Slice say where the last dim ends? It would cut off what is padded.
  bool names_last_dim(NodeId slice) const {
    const size_t rank = known_shape(graph_, graph_.input(slice, 0))->size();
    const auto dims = named_dims(graph_, slice, 3, rank);
    return !dims || std::ranges::find(*dims, rank - 1) != dims->end();
  }

  /// Which operand of a node on the way are the scores?
  size_t scores_of(NodeId id) const {
    return is_standard(graph_, id, "Add") && adds_bias(id, 0) ? 1 : 0;
  }

  bool adds_bias(NodeId add, size_t operand) const {
    const auto bias = known_shape(graph_, graph_.input(add, operand));
    const auto sum = known_shape(graph_, graph_.output(add));
    return bias && sum && *bias == Shape{classes_} && sum->size() > 1;
  }

  DType dtype_of(ValueId value) const { return graph_.value(value).type.dtype; }

  /// What `id`, which is on the way, makes of the padded scores.
  ValueId padded_scores(NodeId id, ValueId wide) {
    if (is_cast(graph_.node(id)) && only_views_follow(id)) return wide;  // the loss reads 16 bits
    std::vector<Expr> inputs = operands(id);
    const size_t scores = scores_of(id);
    inputs[scores] = b_.value(wide);
    start_before(id);
    if (is_standard(graph_, id, "Add"))
      inputs[1 - scores] = b_.op("Pad", {inputs[1 - scores], b_.ints({0, padding_})});
    return widened(id, std::move(inputs));
  }

  bool only_views_follow(NodeId cast) const {
    const auto after = std::ranges::find(way_, cast) + 1;
    return std::all_of(after, way_.end(), [&](NodeId id) {
      return !is_standard(graph_, id, "Add") && !is_cast(graph_.node(id));
    });
  }

  std::vector<Expr> operands(NodeId id) {
    std::vector<Expr> all;
    for (const ValueId value : graph_.inputs(id)) all.push_back(b_.value(value));
    return all;
  }

  void start_before(NodeId id) {
    b_.set_insert_point(graph_.before(id));
    b_.set_role(graph_.node(id).role);
    b_.set_origin(graph_.node(id).origin.empty() ? graph_.label(id) : graph_.node(id).origin.str());
  }

  /// The node once more, on padded operands.
  ValueId widened(NodeId id, std::vector<Expr> inputs) {
    start_before(id);
    if (is_standard(graph_, id, "Reshape")) {
      Shape shape = *known_shape(graph_, graph_.output(id));
      shape.back() += padding_;
      inputs[1] = b_.ints({shape.begin(), shape.end()});
    }
    Attributes attributes = graph_.node(id).attributes;
    attributes.erase("allowzero");
    const ValueId wide = b_.ops(graph_.node(id).op, inputs, 1, std::move(attributes))[0].id;
    graph_.node(b_.last()).precision = graph_.node(id).precision;
    graph_.value(wide).scale_power = graph_.value(graph_.output(id)).scale_power;
    return wide;
  }

  ValueId cut(ValueId wide) {
    const auto last = static_cast<int64_t>(known_shape(graph_, wide)->size()) - 1;
    const Expr part =
        b_.op("Slice", {b_.value(wide), b_.ints({0}), b_.ints({classes_}), b_.ints({last})});
    graph_.value(part.id).scale_power = graph_.value(wide).scale_power;
    return part.id;
  }

  /// Takes out a node whose result is `wide` now, without the padding; who reads it reads a slice.
  void leave(NodeId id, ValueId wide) {
    const ValueId result = graph_.output(id);
    if (!graph_.has_uses(result)) return graph_.remove(id);
    start_before(id);
    const ValueId part = cut(wide);
    take_place(graph_, result, part);
    graph_.remove(id);
  }

  void widen_gradient() {
    const ValueId gradient = graph_.output(loss_, 1);
    graph_.value(gradient).type.shape->back() = Dim(classes_ + padding_);
    b_.set_insert_point(graph_.after(loss_));
    b_.set_role(Role::kBackward);
    b_.set_origin(graph_.label(loss_));
    const ValueId narrow = cut(gradient);
    const NodeId slice = b_.last();
    graph_.replace_uses_if(gradient, narrow,
                           [&](const Use& use) { return !use.by_node() || use.node() != slice; });
    widen_users(narrow, gradient);
    if (graph_.has_uses(narrow)) {
      const std::string name = graph_.value(gradient).name;
      graph_.rename(gradient, graph_.unique_name(name + ".padded"));
      graph_.rename(narrow, name);
    } else {
      const std::vector<ValueId> bounds(graph_.inputs(slice).begin() + 1,
                                        graph_.inputs(slice).end());
      graph_.remove(slice);
      for (const ValueId bound : bounds) graph_.remove_value(bound);
    }
  }

  /// The nodes behind the loss that have a use for padding of the gradient, or hand it on to one
  /// that does; each is looked at once.
  bool find_takers() {
    struct Reached {
      NodeId id, from;  // from: the node before it on the way, if any
    };
    std::vector<Reached> seen;
    const auto visit = [&](ValueId gradient, NodeId from) {
      for (const NodeId id : graph_.users(gradient)) {
        if (graph_.node(id).region == graph_.main()) seen.push_back({id, from});
      }
    };
    visit(graph_.output(loss_, 1), NodeId{});
    for (size_t i = 0; i < seen.size(); ++i) {
      const NodeId id = seen[i].id;
      if (is_padding(id) || sums_rows(id)) {
        takers_.insert(id);
      } else if (hands_on(id)) {
        visit(graph_.output(id), id);
      }
    }
    for (size_t i = seen.size(); i-- > 0;) {
      if (seen[i].from.valid() && takers_.contains(seen[i].id)) takers_.insert(seen[i].from);
    }
    return !takers_.empty();
  }

  /// A Pad that makes of the gradient what the loss writes now.
  bool is_padding(NodeId id) const {
    if (!is_standard(graph_, id, "Pad") || is_region_output(graph_, graph_.output(id)))
      return false;
    const auto margins = margins_of_pad(graph_, id);
    return margins && margins->only_behind_last() && margins->behind.back() == padding_;
  }

  bool sums_rows(NodeId id) const {
    const auto x = known_shape(graph_, graph_.input(id, 0));
    if (!is_standard(graph_, id, "ReduceSum") || !x || x->empty()) return false;
    const auto axes = known_numbers(graph_, id, 1);
    if (!axes || axes->empty()) return false;
    const auto last = static_cast<int64_t>(x->size()) - 1;
    return std::ranges::none_of(*axes, [&](int64_t axis) { return axis == last || axis == -1; });
  }

  /// Does it move or cast rows?
  bool hands_on(NodeId id) const {
    if (is_cast(graph_.node(id)) || keeps_last_dim(graph_, id)) return true;
    if (!is_standard(graph_, id, "Pad")) return false;
    const auto margins = margins_of_pad(graph_, id);
    return margins && margins->none_at_last();
  }

  /// Gives the takers of `narrow` `wide` in its place, and so on; no recursion, a way may be long.
  void widen_users(ValueId narrow, ValueId wide) {
    struct Widening {
      NodeId id;
      ValueId wide;  // the operand; the result once it is made
      bool made = false;
    };
    std::vector<Widening> open;
    const auto visit = [&](ValueId from, ValueId padded) {
      const std::vector<NodeId> users = graph_.users(from);
      for (size_t i = users.size(); i-- > 0;) {
        if (takers_.contains(users[i])) open.push_back({users[i], padded});
      }
    };
    visit(narrow, wide);
    while (!open.empty()) {
      const Widening step = open.back();
      open.pop_back();
      if (step.made) {
        leave(step.id, step.wide);
      } else if (is_padding(step.id)) {
        graph_.replace_uses(graph_.output(step.id), step.wide);
        graph_.remove(step.id);
      } else {
        std::vector<Expr> inputs = operands(step.id);
        inputs[0] = b_.value(step.wide);
        const ValueId result = widened(step.id, std::move(inputs));
        open.push_back({step.id, result, true});
        if (!sums_rows(step.id)) visit(graph_.output(step.id), result);
      }
    }
  }

  /// As much as makes a multiple of 8 of any number.
  static constexpr int64_t kLittlePadding = 8;

  Graph& graph_;
  Builder b_;
  NodeId loss_, slice_;
  std::vector<NodeId> way_;  // from the Slice to the loss, neither of them
  std::set<NodeId> takers_;
  int64_t classes_ = 0, padding_ = 0;
};

}  // namespace

bool keep_padded_classes(Graph& graph, PassContext& context) {
  bool changed = false;
  for (const NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    if (!node.alive || node.op != "SoftmaxCrossEntropyLossWithGradient") continue;
    if (node.domain == kHalfnoteDomain) changed |= ClassKeeper(graph, context, id).run();
  }
  return changed;
}

}  // namespace halfnote
