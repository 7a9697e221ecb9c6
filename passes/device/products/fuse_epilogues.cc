// fuse_epilogues: on a GPU a product does what the nodes around it do, while its sums are in
// registers. Each of these is done where it was measured to be faster, and nowhere else.
//
//   p = Gemm (x, w, b)   y = Relu (p)
//     ──▶   y = ai.halfnote.GemmActivation <activation = "Relu"> (x, w, b)
//   p = Gemm (x, w, b)   y = Gelu <approximate = "tanh"> (p)   (p is read again)
//     ──▶   y, p = ai.halfnote.GemmActivation <activation = "Gelu"> (x, w, b)
//   d = Gemm (dz, v)   g, s = ai.halfnote.Pointwise <GeluGrad and ReduceSum> (d, p)
//     ──▶   g = ai.halfnote.GemmActivationGrad <activation = "Gelu"> (dz, v, p)   s = ReduceSum (g)
//   d = Gemm (dz, v)   g = ReluGrad (d, y)
//     ──▶   g = ai.halfnote.GemmActivationGrad <activation = "Relu"> (dz, v, mask),
//           where the product in front of the Relu leaves the mask, a bit an element
//   sum' = Add (sum, Gemm <transA = 1> (x, g))   ──▶   sum' = ai.halfnote.Gemm (x, g, sum)
//   dw = Gemm <transA = 1> (x, g)   s = ReduceSum (g)
//     ──▶   dw, s = ai.halfnote.GemmSums <of = "B"> (x, g)
//
// Rounding: sums reach the activation, or its gradient, without being rounded to 16 bits; a sum of
// a bias's gradient adds up what was rounded where a chain added what was not, and keeps its own
// type: the library would give the one of a gradient in 16 bits, which is not asked for. A Gelu by
// the tanh in however many steps is one function. Runs behind absorb-sums, whose nodes it takes
// apart. Leaves alone: a Gelu by erf, which the library has not; chains that do more; products with
// other factors than 1; a Relu whose operand somebody else reads; sums of a bias in chains beside
// an accumulating product.
#include "passes/device/products/fuse_epilogues.h"

#include <algorithm>

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/device/live_ranges.h"
#include "passes/device/products/epilogue_parts.h"
#include "passes/device/products/piece.h"

namespace halfnote {
namespace {

using epilogues::Elementwise;
using epilogues::Product;

bool is_our_op(const Graph& graph, NodeId id, std::string_view op) {
  return id.valid() && graph.node(id).op == op && graph.node(id).domain == kHalfnoteDomain;
}

/// What one change takes away and what it needs to know.
struct EpilogueMatch {
  Product product;
  Elementwise chain;            // of an activation or a gradient
  NodeId add;                   // of an accumulation
  NodeId sum;                   // a ReduceSum beside the product
  ValueId accumulator, summed;  // summed: an operand of the product
  bool keeps_product = false;   // of a Gelu: others read what it reads
  NodeId forward;               // the GemmActivation that must leave a mask
};

/// Builds new nodes in the place and the name of old ones.
class EpilogueWriter {
 public:
  EpilogueWriter(Graph& graph, PassContext& context, const Product& product, NodeId place)
      : graph_(graph), p_(product), b_(graph, graph.before(place), context.infer) {
    const Node& old = graph.node(product.node);
    b_.set_role(old.role);
    b_.set_origin(old.origin.empty() ? graph.label(product.node) : old.origin.str());
  }

  Builder& b() { return b_; }
  Attributes attributes() const {
    Attributes attributes;
    if (p_.trans_a) attributes.set("transA", int64_t{1});
    if (p_.trans_b) attributes.set("transB", int64_t{1});
    if (p_.result != p_.operands) attributes.set("out_dtype", static_cast<int64_t>(p_.result));
    return attributes;
  }
  Expr as_matrix(ValueId value, int64_t rows, int64_t columns) {
    const auto shape = known_shape(graph_, value);
    if (shape && *shape == Shape{rows, columns}) return b_.value(value);
    return b_.reshape(b_.value(value), b_.ints({rows, columns}));
  }
  Expr left() {
    const auto shape = known_shape(graph_, p_.a);
    return shape->size() == 2 ? b_.value(p_.a) : as_matrix(p_.a, p_.m, p_.k);
  }
  std::vector<Expr> node(std::string_view op, std::vector<Expr> operands, int outputs,
                         Attributes attributes) {
    std::vector<Expr> results =
        b_.ops(op, operands, outputs, std::move(attributes), kHalfnoteDomain);
    Node& made = graph_.node(b_.last());
    made.name = graph_.node(p_.node).name;
    made.precision = graph_.node(p_.node).precision;
    return results;
  }
  /// The new value gets the shape, the readers and the name of the old one, whose node may go.
  void take_over(ValueId old, Expr made) {
    const Shape shape = *known_shape(graph_, old);
    const int8_t power = graph_.value(old).scale_power;
    graph_.value(made.id).scale_power = power;
    if (*known_shape(graph_, made.id) != shape)
      made = b_.reshape(made, b_.ints({shape.begin(), shape.end()}));
    graph_.value(made.id).scale_power = power;
    names_.push_back({made.id, graph_.value(old).name});
    graph_.replace_uses(old, made.id);
  }
  /// Takes the old nodes away and gives their names to the new values.
  void finish(std::vector<NodeId> old) {
    for (const NodeId node : old) graph_.remove(node);
    for (const auto& [value, name] : names_) graph_.rename(value, name);
  }

 private:
  Graph& graph_;
  Product p_;
  Builder b_;
  std::vector<std::pair<ValueId, std::string>> names_;
};

/// The views between a value and the node that reads it, last first; they go with the value.
void remove_unread_views(Graph& graph, ValueId value) {
  const auto uses = std::vector<Use>(graph.uses(value).begin(), graph.uses(value).end());
  for (const Use& use : uses) {
    if (!use.by_node() || use.slot != 0 || !is_view(graph.node(use.node()))) continue;
    const ValueId view = graph.output(use.node());
    remove_unread_views(graph, view);
    if (!graph.has_uses(view)) graph.remove(use.node());
  }
}

std::string word_of(GemmActivation activation) {
  return activation == GemmActivation::kRelu ? "Relu" : "Gelu";
}

// --- activations ---------------------------------------------------------------------------------

bool is_read_only_by(const std::vector<NodeId>& readers, NodeId node) {
  return readers.size() == 1 && readers[0] == node;
}

std::optional<EpilogueMatch> match_activation(const Graph& graph, NodeId id) {
  const auto product = epilogues::product_of(graph, id);
  if (!product || product->result != product->operands || product->operands == DType::kF64)
    return std::nullopt;
  const ValueId z = graph.output(id);
  // Values that leave the graph have other readers, too.
  const auto readers = epilogues::readers_through_views(graph, z);
  if (!readers) return std::nullopt;
  for (const NodeId reader : *readers) {
    const auto chain = epilogues::activation_of(graph, reader, z);
    if (!chain) continue;
    if (graph.value(chain->result).type.dtype != product->result) continue;
    const bool alone = is_read_only_by(*readers, reader);
    const bool biased = chain->bias.valid();
    if (biased && (product->bias.valid() || !alone)) continue;
    if (biased && known_shape(graph, chain->result)->back() != product->n) continue;
    if (chain->activation == GemmActivation::kRelu && !alone) continue;
    EpilogueMatch match{*product, *chain};
    match.keeps_product = !alone;
    return match;
  }
  return std::nullopt;
}

void write_activation(Graph& graph, PassContext& context, const EpilogueMatch& match) {
  const Product& p = match.product;
  // A bias of the chain may come after the product.
  const NodeId place = match.chain.bias.valid() ? match.chain.node : p.node;
  EpilogueWriter writer(graph, context, p, place);
  std::vector<Expr> operands = {writer.left(), writer.b().value(p.b)};
  const ValueId bias = p.bias.valid() ? p.bias : match.chain.bias;
  if (bias.valid()) operands.push_back(writer.b().value(bias));
  Attributes attributes = writer.attributes();
  attributes.set("activation", word_of(match.chain.activation));
  const auto results =
      writer.node("GemmActivation", operands, match.keeps_product ? 2 : 1, std::move(attributes));
  writer.take_over(match.chain.result, results[0]);
  const ValueId z = graph.output(p.node);
  graph.remove(match.chain.node);
  if (match.keeps_product) writer.take_over(z, results[1]);
  remove_unread_views(graph, match.keeps_product ? results[1].id : z);
  writer.finish({p.node});
}

// --- their gradients -----------------------------------------------------------------------------

/// The product with a Relu that made `y`, of this size.
NodeId masked_product(const Graph& graph, ValueId y, const Product& p) {
  const NodeId maker = producer(graph, epilogues::viewed(graph, y));
  if (!is_our_op(graph, maker, "GemmActivation")) return {};
  if (graph.node(maker).attributes.get_string("activation", "") != "Relu") return {};
  const auto shape = known_shape(graph, graph.output(maker));
  return shape && *shape == Shape{p.m, p.n} ? maker : NodeId{};
}

std::optional<EpilogueMatch> match_gradient(const Graph& graph, NodeId id) {
  const auto product = epilogues::product_of(graph, id);
  if (!product || product->bias.valid() || product->result != product->operands ||
      product->operands == DType::kF64)
    return std::nullopt;
  const ValueId z = graph.output(id);
  const auto readers = epilogues::readers_through_views(graph, z);
  if (!readers || readers->size() != 1) return std::nullopt;
  const auto chain = epilogues::gradient_of(graph, (*readers)[0], z);
  if (!chain || graph.value(chain->result).type.dtype != product->result) return std::nullopt;
  if (known_shape(graph, chain->result)->back() != product->n) return std::nullopt;
  EpilogueMatch match{*product, *chain};
  if (chain->activation == GemmActivation::kGelu) return match;
  match.forward = masked_product(graph, chain->saved, *product);
  return match.forward.valid() ? std::optional(match) : std::nullopt;
}

/// The mask of a product with a Relu, which it is told to leave if it does not yet.
ValueId mask_of(Graph& graph, NodeId forward, const Product& p) {
  if (const ValueId known = graph.output(forward, 1); known.valid()) return known;
  const std::string name = graph.unique_name(graph.value(graph.output(forward)).name + ".mask");
  const ValueId mask = graph.add_node_output(forward, 1, name);
  graph.value(mask).type = ValueType::tensor(DType::kU8, {Dim(p.m), Dim(mask_row_bytes(p.n))});
  return mask;
}

void write_gradient(Graph& graph, PassContext& context, const EpilogueMatch& match) {
  const Product& p = match.product;
  const Elementwise& chain = match.chain;
  EpilogueWriter writer(graph, context, p, chain.node);
  Builder& b = writer.b();
  const Expr saved = match.forward.valid() ? b.value(mask_of(graph, match.forward, p))
                                           : writer.as_matrix(chain.saved, p.m, p.n);
  Attributes attributes = writer.attributes();
  attributes.set("activation", word_of(chain.activation));
  const bool has_sum = chain.sum.valid();
  const bool sums = has_sum && graph.value(chain.sum).type.dtype == p.result;
  auto results = writer.node("GemmActivationGrad", {writer.left(), b.value(p.b), saved},
                             sums ? 2 : 1, std::move(attributes));
  if (has_sum && !sums) {
    Attributes of_sum = {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}};
    of_sum.set("out_dtype", static_cast<int64_t>(graph.value(chain.sum).type.dtype));
    graph.value(results[0].id).scale_power = graph.value(chain.result).scale_power;
    results.push_back(b.op("ReduceSum", {results[0]}, std::move(of_sum), kHalfnoteDomain));
  }
  writer.take_over(chain.result, results[0]);
  if (has_sum) writer.take_over(chain.sum, results[1]);
  graph.remove(chain.node);
  remove_unread_views(graph, graph.output(p.node));
  writer.finish({p.node});
}

// --- accumulation --------------------------------------------------------------------------------

std::optional<EpilogueMatch> match_accumulation(const Graph& graph, NodeId add) {
  if (graph.node(add).op != "Add" || !graph.node(add).domain.empty()) return std::nullopt;
  for (const size_t operand : {0, 1}) {
    const ValueId sum = graph.input(add, 1 - operand), gradient = graph.input(add, operand);
    const auto state = graph.state_of(sum);
    if (!state || graph.states()[*state].kind != StateKind::kAccumulator) continue;
    const auto product = epilogues::product_of(graph, producer(graph, gradient));
    if (!product || product->bias.valid() || product->result != DType::kF32) continue;
    if (graph.output(product->node) != gradient || graph.uses(gradient).size() != 1) continue;
    const auto shape = known_shape(graph, sum);
    if (!shape || *shape != Shape{product->m, product->n}) continue;
    EpilogueMatch match{*product};
    match.add = add;
    match.accumulator = sum;
    return match;
  }
  return std::nullopt;
}

void write_accumulation(Graph& graph, PassContext& context, const EpilogueMatch& match) {
  EpilogueWriter writer(graph, context, match.product, match.add);
  Builder& b = writer.b();
  const auto results =
      writer.node("Gemm", {writer.left(), b.value(match.product.b), b.value(match.accumulator)}, 1,
                  writer.attributes());
  writer.take_over(graph.output(match.add), results[0]);
  writer.finish({match.add, match.product.node});
}

// --- sums of gradients beside products -----------------------------------------------------------

/// Does the node add up the rows of a matrix?
bool adds_rows(const Graph& graph, NodeId id, const Shape& matrix) {
  const Node& node = graph.node(id);
  if (node.op != "ReduceSum" || (!node.domain.empty() && node.domain != kHalfnoteDomain))
    return false;
  std::vector<int64_t> axes = node.attributes.get_ints("axes");
  if (graph.input(id, 1).valid()) {
    const Tensor* given = graph.constant(graph.input(id, 1));
    if (given == nullptr) return false;
    axes = given->to_ints();
  }
  const auto from = known_shape(graph, graph.input(id, 0)),
             to = known_shape(graph, graph.output(id));
  if (!from || !to || from->size() < 2 || from->back() != matrix[1] || to->empty()) return false;
  for (int64_t& axis : axes) axis += axis < 0 ? static_cast<int64_t>(from->size()) : 0;
  std::ranges::sort(axes);
  if (axes.size() + 1 != from->size()) return false;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] != static_cast<int64_t>(i)) return false;
  }
  return to->back() == matrix[1];
}

std::optional<EpilogueMatch> match_sums(const Graph& graph, NodeId id) {
  const auto product = epilogues::product_of(graph, id);
  if (!product || product->bias.valid() || product->result == DType::kF64) return std::nullopt;
  for (const bool of_a : {false, true}) {
    // The rows of the operand as it is stored are what the product adds up.
    if (of_a ? !product->trans_a : product->trans_b) continue;
    const ValueId operand = of_a ? product->a : product->b;
    const Shape matrix = *known_shape(graph, operand);
    const auto readers = epilogues::readers_through_views(graph, epilogues::viewed(graph, operand));
    if (!readers) continue;
    for (const NodeId reader : *readers) {
      if (!adds_rows(graph, reader, matrix)) continue;
      if (graph.value(graph.output(reader)).type.dtype != product->result) continue;
      EpilogueMatch match{*product};
      match.sum = reader;
      match.summed = operand;
      return match;
    }
  }
  return std::nullopt;
}

/// The sum is there where the first of both is; the product's operands must be, too.
std::optional<NodeId> place_of_sums(const Graph& graph, const EpilogueMatch& match) {
  const NodeId product = match.product.node, sum = match.sum;
  if (graph.is_before(product, sum)) return product;
  const auto is_there = [&](ValueId value) {
    const NodeId maker = producer(graph, value);
    return !maker.valid() || graph.is_before(maker, sum);
  };
  if (is_there(match.product.a) && is_there(match.product.b)) return sum;
  // Does nobody read the sum before the product?
  for (const Use& use : graph.uses(graph.output(sum))) {
    if (use.by_node() && !graph.is_before(product, use.node())) return std::nullopt;
  }
  return product;
}

void write_sums(Graph& graph, PassContext& context, const EpilogueMatch& match, NodeId place) {
  const Product& p = match.product;
  EpilogueWriter writer(graph, context, p, place);
  Attributes attributes = writer.attributes();
  attributes.set("of", std::string(match.summed == p.a && p.trans_a ? "A" : "B"));
  const auto results =
      writer.node("GemmSums", {writer.left(), writer.b().value(p.b)}, 2, std::move(attributes));
  writer.take_over(graph.output(p.node), results[0]);
  writer.take_over(graph.output(match.sum), results[1]);
  writer.finish({p.node, match.sum});
}

// --- all of them ---------------------------------------------------------------------------------

class EpilogueFuser {
 public:
  EpilogueFuser(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  bool run() {
    for (const NodeId id : graph_.nodes()) try_activation(id);
    for (const NodeId id : graph_.nodes()) try_gradient(id);
    for (const NodeId id : graph_.nodes()) try_accumulation(id);
    for (const NodeId id : graph_.nodes()) try_sums(id);
    return changed_;
  }

 private:
  bool is_there(NodeId id) const { return graph_.node(id).alive; }

  void try_activation(NodeId id) {
    if (!is_there(id)) return;
    if (const auto match = match_activation(graph_, id)) {
      change({match->product.node, match->chain.node},
             [&](Graph& graph) { write_activation(graph, context_, *match); });
    }
  }

  void try_gradient(NodeId id) {
    if (!is_there(id)) return;
    if (const auto match = match_gradient(graph_, id)) {
      std::vector<NodeId> nodes = {match->product.node, match->chain.node};
      if (match->forward.valid()) nodes.push_back(match->forward);
      change(nodes, [&](Graph& graph) { write_gradient(graph, context_, *match); });
      return;
    }
    try_relu_pair(id);
  }

  /// Where a product with a Relu does not pay alone, it may with the gradient.
  void try_relu_pair(NodeId id) {
    const auto product = epilogues::product_of(graph_, id);
    if (!product) return;
    const auto readers = epilogues::readers_through_views(graph_, graph_.output(id));
    if (!readers || readers->size() != 1) return;
    const auto chain = epilogues::gradient_of(graph_, (*readers)[0], graph_.output(id));
    if (!chain || chain->activation != GemmActivation::kRelu) return;
    const NodeId relu = producer(graph_, epilogues::viewed(graph_, chain->saved));
    if (!relu.valid() || graph_.inputs(relu).empty()) return;
    for (const ValueId operand : graph_.inputs(relu)) {
      if (!operand.valid()) continue;
      const NodeId maker = producer(graph_, epilogues::viewed(graph_, operand));
      if (!maker.valid()) continue;
      const auto forward = match_activation(graph_, maker);
      if (!forward || forward->chain.node != relu) continue;
      change({maker, relu, id, chain->node}, [&](Graph& graph) {
        write_activation(graph, context_, *forward);
        const auto gradient = match_gradient(graph, id);
        if (gradient) write_gradient(graph, context_, *gradient);
      });
      return;
    }
  }

  void try_accumulation(NodeId id) {
    if (!is_there(id)) return;
    if (const auto match = match_accumulation(graph_, id)) {
      change({match->product.node, id},
             [&](Graph& graph) { write_accumulation(graph, context_, *match); });
    }
  }

  void try_sums(NodeId id) {
    if (!is_there(id)) return;
    const auto match = match_sums(graph_, id);
    const auto place = match ? place_of_sums(graph_, *match) : std::nullopt;
    if (!place) return;
    change({id, match->sum}, [&](Graph& graph) { write_sums(graph, context_, *match, *place); });
  }

  /// Makes the change where it pays: first on a copy, whose new nodes are held against the old.
  template <class Write>
  void change(std::vector<NodeId> nodes, const Write& write) {
    Graph trial = graph_;
    write(trial);
    add_views_between(nodes);
    std::ranges::sort(nodes, [&](NodeId a, NodeId b) { return graph_.is_before(a, b); });
    std::vector<NodeId> made;
    for (const NodeId node : trial.nodes()) {
      const bool is_new = node.index >= graph_.node_capacity();
      if (is_new || std::ranges::find(nodes, node) != nodes.end()) made.push_back(node);
    }
    const Graph now = piece_of(graph_, nodes);
    const Graph instead =
        piece_of(trial, made, names_of(now, now.inputs()), names_of(now, now.outputs()));
    if (!context_.pays({now, instead, states_of(now)})) return;
    graph_ = std::move(trial);
    changed_ = true;
  }

  /// The states of the graph that a piece of it reads and renews.
  std::vector<std::pair<size_t, size_t>> states_of(const Graph& piece) const {
    std::vector<std::pair<size_t, size_t>> states;
    for (size_t i = 0; i < piece.inputs().size(); ++i) {
      const ValueId current = graph_.find(piece.value(piece.inputs()[i]).name);
      const auto state = graph_.state_of(current);
      if (!state) continue;
      const std::string& next = graph_.value(graph_.states()[*state].next).name;
      for (size_t o = 0; o < piece.outputs().size(); ++o) {
        if (piece.value(piece.outputs()[o]).name == next) states.emplace_back(i, o);
      }
    }
    return states;
  }

  /// The views by which one of the nodes reads another.
  void add_views_between(std::vector<NodeId>& nodes) const {
    const std::vector<NodeId> given = nodes;
    for (const NodeId node : given) {
      for (const ValueId input : graph_.inputs(node)) {
        if (!input.valid()) continue;
        const NodeId maker = producer(graph_, epilogues::viewed(graph_, input));
        if (!maker.valid() || std::ranges::find(given, maker) == given.end()) continue;
        for (NodeId view = producer(graph_, input); view != maker;
             view = producer(graph_, graph_.input(view, 0))) {
          if (std::ranges::find(nodes, view) == nodes.end()) nodes.push_back(view);
        }
      }
    }
  }

  Graph& graph_;
  PassContext& context_;
  bool changed_ = false;
};

}  // namespace

bool fuse_epilogues(Graph& graph, PassContext& context) {
  return context.pays && EpilogueFuser(graph, context).run();
}

}  // namespace halfnote
