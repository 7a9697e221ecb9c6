// The backward of attention, as the gradient rules and the precision passes leave it:
//
//   dV = Pᵀ·dY    dP = dY·Vᵀ → SoftmaxGrad(dP, P) = dS → scales, masks → dQ = dS·K, dK = dSᵀ·Q
//
// with casts, views of the batch dims and Where(IsNaN(P), 0, dP) in between. Where a term has a
// gradient, that is a ReduceSum of dS, or dS itself if the term is as large as the scores: a bias
// that meets a mask before the scores (T5), or that layers share (MPNet). Where the forward has a
// dropout, dV reads what is behind it, and dP passes the same one.
#include <algorithm>
#include <cmath>
#include <set>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/device/attention/match.h"

namespace halfnote {
namespace {

/// A Where that passes a gradient on where the mask of the forward does not hide, else 0.
bool is_mask_gradient(const Graph& graph, NodeId id, ValueId slope, ValueId mask, bool inverted) {
  const Node& node = graph.node(id);
  if (node.op != "Where" || !node.domain.empty() || graph.input(id, 0) != mask) return false;
  const size_t kept = inverted ? 2 : 1;
  const auto zero = constant_number(graph, graph.input(id, 3 - kept));
  return graph.input(id, kept) == slope && zero && *zero == 0;
}

class BackwardMatcher {
 public:
  BackwardMatcher(const Graph& graph, const AttentionForward& forward)
      : graph_(graph), forward_(forward) {}

  std::optional<AttentionBackward> run(std::string* why) {
    const bool matched =
        read_probabilities() &&
        (done_ || (read_products() && descend({graph_.output(softmax_grad_), 1, {}})));
    if (matched) return std::move(found_);
    *why = why_;
    return std::nullopt;
  }

 private:
  /// dS on its way to the products: what it was multiplied by, and the masks it has passed.
  struct Slope {
    ValueId value;
    double factor = 1;
    std::set<size_t> passed;  // indices of terms
  };

  bool no(std::string why) {
    why_ = std::move(why);
    return false;
  }

  bool is_forward(NodeId id) const {
    return std::ranges::find(forward_.nodes, id) != forward_.nodes.end();
  }

  bool is_probabilities(ValueId value) const {
    return std::ranges::find(forward_.probabilities, value) != forward_.probabilities.end();
  }

  bool is_dropped(ValueId value) const {
    return std::ranges::find(forward_.dropped, value) != forward_.dropped.end();
  }

  /// Does this node drop what the forward drops?
  bool is_same_dropout(NodeId id) const {
    const NodeId own = forward_.dropout;
    if (!is_dropout(graph_, id) || !own.valid()) return false;
    const Attributes &a = graph_.node(id).attributes, &b = graph_.node(own).attributes;
    return a.get_float("ratio", 0.5f) == b.get_float("ratio", 0.5f) &&
           a.get_int("node", 0) == b.get_int("node", 0) &&
           graph_.input(id, 1) == graph_.input(own, 1) &&
           graph_.input(id, 2) == graph_.input(own, 2);
  }

  /// A node that dP passes on its way to the gradient of Softmax.
  bool is_on_the_way(NodeId id) const {
    return id.valid() && (is_float_cast(graph_, id) || is_batch_view(graph_, id) ||
                          is_nan_guard(graph_, id, forward_.probabilities) || is_same_dropout(id));
  }

  /// Sorts the readers of P.
  bool read_probabilities() {
    for (const ValueId p : forward_.probabilities) {
      for (const Use& use : graph_.uses(p)) {
        const NodeId id = use.node();
        if (is_forward(id)) continue;
        const Node& node = graph_.node(id);
        const bool look = is_float_cast(graph_, id) || is_batch_view(graph_, id) ||
                          is_op(node, "IsNaN") || is_nan_guard(graph_, id, forward_.probabilities);
        if (look) {
          take(id);
        } else if (node.op == "SoftmaxGrad" && node.domain == kHalfnoteDomain && use.slot == 1) {
          if (softmax_grad_.valid()) return no("two gradients of Softmax");
          if (is_dropped(p)) return no("the gradient of Softmax reads probabilities after dropout");
          softmax_grad_ = id;
          take(id);
        } else if (product_flags(graph_, id)) {
          if (value_product_.valid()) return no("two gradients of V");
          if (forward_.dropout.valid() && !is_dropped(p))
            return no("the gradient of V reads probabilities before dropout");
          value_product_ = id;
        } else {
          return no("the probabilities have other readers: " + op_name(node));
        }
      }
    }
    if (!softmax_grad_.valid())
      return value_product_.valid() ? no("a gradient of V alone") : (done_ = true);
    return true;
  }

  void take(NodeId id) {
    if (std::ranges::find(found_.nodes, id) == found_.nodes.end()) found_.nodes.push_back(id);
  }

  /// dP = dY·Vᵀ, which names dY, and dV = Pᵀ·dY.
  bool read_products() {
    ValueId slope = graph_.input(softmax_grad_, 0);
    NodeId id = producer(graph_, slope);
    int dropouts = 0;
    while (is_on_the_way(id)) {
      const bool guard = graph_.node(id).op == "Where";
      guarded_ |= guard;
      dropouts += is_same_dropout(id) ? 1 : 0;
      take(id);
      id = producer(graph_, graph_.input(id, guard ? 2 : 0));
    }
    if (!id.valid()) return no("no product before the gradient of Softmax");
    const auto flags = product_flags(graph_, id);
    if (!flags || flags->a || !flags->b || graph_.input(id, 1) != forward_.value)
      return no("the gradient of P is not dY·Vᵀ");
    if (guarded_ != forward_.nan_is_zero) return no("NaN in P are not hidden alike");
    if (dropouts != (forward_.dropout.valid() ? 1 : 0))
      return no("the gradient of P does not pass its dropout");
    take(id);
    found_.grad = graph_.input(id, 0);
    if (graph_.value(found_.grad).type.dtype != graph_.value(forward_.query).type.dtype)
      return no("dY differs in type");
    if (!value_product_.valid()) return true;
    const auto of_v = product_flags(graph_, value_product_);
    const bool fits = of_v->a && !of_v->b && is_probabilities(graph_.input(value_product_, 0)) &&
                      graph_.input(value_product_, 1) == found_.grad;
    if (!fits) return no("the gradient of V is not Pᵀ·dY");
    found_.dv = graph_.output(value_product_);
    take(value_product_);
    return sum_heads(found_.dv);
  }

  /// The gradient of K or V summed to its one head, where it has one.
  bool sum_heads(ValueId& gradient) {
    if (!forward_.one_head) return true;
    auto summed = known_shape(graph_, gradient);
    NodeId id = only_reader(graph_, gradient);
    for (; id.valid() && is_float_cast(graph_, id); id = only_reader(graph_, graph_.output(id)))
      take(id);
    if (summed) (*summed)[summed->size() - 3] = 1;
    if (!is_op(graph_, id, "ReduceSum") || known_shape(graph_, graph_.output(id)) != summed)
      return no("the gradient of one head is no sum over all");
    take(id);
    gradient = graph_.output(id);
    return true;
  }

  /// Follows dS to everybody who reads it.
  bool descend(const Slope& slope) {
    for (const Use& use : graph_.uses(slope.value)) {
      if (!use.by_node()) return no("the gradient of the scores is a result");
      if (!read_reader(slope, use)) return false;
    }
    return true;
  }

  /// A number that dS is multiplied by may be that of the scores, or belong to a term: what can be
  /// read either way is read as the way to Q and K first.
  bool read_reader(const Slope& slope, const Use& use) {
    const NodeId id = use.node();
    if (graph_.node(id).region != graph_.node(softmax_grad_).region) return no("a body reads dS");
    const AttentionBackward before = found_;
    if (read_slope_reader(slope, use)) return true;
    found_ = before;
    std::string why = why_;
    if (read_term_gradient(slope, id)) return true;
    return why.empty() ? false : no(std::move(why));
  }

  bool read_slope_reader(const Slope& slope, const Use& use) {
    const NodeId id = use.node();
    Slope next = slope;
    next.value = graph_.output(id);
    if (is_float_cast(graph_, id) || is_batch_view(graph_, id)) return pass(id, next);
    if (const auto factor = scale_factor(graph_, id, slope.value)) {
      next.factor *= *factor;
      return pass(id, next);
    }
    if (const auto term = mask_of(id, slope.value)) {
      if (*term < forward_.terms.size()) next.passed.insert(*term);
      return pass(id, next);
    }
    if (product_flags(graph_, id)) return read_leaf(slope, use);
    return no({});
  }

  bool pass(NodeId id, const Slope& next) {
    take(id);
    return descend(next);
  }

  /// The term that this node hides the gradient by; as many as there are terms: the causal mask.
  std::optional<size_t> mask_of(NodeId id, ValueId slope) const {
    for (size_t i = 0; i < forward_.terms.size(); ++i) {
      const ScoreTerm& term = forward_.terms[i];
      if (term.mask && is_mask_gradient(graph_, id, slope, term.value, term.inverted)) return i;
    }
    if (!forward_.causal_mask.valid()) return std::nullopt;
    for (const bool inverted : {false, true}) {
      if (is_mask_gradient(graph_, id, slope, forward_.causal_mask, inverted))
        return forward_.terms.size();
    }
    return std::nullopt;
  }

  /// Has dS passed every mask from term `first` on?
  bool passed_masks(const Slope& slope, size_t first) const {
    std::set<size_t> masks;
    for (size_t i = first; i < forward_.terms.size(); ++i) {
      if (forward_.terms[i].mask) masks.insert(i);
    }
    return slope.passed == masks;
  }

  bool read_leaf(const Slope& slope, const Use& use) {
    const NodeId id = use.node();
    if (!is_factor(slope.factor, forward_.score_scale)) return no("dS has another scale");
    if (!passed_masks(slope, 0)) return no("dS passed other masks");
    const ProductFlags flags = *product_flags(graph_, id);
    const ValueId other = graph_.input(id, 1 - use.slot);
    const auto is_other = [&](const SeenKey& key) {
      return key.value == other && key.turned == flags.b;
    };
    if (use.slot == 0 && !flags.a && std::ranges::any_of(forward_.keys_read, is_other)) {
      if (found_.dq.valid()) return no("two gradients of Q");
      found_.dq = graph_.output(id);
      take(id);
      return forward_.query_factor == 1 || pass_factor(found_.dq, forward_.query_factor);
    }
    if (other != forward_.query_read || flags.b || !flags.a)
      return no("a product with dS that is neither dQ nor dK");
    if (found_.dk.valid()) return no("two gradients of K");
    found_.dk = graph_.output(id);
    found_.dk_transposed = use.slot == 1;
    take(id);
    return sum_heads(found_.dk) && read_key_gradient();
  }

  /// dK may be turned, as K is, on either side of its factor.
  bool read_key_gradient() {
    if (forward_.key_factor == 1) return true;
    pass_transpose();
    if (!pass_factor(found_.dk, forward_.key_factor)) return false;
    pass_transpose();
    return true;
  }

  /// Are two numbers the same, or one of them the other rounded to the type of Q, where a node on
  /// one side multiplies in f32?
  bool is_factor(double factor, double expected) const {
    const DType type = graph_.value(forward_.query).type.dtype;
    const double rounded = type == DType::kF16 ? 0x1p-11 : type == DType::kBF16 ? 0x1p-8 : 1e-6;
    return std::abs(factor / expected - 1) <= rounded;
  }

  /// The gradient behind the factor that Q or K has.
  bool pass_factor(ValueId& gradient, double expected) {
    const NodeId id = only_reader(graph_, gradient);
    const auto factor = id.valid() ? scale_factor(graph_, id, gradient) : std::nullopt;
    if (!factor || !is_factor(*factor, expected))
      return no("the gradient of Q or K has another factor");
    take(id);
    gradient = graph_.output(id);
    return true;
  }

  /// dK turned to how K lies, where it does not lie so.
  void pass_transpose() {
    const NodeId id = only_reader(graph_, found_.dk);
    if (found_.dk_transposed == forward_.trans_k || !id.valid()) return;
    if (!is_matrix_transpose(graph_, id)) return;
    take(id);
    found_.dk = graph_.output(id);
    found_.dk_transposed = forward_.trans_k;
  }

  /// A sum of dS over batch dims to the shape of a float term, or whoever reads dS as the gradient
  /// of a term that is as large.
  bool read_term_gradient(const Slope& slope, NodeId id) {
    const Node& node = graph_.node(id);
    const bool sums = is_op(node, "ReduceSum") && graph_.input(id, 0) == slope.value &&
                      (node.attributes.get_int("keepdims", 1) != 0 || sums_leading_dims(id));
    const auto shape = known_shape(graph_, graph_.output(id));
    const auto summed = sums && shape ? term_of(slope, *shape) : std::nullopt;
    if (summed) {
      take(id);
      return read_gradient_of(slope, *summed, graph_.output(id));
    }
    const auto whole = known_shape(graph_, slope.value);
    const auto term = whole ? term_of(slope, *whole) : std::nullopt;
    if (term) return read_gradient_of(slope, *term, slope.value);
    return no(sums ? "a sum of dS that is no gradient of a term"
                   : "dS has other readers: " + op_name(node));
  }

  /// Are the first dims summed, and no others?
  bool sums_leading_dims(NodeId sum) const {
    const ValueId operand = graph_.input(sum, 1);
    const Tensor* axes = operand.valid() ? graph_.constant(operand) : nullptr;
    if (axes == nullptr) return false;
    for (int64_t i = 0; i < axes->size(); ++i) {
      if (axes->at_as_int(i) != i) return false;
    }
    return axes->size() > 0;
  }

  /// The first float term that dS, summed to this shape, is the gradient of.
  std::optional<size_t> term_of(const Slope& slope, const Shape& shape) const {
    for (size_t i = 0; i < forward_.terms.size(); ++i) {
      const ScoreTerm& term = forward_.terms[i];
      if (term.mask || !is_term_shape(shape, i)) continue;
      if (known_shape(graph_, slope.value) != term.met) continue;  // summed over other dims
      if (!term.view.empty() && shape != term.met) continue;       // seen otherwise, and summed
      if (passed_masks(slope, i)) return i;
    }
    return std::nullopt;
  }

  bool read_gradient_of(const Slope& slope, size_t term, ValueId gradient) {
    if (found_.term_grad.valid() && found_.term_grad != gradient)
      return no("gradients of two terms");
    if (slope.factor != 1) return no("the gradient of a term has a scale");
    found_.term_grad = gradient;
    found_.term = term;
    const bool whole = gradient == slope.value;  // in 16 bits it is dS rounded, no sum
    return whole || graph_.value(gradient).type.dtype == wide() || no("dS is summed in 16 bits");
  }

  DType wide() const {
    const DType type = graph_.value(forward_.query).type.dtype;
    return type == DType::kF64 ? type : DType::kF32;
  }

  /// Is it the shape of the term with ones in front, and the term whole in its last two dims?
  bool is_term_shape(Shape shape, size_t term) const {
    Shape own = *known_shape(graph_, forward_.terms[term].value);
    while (own.size() < shape.size()) own.insert(own.begin(), 1);
    const Shape& scores = forward_.score_shape;
    // Along a dim of one the kernels would take it for broadcast.
    const bool one = scores.back() == 1 || scores[scores.size() - 2] == 1;
    return own == shape && own.size() >= 2 && !one &&
           std::equal(own.end() - 2, own.end(), scores.end() - 2);
  }

  const Graph& graph_;
  const AttentionForward& forward_;
  AttentionBackward found_;
  NodeId softmax_grad_, value_product_;
  bool guarded_ = false;  // Where(IsNaN(P), 0, dP)
  bool done_ = false;     // nobody asks for a gradient
  std::string why_;
};

}  // namespace

std::optional<AttentionBackward> match_attention_gradient(const Graph& graph,
                                                          const AttentionForward& forward,
                                                          std::string* why) {
  return BackwardMatcher(graph, forward).run(why);
}

}  // namespace halfnote
