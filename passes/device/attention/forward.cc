// The forward of attention. From Softmax up to the product the steps may be, as data in kSteps:
// casts, a Mul or Div by a number, an Add of a term, a Where that hides by a mask (its number where
// the mask is false, or true), a view of the batch dims. Q and K may be multiplied by a number each
// before the product, K be turned on either side of that. From Softmax down to the product with V:
// a cast, a view, Where(IsNaN(P), 0, P), a dropout (of ONNX: one that drops nothing).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/device/attention/match.h"

namespace halfnote {
namespace {

/// What a row of scores can be hidden by and no score be less than: exp is 0 behind it.
constexpr double kFarBelow = -3e4;
constexpr int kMaxScoreSteps = 12;  // between the product and Softmax
constexpr std::string_view kNoProduct = "no product of matrices before Softmax";

Shape batch_of(const Shape& shape) { return {shape.begin(), shape.end() - 2}; }

/// Has the value the last two dims of `shape` or less, and can it be broadcast to it?
bool broadcasts_to(const Graph& graph, ValueId value, const Shape& shape) {
  const auto own = known_shape(graph, value);
  if (!own || own->size() > shape.size()) return false;
  for (size_t i = 0; i < own->size(); ++i) {
    const int64_t dim = (*own)[own->size() - 1 - i];
    if (dim != 1 && dim != shape[shape.size() - 1 - i]) return false;
  }
  return true;
}

/// How many dims of `a` from `i` and of `b` from `j` on have the same product, the fewest that do;
/// nothing where there are none.
std::optional<std::pair<size_t, size_t>> same_product(const Shape& a, size_t i, const Shape& b,
                                                      size_t j) {
  const size_t first_a = i, first_b = j;
  int64_t of_a = i < a.size() ? a[i++] : 1, of_b = j < b.size() ? b[j++] : 1;
  while (of_a != of_b) {
    const bool more_of_a = of_a < of_b;
    if (more_of_a ? i == a.size() : j == b.size()) return std::nullopt;
    if (more_of_a) {
      of_a *= a[i++];
    } else {
      of_b *= b[j++];
    }
  }
  return std::pair(i - first_a, j - first_b);
}

/// The shape in which a term `own`, which was broadcast to scores of the shape `met`, is broadcast
/// to them as `scores`; empty if it is as it is. Dims that are joined or split on the way it has
/// all or none of.
std::optional<Shape> view_of_term(Shape own, const Shape& met, const Shape& scores) {
  if (met == scores) return Shape();
  const Shape as_is = own, from = batch_of(met), to = batch_of(scores);
  own.insert(own.begin(), met.size() - own.size(), 1);
  Shape view;
  for (size_t i = 0, j = 0; i < from.size() || j < to.size();) {
    const auto group = same_product(from, i, to, j);
    if (!group) return std::nullopt;
    const auto [dims, others] = *group;
    const std::span<const int64_t> mine = std::span(own).subspan(i, dims);
    const std::span<const int64_t> whole = std::span(from).subspan(i, dims);
    const std::span<const int64_t> wanted = std::span(to).subspan(j, others);
    if (std::ranges::equal(whole, wanted)) {
      view.insert(view.end(), mine.begin(), mine.end());
    } else if (std::ranges::all_of(mine, [](int64_t dim) { return dim == 1; })) {
      view.insert(view.end(), others, 1);
    } else if (std::ranges::equal(mine, whole)) {
      view.insert(view.end(), wanted.begin(), wanted.end());
    } else {
      return std::nullopt;
    }
    i += dims;
    j += others;
  }
  view.insert(view.end(), own.end() - 2, own.end());
  const auto without_ones = [](const Shape& shape) {
    return Shape(std::ranges::find_if(shape, [](int64_t dim) { return dim != 1; }), shape.end());
  };
  const bool same = as_is.size() <= scores.size() && without_ones(as_is) == without_ones(view);
  return same ? Shape() : view;
}

/// One step from Softmax towards the product, and the operand that goes on.
struct Step {
  ValueId next;
  double factor = 1;
  std::optional<ScoreTerm> term;
};
using ReadStep = std::vector<Step> (*)(const Graph&, NodeId);

std::vector<Step> read_cast(const Graph& graph, NodeId id) {
  if (!is_float_cast(graph, id) && !is_batch_view(graph, id)) return {};
  return {{graph.input(id, 0), 1, {}}};
}

std::vector<Step> read_scale(const Graph& graph, NodeId id) {
  std::vector<Step> steps;
  for (const ValueId x : graph.inputs(id)) {
    if (const auto factor = scale_factor(graph, id, x)) steps.push_back({x, *factor, {}});
  }
  return steps;
}

/// ONNX's Dropout in inference form, whose mask nobody reads: what is exported for inference has it
/// in a training step too.
bool is_idle_dropout(const Graph& graph, NodeId id) {
  if (!is_op(graph, id, "Dropout")) return false;
  const ValueId training = graph.input(id, 2), mask = graph.output(id, 1);
  const Tensor* known = training.valid() ? graph.constant(training) : nullptr;
  const bool idle = !training.valid() || (known != nullptr && known->at_as_int(0) == 0);
  return idle && !(mask.valid() && graph.has_uses(mask));
}

/// Either operand may be the term; the other has to lead to the product.
std::vector<Step> read_bias(const Graph& graph, NodeId id) {
  if (!is_op(graph, id, "Add")) return {};
  const ValueId a = graph.input(id, 0), b = graph.input(id, 1);
  return {{a, 1, ScoreTerm{b}}, {b, 1, ScoreTerm{a}}};
}

std::vector<Step> read_mask(const Graph& graph, NodeId id) {
  if (!is_op(graph, id, "Where")) return {};
  std::vector<Step> steps;
  for (const size_t scores : {1, 2}) {
    const auto hidden = constant_number(graph, graph.input(id, 3 - scores));
    if (!hidden) continue;
    steps.push_back(
        {graph.input(id, scores), 1,
         ScoreTerm{graph.input(id, 0), true, scores == 2, static_cast<float>(*hidden)}});
  }
  return steps;
}

constexpr ReadStep kSteps[] = {read_cast, read_scale, read_bias, read_mask};

class ForwardMatcher {
 public:
  ForwardMatcher(const Graph& graph, NodeId softmax) : graph_(graph) { found_.softmax = softmax; }

  std::optional<AttentionForward> run(std::string* why) {
    const bool matched = read_softmax() && climb(graph_.input(found_.softmax, 0), 0) &&
                         read_terms() && read_probabilities();
    if (!matched) {
      *why = why_;
      return std::nullopt;
    }
    std::erase_if(found_.terms, [&](const ScoreTerm& term) { return adds_nothing(term); });
    find_causal();
    return std::move(found_);
  }

 private:
  bool no(std::string why) {
    why_ = std::move(why);
    return false;
  }

  bool read_softmax() {
    const auto shape = known_shape(graph_, graph_.input(found_.softmax, 0));
    if (!shape || shape->size() < 2) return no("the shape is not known");
    const auto rank = static_cast<int64_t>(shape->size());
    const int64_t axis = graph_.node(found_.softmax).attributes.get_int("axis", -1);
    if (axis != -1 && axis != rank - 1) return no("Softmax along another dim than the last");
    found_.score_shape = *shape;
    return true;
  }

  /// From `value` to the product; the steps on the way in `steps_`, the nearest to Softmax first.
  bool climb(ValueId value, int depth) {
    const NodeId id = producer(graph_, value);
    if (!id.valid() || depth > kMaxScoreSteps) return stop_at(value, kNoProduct);
    const auto flags = product_flags(graph_, id);
    const bool known = flags || std::ranges::any_of(kSteps, [&](ReadStep read) {
                         return !read(graph_, id).empty();
                       });
    if (!known) return stop_at(value, "no step of attention: " + op_name(graph_.node(id)));
    if (graph_.uses(value).size() != 1) return stop_at(value, "the scores have other readers");
    if (flags) return read_product(id, *flags);
    for (const ReadStep read : kSteps) {
      for (Step& step : read(graph_, id)) {
        const size_t nodes = found_.nodes.size(), steps = steps_.size();
        steps_.push_back(std::move(step));
        found_.nodes.push_back(id);
        if (climb(steps_[steps].next, depth + 1)) return true;
        steps_.resize(steps);
        found_.nodes.resize(nodes);
      }
    }
    return false;
  }

  /// The first reason from the way that scores go, as against that of a term.
  bool stop_at(ValueId value, std::string_view why) {
    const auto shape = known_shape(graph_, value);
    const bool whole = shape && element_count(*shape) == element_count(found_.score_shape);
    const bool better = whole && (!why_is_of_scores_ || why_ == kNoProduct);
    if (!why_.empty() && !better) return false;
    why_is_of_scores_ = whole;
    return no(std::string(why));
  }

  bool read_product(NodeId id, ProductFlags flags) {
    const auto shape = known_shape(graph_, graph_.output(id));
    const auto q = known_shape(graph_, graph_.input(id, 0)),
               k = known_shape(graph_, graph_.input(id, 1));
    if (!shape || !q || !k) return no("the shape is not known");
    if (flags.a) return no("Q is transposed");
    if (batch_of(*q) != batch_of(*shape)) return no("Q is broadcast");
    found_.one_head = has_one_head(*k, *shape);
    if (!found_.one_head && batch_of(*k) != batch_of(*shape)) return no("K is broadcast");
    const Shape &s = found_.score_shape, &p = *shape;
    if (s[s.size() - 2] != p[p.size() - 2] || s.back() != p.back() ||
        element_count(s) != element_count(p))
      return no("the scores are regrouped");
    found_.product = id;
    found_.product_shape = p;
    found_.query = found_.query_read = graph_.input(id, 0);
    found_.key = graph_.input(id, 1);
    found_.trans_k = !flags.b;
    found_.keys_read = {{found_.key, found_.trans_k}};
    if (pass_factor(found_.query, found_.query_factor)) found_.scale *= found_.query_factor;
    pass_transpose(true);
    if (pass_factor(found_.key, found_.key_factor)) {
      found_.scale *= found_.key_factor;
      pass_transpose(false);
    }
    found_.nodes.push_back(id);
    return true;
  }

  /// Has K or V one head, of the scores or Y that have more?
  static bool has_one_head(const Shape& own, const Shape& whole) {
    Shape batch = batch_of(whole);
    if (batch.empty() || batch.back() == 1) return false;
    batch.back() = 1;
    return batch_of(own) == batch;
  }

  /// Q or K before it is multiplied by a positive number, as exporters write scaled dot products.
  bool pass_factor(ValueId& operand, double& factor) {
    const NodeId id = producer(graph_, operand);
    if (!id.valid()) return false;
    for (const ValueId x : graph_.inputs(id)) {
      const auto found = scale_factor(graph_, id, x);
      if (!found || !(*found > 0) || known_shape(graph_, x) != known_shape(graph_, operand))
        continue;
      factor = *found;
      operand = x;
      found_.passed.push_back(id);
      return true;
    }
    return false;
  }

  /// K before its last two dims were swapped, if it is stored as (…, D, N) now. `seen`: the
  /// products may read that too.
  void pass_transpose(bool seen) {
    const NodeId id = producer(graph_, found_.key);
    if (!found_.trans_k || !id.valid() || !is_matrix_transpose(graph_, id)) return;
    found_.key = graph_.input(id, 0);
    found_.trans_k = false;
    found_.passed.push_back(id);
    if (seen) found_.keys_read.push_back({found_.key, false});
  }

  /// Steps in the order of computation: scales, then terms. The scores get the first shape among
  /// those that they have on the way, that of Softmax before all, in which all terms fit.
  bool read_terms() {
    for (size_t i = steps_.size(); i-- > 0;) {
      Step& step = steps_[i];
      if (step.factor != 1 && !found_.terms.empty()) return no("a scale behind a mask or a bias");
      found_.score_scale *= step.factor;
      if (!step.term) continue;
      const auto full = known_shape(graph_, step.next);
      if (!full || !broadcasts_to(graph_, step.term->value, *full))
        return no("a term that is larger than the scores");
      found_.terms.push_back(*step.term);
      found_.terms.back().met = *full;
    }
    found_.scale *= found_.score_scale;
    const auto scale = static_cast<float>(found_.scale);
    if (!(scale > 0 && std::isfinite(scale))) return no("a scale that is not positive and finite");
    const bool as_product = found_.product_shape == found_.score_shape;
    if ((as_product || !found_.one_head) && fit_terms(found_.score_shape)) return true;
    if (found_.one_head) return no("one head of K, and scores of other batch dims");
    return std::ranges::any_of(found_.terms, [&](ScoreTerm term) { return fit_terms(term.met); }) ||
           no("terms that do not go along the same batch dims");
  }

  /// Can every term be broadcast to scores of this shape? Then they get it.
  bool fit_terms(const Shape& scores) {
    std::vector<Shape> views;
    for (const ScoreTerm& term : found_.terms) {
      auto view = view_of_term(*known_shape(graph_, term.value), term.met, scores);
      if (!view) return false;
      views.push_back(std::move(*view));
    }
    for (size_t i = 0; i < views.size(); ++i) found_.terms[i].view = std::move(views[i]);
    found_.score_shape = scores;
    return true;
  }

  /// Follows P to the product with V.
  bool read_probabilities() {
    found_.nodes.push_back(found_.softmax);
    found_.probabilities = {graph_.output(found_.softmax)};
    for (size_t i = 0; i < found_.probabilities.size(); ++i) {
      const ValueId p = found_.probabilities[i];
      for (const Use& use : graph_.uses(p)) {
        if (!use.by_node()) return no("the probabilities are a result");
        if (graph_.node(use.node()).region != graph_.node(found_.softmax).region)
          return no("a body reads the probabilities");
        if (!read_use(use)) return false;
      }
    }
    if (!found_.result.valid()) return no("no product with the probabilities");
    if (found_.dropout.valid() && !is_behind_dropout(graph_.input(found_.result, 0)))
      return no("a dropout of the probabilities that is not on the way to the product with V");
    return read_value();
  }

  bool read_use(const Use& use) {
    const NodeId id = use.node();
    if (is_float_cast(graph_, id) || is_batch_view(graph_, id) || is_idle_dropout(graph_, id))
      return take_probabilities(id);
    if (is_nan_guard(graph_, id, found_.probabilities) && use.slot == 2) {
      found_.nan_is_zero = true;
      return take_probabilities(id);
    }
    if (is_dropout(graph_, id) && use.slot == 0 && graph_.node(id).role != Role::kBackward) {
      if (found_.dropout.valid() && found_.dropout != id)
        return no("two dropouts of the probabilities");
      found_.dropout = id;
      return take_probabilities(id);
    }
    if (graph_.node(id).role == Role::kBackward || is_op(graph_, id, "IsNaN")) return true;
    const auto flags = product_flags(graph_, id);
    if (!flags || use.slot != 0 || flags->a) return no("the probabilities have other readers");
    if (found_.result.valid() && found_.result != id) return no("two products with probabilities");
    if (flags->b) return no("V is transposed");
    found_.result = id;
    return true;
  }

  bool take_probabilities(NodeId id) {
    // A backward may have casts or views of its own: they belong to it.
    const bool own = graph_.node(id).role != Role::kBackward;
    if (own) found_.nodes.push_back(id);
    const ValueId value = graph_.output(id);
    if (std::ranges::find(found_.probabilities, value) == found_.probabilities.end())
      found_.probabilities.push_back(value);
    const auto behind = [this](ValueId x) { return is_behind_dropout(x); };
    if (id == found_.dropout || std::ranges::any_of(graph_.inputs(id), behind))
      found_.dropped.push_back(value);
    return true;
  }

  bool is_behind_dropout(ValueId x) const {
    return std::ranges::find(found_.dropped, x) != found_.dropped.end();
  }

  bool read_value() {
    const NodeId id = found_.result;
    found_.value = graph_.input(id, 1);
    found_.nodes.push_back(id);
    const auto v = known_shape(graph_, found_.value), y = known_shape(graph_, graph_.output(id)),
               q = known_shape(graph_, found_.query);
    if (!v || !y || !q) return no("the shape is not known");
    const bool fits = found_.one_head ? has_one_head(*v, *y) : batch_of(*v) == batch_of(*y);
    if (!fits || batch_of(*y) != batch_of(*q)) return no("V is broadcast otherwise than K");
    const DType type = graph_.value(found_.query).type.dtype;
    for (const ValueId value : {found_.key, found_.value, graph_.output(id)}) {
      if (graph_.value(value).type.dtype != type) return no("Q, K, V and Y differ in type");
    }
    return is_float(type) || no("no floats");
  }

  /// A constant of zeros: what exporters make of a mask that was not given. Attention with a term
  /// reads one number a score.
  bool adds_nothing(const ScoreTerm& term) const {
    return !term.mask && is_zero(before_casts(graph_, term.value));
  }

  bool is_zero(ValueId value) const {
    if (const Tensor* tensor = graph_.constant(value)) {
      for (int64_t i = 0; i < tensor->size(); ++i) {
        if (tensor->at_as_double(i) != 0) return false;
      }
      return true;
    }
    const NodeId def = producer(graph_, value);
    if (!def.valid()) return false;
    if (is_op(graph_, def, "Expand")) return is_zero(graph_.input(def, 0));
    if (!is_op(graph_, def, "Where")) return false;
    const auto side = one_side(graph_.input(def, 0));
    return side && is_zero(graph_.input(def, *side ? 1 : 2));
  }

  /// What a constant condition always is.
  std::optional<bool> one_side(ValueId condition) const {
    const Tensor* tensor = graph_.constant(condition);
    if (tensor == nullptr || tensor->dtype() != DType::kBool || tensor->size() == 0) return {};
    const std::span<const bool> all = tensor->data<bool>();
    const bool first = all.front();
    if (std::ranges::any_of(all, [&](bool each) { return each != first; })) return {};
    return first;
  }

  /// A constant that hides exactly the keys j > i, as the only term.
  void find_causal() {
    if (found_.terms.size() != 1) return;
    const ScoreTerm& term = found_.terms[0];
    const Tensor* tensor = graph_.constant(before_casts(graph_, term.value));
    const int64_t m = found_.score_shape[found_.score_shape.size() - 2];
    if (tensor == nullptr || m != found_.score_shape.back() || tensor->shape().size() < 2) return;
    const Shape& own = tensor->shape();
    if (own.back() != m || own[own.size() - 2] != m) return;
    if (term.mask && !(static_cast<double>(term.hidden) <= kFarBelow)) return;
    for (int64_t i = 0; i < tensor->size(); ++i) {
      const bool later = i % m > i / m % m;
      const double number = tensor->at_as_double(i);
      const bool fits = term.mask ? (number != 0) == (later == term.inverted)
                                  : (later ? number <= kFarBelow : number == 0);
      if (!fits) return;
    }
    if (term.mask) found_.causal_mask = term.value;
    found_.causal = true;
    found_.terms.clear();
  }

  const Graph& graph_;
  AttentionForward found_;
  std::vector<Step> steps_;
  std::string why_;
  bool why_is_of_scores_ = false;
};

}  // namespace

std::optional<AttentionForward> match_attention(const Graph& graph, NodeId softmax,
                                                std::string* why) {
  return ForwardMatcher(graph, softmax).run(why);
}

std::optional<double> constant_number(const Graph& graph, ValueId value) {
  const Tensor* tensor = graph.constant(before_casts(graph, value));
  if (tensor == nullptr || tensor->size() != 1 || !is_float(tensor->dtype())) return std::nullopt;
  return tensor->at_as_double(0);
}

std::optional<ProductFlags> product_flags(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.op != "MatMul" || (!node.domain.empty() && node.domain != kHalfnoteDomain))
    return std::nullopt;
  const auto a = known_shape(graph, graph.input(id, 0)), b = known_shape(graph, graph.input(id, 1));
  if (!a || !b || a->size() < 2 || b->size() < 2) return std::nullopt;
  return ProductFlags{node.attributes.get_int("transA", 0) != 0,
                      node.attributes.get_int("transB", 0) != 0};
}

bool is_matrix_transpose(const Graph& graph, NodeId id) {
  if (!is_op(graph, id, "Transpose")) return false;
  const auto shape = known_shape(graph, graph.input(id, 0));
  const auto perm = graph.node(id).attributes.get_ints("perm");
  if (!shape || shape->size() < 2 || perm.size() != shape->size()) return false;
  std::vector<int64_t> swapped(perm.size());
  std::iota(swapped.begin(), swapped.end(), 0);
  std::swap(swapped[perm.size() - 1], swapped[perm.size() - 2]);
  return perm == swapped;
}

bool is_dropout(const Graph& graph, NodeId id) {
  return id.valid() && graph.node(id).domain == kHalfnoteDomain && graph.node(id).op == "Dropout";
}

bool is_float_cast(const Graph& graph, NodeId id) {
  return is_cast(graph.node(id)) && is_float(graph.value(graph.input(id, 0)).type.dtype) &&
         is_float(graph.value(graph.output(id)).type.dtype);
}

bool is_batch_view(const Graph& graph, NodeId id) {
  if (!is_op(graph, id, "Reshape") && !is_op(graph, id, "Squeeze") &&
      !is_op(graph, id, "Unsqueeze"))
    return false;
  const auto from = known_shape(graph, graph.input(id, 0)),
             to = known_shape(graph, graph.output(id));
  return from && to && from->size() >= 2 && to->size() >= 2 &&
         std::equal(from->end() - 2, from->end(), to->end() - 2);
}

bool is_nan_guard(const Graph& graph, NodeId id, const std::vector<ValueId>& probabilities) {
  if (!is_op(graph, id, "Where")) return false;
  const NodeId test = producer(graph, graph.input(id, 0));
  if (!is_op(graph, test, "IsNaN")) return false;
  const auto zero = constant_number(graph, graph.input(id, 1));
  return zero && *zero == 0 &&
         std::ranges::find(probabilities, graph.input(test, 0)) != probabilities.end();
}

std::optional<double> scale_factor(const Graph& graph, NodeId id, ValueId x) {
  const bool div = is_op(graph, id, "Div");
  if (!div && !is_op(graph, id, "Mul")) return std::nullopt;
  const bool first = graph.input(id, 0) == x;
  if (div && !first) return std::nullopt;
  const auto number = constant_number(graph, graph.input(id, first ? 1 : 0));
  if (!number || (div && *number == 0)) return std::nullopt;
  return div ? 1 / *number : *number;
}

}  // namespace halfnote
