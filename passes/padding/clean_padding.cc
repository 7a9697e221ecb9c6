// clean_padding: a slice that is padded again right away goes, together with the Pad.
//
//   y = Slice(y1, to 10)   r = Relu(y)   r1 = Pad(r, to 16)      ──▶      r1 = Relu(y1)
//
// Exact for finite values: the lanes that the slice cut off are zero (the contraction's operands
// were zero there), and the ops that the slice moves through keep zero zero. Slices sink through
// those ops as long as all their operands are slices of one extent; other readers keep a slice
// behind the op. A lane next to an Inf becomes NaN (0 · Inf), which the next contraction spreads:
// a step that overflowed stays not finite and is skipped, though the Inf itself might have been
// lost on the way (Relu of -Inf). Leaves alone: padding that the user's model has, ops that move
// zero (Exp, Sigmoid, Add of an unsliced operand), softmax, loss, norms and statistics, which must
// never see a padded lane.
#include <algorithm>

#include "passes/padding/remove_padding.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

/// f(0, …, 0) = 0, element by element or, for pooling, channel by channel.
constexpr std::string_view kKeepZero[] = {"Relu",        "LeakyRelu",
                                          "Neg",         "Abs",
                                          "Cast",        "Gelu",
                                          "Tanh",        "Erf",
                                          "HardSwish",   "Swish",
                                          "Mish",        "Sign",
                                          "Elu",         "Selu",
                                          "Add",         "Sub",
                                          "Mul",         "Sum",
                                          "MaxPool",     "AveragePool",
                                          "ReluGrad",    "LeakyReluGrad",
                                          "GeluGrad",    "TanhGrad",
                                          "MaxPoolGrad", "AveragePoolGrad"};

bool keeps_zero(const Node& node) {
  return std::find(std::begin(kKeepZero), std::end(kKeepZero), node.op) != std::end(kKeepZero);
}

bool is_marked(const Graph& graph, NodeId node, std::string_view op) {
  return node.valid() && graph.node(node).op == op && is_padding(graph.node(node));
}

class Cleaner {
 public:
  Cleaner(Graph& graph, PassContext& context)
      : graph_(graph), b_(graph, graph.end(), context.infer), infer_(context.infer) {}

  bool run() {
    bool changed = false;
    for (NodeId node : graph_.nodes()) {
      if (!graph_.node(node).alive) continue;
      changed |= is_marked(graph_, node, "Pad") ? cancel(node) : sink(node);
    }
    return changed;
  }

 private:
  NodeId slice_above(ValueId value) const {
    const NodeId producer = value.valid() ? graph_.value(value).producer : NodeId{};
    return is_marked(graph_, producer, "Slice") ? producer : NodeId{};
  }

  /// Pad(Slice(x)) with the shape of x is x.
  bool cancel(NodeId pad) {
    const NodeId slice = slice_above(graph_.input(pad, 0));
    if (!slice.valid()) return false;
    const ValueId source = graph_.input(slice, 0);
    if (!(graph_.value(source).type == graph_.value(graph_.output(pad)).type)) return false;
    graph_.replace_uses(graph_.output(pad), source);
    graph_.remove(pad);
    return true;
  }

  /// Is the result read by a Pad of ours, or by ops that lead to one?
  bool leads_to_pad(ValueId value, int depth) const {
    for (const Use& use : graph_.uses(value)) {
      if (!use.by_node()) continue;
      if (is_marked(graph_, use.node(), "Pad")) return true;
      const Node& reader = graph_.node(use.node());
      if (depth > 0 && keeps_zero(reader) && leads_to_pad(graph_.output(use.node()), depth - 1))
        return true;
    }
    return false;
  }

  bool sink(NodeId node) {
    if (!keeps_zero(graph_.node(node)) || graph_.outputs(node).size() != 1) return false;
    std::vector<ValueId> sources;
    NodeId first;
    const auto inputs = graph_.inputs(node);
    for (ValueId input : inputs) {
      const NodeId slice = slice_above(input);
      if (!slice.valid()) return false;
      if (!first.valid()) first = slice;
      const bool same_shape = graph_.value(graph_.input(slice, 0)).type.shape ==
                              graph_.value(graph_.input(first, 0)).type.shape;
      if (!same_extent(slice, first) || (!same_shape && !is_pool_grad(node))) return false;
      sources.push_back(graph_.input(slice, 0));
    }
    if (!first.valid() || !leads_to_pad(graph_.output(node), 4)) return false;
    if (is_pooling(graph_.node(node)) && !cuts_channels(first)) return false;
    for (size_t i = 0; i < sources.size(); ++i) graph_.set_input(node, i, sources[i]);
    reslice(node, first);
    return true;
  }

  static bool is_pooling(const Node& node) { return node.op.find("Pool") != std::string::npos; }

  /// Pooling keeps the channels apart, but mixes what lies along its windows: a product may have
  /// been padded along them.
  bool cuts_channels(NodeId slice) const {
    const Tensor* axes = graph_.constant(graph_.input(slice, 3));
    if (axes == nullptr) return false;
    const std::vector<int64_t> cut = axes->to_ints();
    return std::all_of(cut.begin(), cut.end(), [](int64_t axis) { return axis == 0 || axis == 1; });
  }

  /// MaxPoolGrad's operands differ in their spatial dims; the slices must still cut the same
  /// channels.
  bool is_pool_grad(NodeId node) const { return graph_.node(node).op == "MaxPoolGrad"; }

  bool same_extent(NodeId a, NodeId b) const {
    for (size_t slot = 1; slot < 4; ++slot) {
      const Tensor* x = graph_.constant(graph_.input(a, slot));
      const Tensor* y = graph_.constant(graph_.input(b, slot));
      if (x == nullptr || y == nullptr || !identical(*x, *y)) return false;
    }
    return true;
  }

  /// The op now works on padded lanes; its readers get a slice behind it.
  void reslice(NodeId node, NodeId slice) {
    const ValueId result = graph_.output(node);
    const std::string name = graph_.value(result).name;
    graph_.value(result).type = {};
    infer_(graph_, node);
    b_.set_insert_point(graph_.after(node));
    b_.set_role(graph_.node(node).role);
    b_.set_origin(graph_.node(node).name);
    const Expr cut =
        b_.op("Slice", {b_.value(result), b_.value(graph_.input(slice, 1)),
                        b_.value(graph_.input(slice, 2)), b_.value(graph_.input(slice, 3))});
    const NodeId made = b_.last();
    graph_.node(made).metadata.emplace_back(kPaddingMark, "slice");
    graph_.node(made).precision.reason = "padding to multiples of 8";
    graph_.replace_uses_if(result, cut.id, [&](const Use& use) { return use.node() != made; });
    graph_.rename(result, graph_.unique_name(name + ".padded"));
    graph_.rename(cut.id, name);
    graph_.value(cut.id).scale_power = graph_.value(result).scale_power;
  }

  Graph& graph_;
  Builder b_;
  InferNode infer_;
};

}  // namespace

bool clean_padding(Graph& graph, PassContext& context) { return Cleaner(graph, context).run(); }

}  // namespace halfnote
