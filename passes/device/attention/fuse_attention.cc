// fuse_attention: scaled dot-product attention, as exporters write it, and its gradient become one
// node each; neither holds the matrix of probabilities.
//
//   s = MatMul (q, kᵗ)  d = Div (s, 8)  m = Add (d, mask)  p = Softmax (m)  y = MatMul (p, v)   ──▶
//   y, max, sum = ai.halfnote.Attention <scale = 0.125, transK = 1> (q, kᵗ, v, mask)
//
//   dP = MatMul (dY, vᵀ)  dS = SoftmaxGrad (dP, p)  …  dQ, dK = MatMul (dS, …)  dV = MatMul (pᵀ,
//   dY) ──▶  dQ, dK, dV = ai.halfnote.AttentionGrad (dY, q, kᵗ, v, y, max, sum, mask)
//
// A dropout of the probabilities goes into both nodes (ratio, node; seed and step as operands),
// which draw its bits for the same elements, each time anew.
//
// Q and K times a number each are read without: their numbers are part of the scale, and of those
// of dQ and dK.
//
// Rounding: scores and probabilities were rounded to 16 bits between the nodes and are no more, nor
// are Q and K times their numbers; sums are in another order. The matchers (match.h) say which
// spellings are known. A mask that hides just the later keys becomes is_causal, one that hides
// where it is true is inverted. Where terms met scores of different batch dims (Swin's masks by
// window), the node has those along which all terms go. Leaves alone: probabilities or scores that
// somebody else reads, K or V that is broadcast or grouped but for one head that all of Q read, and
// what the device says does not pay.
#include "passes/device/attention/fuse_attention.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ir/walk.h"
#include "passes/device/attention/likeness.h"
#include "passes/device/attention/match.h"
#include "passes/pass_through.h"

namespace halfnote {
namespace {

class AttentionFuser {
 public:
  AttentionFuser(Graph& graph, PassContext& context, bool (*pays)(const AttentionSize&))
      : graph_(graph), context_(context), pays_(pays) {}

  bool run() {
    bool changed = false;
    for (const NodeId id : graph_.nodes()) {
      if (graph_.node(id).op != "Softmax" || !graph_.node(id).domain.empty()) continue;
      changed |= fuse(id);
    }
    left_.tell(context_);
    if (!changed) return false;
    erase_dead(graph_, [this](const Graph&, NodeId id) {
      return replaced_.count(id) != 0 || bypassed_.count(id) != 0;
    });
    for (const auto& [made, name] : names_) {
      if (!graph_.find(name).valid()) graph_.rename(made, name);
    }
    return true;
  }

 private:
  bool fuse(NodeId softmax) {
    std::string why;
    const auto forward = match_attention(graph_, softmax, &why);
    if (!forward) return leave(softmax, why);
    const auto backward = match_attention_gradient(graph_, *forward, &why);
    if (!backward) return leave(softmax, why);
    if (!pays_(size_of(*forward, *backward))) return false;
    if (!is_closed(*forward, *backward))
      return leave(softmax, "what it computes has other readers");
    place(*forward, *backward);
    return true;
  }

  /// To be told where one node would have paid.
  bool leave(NodeId softmax, const std::string& why) {
    const auto likely = size_of_likely_attention(graph_, softmax);
    if (likely && pays_(*likely)) left_.add(graph_, softmax, why);
    return false;
  }

  /// Does nobody else read what the nodes make, but for the results that are replaced?
  bool is_closed(const AttentionForward& forward, const AttentionBackward& backward) const {
    std::set<NodeId> all(forward.nodes.begin(), forward.nodes.end());
    all.insert(backward.nodes.begin(), backward.nodes.end());
    const std::set<ValueId> results = {graph_.output(forward.result), backward.dq, backward.dk,
                                       backward.dv, backward.term_grad};
    for (const NodeId id : all) {
      for (const ValueId value : graph_.outputs(id)) {
        if (!value.valid() || results.count(value) != 0) continue;
        for (const Use& use : graph_.uses(value)) {
          if (!use.by_node() || all.count(use.node()) == 0) return false;
        }
      }
    }
    return true;
  }

  AttentionSize size_of(const AttentionForward& forward, const AttentionBackward& backward) const {
    const Shape& s = forward.product_shape;
    AttentionSize size;
    size.queries = s[s.size() - 2];
    size.keys = s.back();
    size.batches = element_count(Shape(s.begin(), s.end() - 2));
    size.key_size = known_shape(graph_, forward.query)->back();
    size.value_size = known_shape(graph_, forward.value)->back();
    size.terms = forward.terms.size();
    size.dtype = graph_.value(forward.query).type.dtype;
    size.causal = forward.causal;
    size.dropout = forward.dropout.valid();
    size.has_gradient = backward.grad.valid();
    size.has_term_gradient = backward.term_grad.valid();
    return size;
  }

  Builder builder_at(NodeId before) {
    Builder b(graph_, graph_.before(before), context_.infer);
    const Node& node = graph_.node(before);
    b.set_role(node.role);
    b.set_origin(node.origin.empty() ? graph_.label(before) : node.origin.str());
    return b;
  }

  /// `value` with the batch dims of the scores, where the products have others. A Transpose that
  /// moves heads goes behind the view: absorb_heads looks for it there.
  Expr with_batch_of_scores(Builder& b, ValueId value, const AttentionForward& forward) {
    if (forward.product_shape == forward.score_shape) return b.value(value);
    const Shape own = *known_shape(graph_, value);
    const Shape batch(forward.score_shape.begin(), forward.score_shape.end() - 2);
    const NodeId id = producer(graph_, value);
    const auto perm = perm_of_heads(id, own, forward.score_shape);
    if (!perm) return viewed(b, value, joined(batch, own, 2));
    bypassed_.insert(id);
    const ValueId from = graph_.input(id, 0);
    const Shape lead(batch.begin(), batch.end() - 1);
    return b.transpose(viewed(b, from, joined(lead, *known_shape(graph_, from), 3)), *perm);
  }

  static Shape joined(Shape lead, const Shape& tail, std::ptrdiff_t count) {
    lead.insert(lead.end(), tail.end() - count, tail.end());
    return lead;
  }

  /// A view of what `value` is a view of.
  Expr viewed(Builder& b, ValueId value, const Shape& shape) {
    const NodeId id = producer(graph_, value);
    if (is_op(graph_, id, "Reshape")) {
      bypassed_.insert(id);
      value = graph_.input(id, 0);
    }
    return b.reshape(b.value(value), b.ints({shape.begin(), shape.end()}));
  }

  /// If the node transposes just the last three dims, its permutation for tensors with the batch
  /// dims of `to` in place of those of `from`, the last of which are the same heads.
  std::optional<std::vector<int64_t>> perm_of_heads(NodeId id, const Shape& from,
                                                    const Shape& to) const {
    if (!id.valid() || graph_.node(id).op != "Transpose" || !graph_.node(id).domain.empty())
      return std::nullopt;
    std::vector<int64_t> perm = graph_.node(id).attributes.get_ints("perm");
    if (perm.size() != from.size() || perm.size() < 3 || to.size() < 3) return std::nullopt;
    if (!known_shape(graph_, graph_.input(id, 0))) return std::nullopt;
    const size_t lead = perm.size() - 3, others = to.size() - 3;
    for (size_t i = 0; i < lead; ++i) {
      if (perm[i] != static_cast<int64_t>(i)) return std::nullopt;
    }
    if (from[lead] != to[others]) return std::nullopt;
    std::vector<int64_t> made(others);
    std::iota(made.begin(), made.end(), 0);
    for (size_t i = lead; i < perm.size(); ++i)
      made.push_back(perm[i] - static_cast<int64_t>(lead) + static_cast<int64_t>(others));
    return made;
  }

  /// The result of a fused node in place of `old`, which may have other batch dims.
  void replace(Builder& b, ValueId old, Expr made) {
    if (!old.valid()) return;
    graph_.value(made.id).scale_power = graph_.value(old).scale_power;
    if (*known_shape(graph_, made.id) != *known_shape(graph_, old)) {
      if (!replace_views(b, old, made)) return;
      const Shape wanted = *known_shape(graph_, old);
      made = b.reshape(made, b.ints({wanted.begin(), wanted.end()}));
      graph_.value(made.id).scale_power = graph_.value(old).scale_power;
    }
    graph_.replace_uses(old, made.id);
    names_.emplace_back(made.id, graph_.value(old).name);
  }

  /// The known shape in which a Reshape sees the value.
  std::optional<Shape> viewed_shape(const Use& use) const {
    const Node& node = graph_.node(use.node());
    if (node.op != "Reshape" || !node.domain.empty() || use.slot != 0) return std::nullopt;
    return known_shape(graph_, graph_.output(use.node()));
  }

  /// Views and transposes of heads beside the node read `made` itself; is there anybody else?
  bool replace_views(Builder& b, ValueId old, Expr made) {
    const Shape from = *known_shape(graph_, old), to = *known_shape(graph_, made.id);
    const RegionId region = graph_.node(producer(graph_, made.id)).region;
    bool others = false;
    const auto uses = graph_.uses(old);
    for (const Use& use : std::vector<Use>(uses.begin(), uses.end())) {
      const NodeId user = use.by_node() ? use.node() : NodeId{};
      if (replaced_.count(user) != 0) continue;
      const bool beside = user.valid() && graph_.node(user).region == region;
      const auto perm = beside ? perm_of_heads(user, from, to) : std::nullopt;
      const auto view = beside ? viewed_shape(use) : std::nullopt;
      if (!perm && !view) {
        others = true;
        continue;
      }
      replaced_.insert(user);
      replace(
          b, graph_.output(user),
          perm ? b.transpose(made, *perm) : b.reshape(made, b.ints({view->begin(), view->end()})));
    }
    return others;
  }

  static Expr swap_last_two(Builder& b, Expr x) {
    std::vector<int64_t> perm(static_cast<size_t>(x.rank()));
    std::iota(perm.begin(), perm.end(), 0);
    std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
    return b.transpose(x, std::move(perm));
  }

  std::vector<Expr> terms_of(Builder& b, const AttentionForward& forward) {
    std::vector<Expr> terms;
    for (const ScoreTerm& term : forward.terms) {
      ValueId value = term.value;
      if (term.inverted) {
        ValueId& mask = inverted_[term.value];
        if (!mask.valid()) mask = b.op("Not", {b.value(term.value)}).id;
        value = mask;
      }
      terms.push_back(term.view.empty() ? b.value(value)
                                        : b.reshape(b.value(value),
                                                    b.ints({term.view.begin(), term.view.end()})));
    }
    return terms;
  }

  /// Seed and step of the dropout, if there is one.
  std::vector<Expr> stream_of(Builder& b, const AttentionForward& forward) const {
    if (!forward.dropout.valid()) return {};
    return {b.value(graph_.input(forward.dropout, 1)), b.value(graph_.input(forward.dropout, 2))};
  }

  Attributes attributes_of(const AttentionForward& forward) const {
    Attributes attributes = {{"scale", static_cast<float>(forward.scale)}};
    if (forward.causal) attributes.set("is_causal", int64_t{1});
    if (forward.nan_is_zero) attributes.set("nan_is_zero", int64_t{1});
    if (forward.trans_k) attributes.set("transK", int64_t{1});
    std::vector<float> hidden;
    for (const ScoreTerm& term : forward.terms) hidden.push_back(term.hidden);
    const auto masks = [](const ScoreTerm& term) { return term.mask; };
    if (std::ranges::any_of(forward.terms, masks)) attributes.set("hidden", hidden);
    if (forward.dropout.valid()) {
      const Attributes& own = graph_.node(forward.dropout).attributes;
      attributes.set("ratio", own.get_float("ratio", 0.5f));
      attributes.set("node", own.get_int("node", 0));
    }
    return attributes;
  }

  void place(const AttentionForward& forward, const AttentionBackward& backward) {
    for (const auto* nodes : {&forward.nodes, &backward.nodes})
      replaced_.insert(nodes->begin(), nodes->end());
    replaced_.insert(forward.passed.begin(), forward.passed.end());
    Builder b = builder_at(forward.result);
    std::vector<Expr> inputs;
    for (const ValueId value : {forward.query, forward.key, forward.value})
      inputs.push_back(with_batch_of_scores(b, value, forward));
    std::vector<Expr> behind = terms_of(b, forward);
    const std::vector<Expr> operands = inputs, stream = stream_of(b, forward);
    behind.insert(behind.end(), stream.begin(), stream.end());
    inputs.insert(inputs.end(), behind.begin(), behind.end());
    const auto made = b.ops("Attention", inputs, 3, attributes_of(forward), kHalfnoteDomain);
    name(b.last(), forward.result);
    if (backward.grad.valid()) place_gradient(forward, backward, operands, made, behind);
    replace(b, graph_.output(forward.result), made[0]);
  }

  void name(NodeId made, NodeId like) {
    graph_.node(made).name = graph_.node(like).name;
    graph_.node(made).precision = graph_.node(like).precision;
  }

  /// The first of the nodes that read dY: nobody reads a gradient before it.
  NodeId first_reader(const AttentionBackward& backward) const {
    NodeId first;
    for (const NodeId id : graph_.users(backward.grad)) {
      const bool ours = std::ranges::find(backward.nodes, id) != backward.nodes.end();
      if (ours && (!first.valid() || graph_.is_before(id, first))) first = id;
    }
    return first;
  }

  void place_gradient(const AttentionForward& forward, const AttentionBackward& backward,
                      const std::vector<Expr>& operands, const std::vector<Expr>& results,
                      const std::vector<Expr>& behind) {
    const NodeId first = first_reader(backward);
    Builder b = builder_at(first);
    std::vector<Expr> inputs = {with_batch_of_scores(b, backward.grad, forward)};
    for (const Expr& x : operands) inputs.push_back(b.value(x.id));
    for (const Expr& x : results) inputs.push_back(b.value(x.id));
    for (const Expr& x : behind) inputs.push_back(b.value(x.id));
    Attributes attributes = attributes_of(forward);
    const ValueId old[] = {backward.dq, backward.dk, backward.dv};
    std::vector<int64_t> types;
    for (const ValueId value : old) {
      const DType own = graph_.value(forward.query).type.dtype;
      types.push_back(static_cast<int64_t>(value.valid() ? graph_.value(value).type.dtype : own));
    }
    attributes.set("out_dtypes", types);
    const bool of_term = backward.term_grad.valid();
    const int count = of_term ? 4 + static_cast<int>(backward.term) : 3;
    auto made = b.ops("AttentionGrad", inputs, count, attributes, kHalfnoteDomain);
    const NodeId node = b.last();
    if (backward.dk.valid() && backward.dk_transposed != forward.trans_k)
      made[1] = swap_last_two(b, made[1]);
    name(node, first);
    for (size_t i = 0; i < 3; ++i) replace(b, old[i], made[i]);
    if (of_term) {
      const DType type = graph_.value(backward.term_grad).type.dtype;
      const bool narrow = is_16bit_float(type);  // it was rounded before it was read
      replace(b, backward.term_grad, narrow ? b.cast(made.back(), type) : made.back());
    }
    for (size_t i = made.size(); i-- > 0;) {
      if (!graph_.has_uses(graph_.output(node, i))) graph_.drop_output(node, i);
    }
  }

  Graph& graph_;
  PassContext& context_;
  bool (*pays_)(const AttentionSize&);
  LeftAttention left_;
  std::set<NodeId> replaced_;
  std::set<NodeId> bypassed_;            // before operands: gone where nobody else reads them
  std::map<ValueId, ValueId> inverted_;  // masks, by those they invert
  std::vector<std::pair<ValueId, std::string>> names_;
};

}  // namespace

bool fuse_attention(Graph& graph, PassContext& context, bool (*pays)(const AttentionSize&)) {
  return AttentionFuser(graph, context, pays).run();
}

}  // namespace halfnote
