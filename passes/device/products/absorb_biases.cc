// absorb_biases: a product that a bias is added to adds it itself, before it goes to memory; so
// does the gradient of a weight that is added to the sum of earlier ones.
//
//   p = ai.halfnote.MatMul <transB = 1> (x, w)      x2 = Reshape (x, [rows, k])
//   y = Add (p, bias)                         ──▶   y2 = ai.halfnote.Gemm <transB = 1> (x2, w,
//   bias)
//                                                   y = Reshape (y2, shape of p)
//
//   p = ai.halfnote.Gemm (x, dy)  ──▶  sum' = ai.halfnote.Gemm (x, dy, sum)
//   sum' = Add (sum, p)
//
// The views cost nothing. Exact: kernels add C to the sum as it is rounded to f32. Runs behind
// fuse-pointwise, which has taken the Adds that go on into other arithmetic. Leaves alone: 16-bit
// products, which would be rounded once less, stacks of B, products that somebody else reads, and
// small ones, which keep their form (absorb_transposes.h).
//
// absorb-biases-on-gpu does it for GPUs, where Adds of a bias to a 16-bit product cost a pass over
// memory each. Rounding: to 16 bits once, behind the sum, as in a Gemm with C, and not before it
// too. There gradients of a weight are left alone: what is no bias the library wants in the result
// beforehand, which is a pass as well.
#include "passes/device/products/absorb_biases.h"

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "compiler/ir/replace.h"
#include "passes/device/products/absorb_transposes.h"

namespace halfnote {
namespace {

/// A product to which nothing is added yet.
bool is_plain_product(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (!node.domain.empty() && node.domain != kHalfnoteDomain) return false;
  return node.op == "MatMul" || (node.op == "Gemm" && !graph.input(id, 2).valid() &&
                                 node.attributes.get_float("alpha", 1) == 1);
}

/// The dims of a float; empty if they are not known.
Shape float_shape(const Graph& graph, ValueId value) {
  const ValueType& type = graph.value(value).type;
  return is_float(type.dtype) && type.has_concrete_shape() ? concrete(*type.shape) : Shape{};
}

/// Is it what the gradients of a weight are added to, micro-batch by micro-batch?
bool is_sum_of_gradients(const Graph& graph, ValueId value) {
  const auto state = graph.state_of(value);
  return state && graph.states()[*state].kind == StateKind::kAccumulator;
}

enum class Products { kF32, kAny };

/// What a bias (or a sum) may be added to by the product itself.
struct BiasedProduct {
  NodeId product;
  ValueId bias;
  int64_t rows = 0, k = 0, columns = 0;
};

/// May the product add what it gets in `found`, given the dims of the result?
bool takes_bias(const Graph& graph, NodeId product, ValueId bias, const Shape& result,
                Products products) {
  const Shape c = float_shape(graph, bias);
  const DType from = graph.value(graph.input(product, 0)).type.dtype,
              to = graph.value(graph.output(product)).type.dtype;
  if (graph.value(bias).type.dtype != to || to == DType::kF64) return false;
  if (products == Products::kAny) return c == Shape{result.back()};
  if (to != DType::kF32) return false;
  if (c == result && result.size() == 2 && is_sum_of_gradients(graph, bias)) return true;
  return from == DType::kF32 && c == Shape{result.back()};
}

bool fits(const Graph& graph, NodeId add, NodeId product, Products products, BiasedProduct& found) {
  const ValueId p = graph.output(product);
  if (graph.uses(p).size() != 1 || graph.node(product).region != graph.node(add).region)
    return false;
  const Shape a = float_shape(graph, graph.input(product, 0)),
              b = float_shape(graph, graph.input(product, 1)), y = float_shape(graph, p);
  if (a.size() < 2 || b.size() != 2 || y.size() != a.size()) return false;
  if (!takes_bias(graph, product, found.bias, y, products)) return false;
  const bool trans_a = graph.node(product).attributes.get_int("transA", 0) != 0;
  if (trans_a && a.size() > 2) return false;
  found.product = product;
  found.k = trans_a ? a[0] : a.back();
  found.columns = y.back();
  const int64_t results = element_count(y);
  if (found.columns == 0 || found.k == 0) return false;
  found.rows = results / found.columns;
  const bool any_size = is_16bit_float(graph.value(graph.input(product, 0)).type.dtype);
  return results > 0 && (any_size || results > kSmallProduct / found.k);
}

/// The product that this Add adds a bias to; without a node if there is none.
BiasedProduct biased_product(const Graph& graph, NodeId add, Products products) {
  if (graph.node(add).op != "Add" || !graph.node(add).domain.empty()) return {};
  for (const size_t operand : {0, 1}) {
    const NodeId product = producer(graph, graph.input(add, operand));
    if (!product.valid() || !is_plain_product(graph, product)) continue;
    BiasedProduct found;
    found.bias = graph.input(add, 1 - operand);
    if (fits(graph, add, product, products, found)) return found;
  }
  return {};
}

void absorb(Graph& graph, PassContext& context, NodeId add, const BiasedProduct& found) {
  // Behind the bias, which may come after the product.
  Builder b(graph, graph.before(add), context.infer);
  const Node& old = graph.node(found.product);
  b.set_role(old.role);
  b.set_origin(old.origin.empty() ? graph.label(found.product) : old.origin.str());
  Attributes attributes;
  for (const char* name : {"transA", "transB", "out_dtype"}) {
    if (const int64_t given = old.attributes.get_int(name, 0); given != 0)
      attributes.set(name, given);
  }
  const ValueId sum = graph.output(add), a = graph.input(found.product, 0);
  const Shape shape = float_shape(graph, sum);
  const bool flat = shape.size() == 2;
  const Expr rows = flat ? b.value(a) : b.reshape(b.value(a), b.ints({found.rows, found.k}));
  Expr y = b.op("Gemm", {rows, b.value(graph.input(found.product, 1)), b.value(found.bias)},
                std::move(attributes), kHalfnoteDomain);
  const NodeId made = b.last();
  graph.node(made).name = graph.node(found.product).name;
  graph.node(made).precision = graph.node(found.product).precision;
  graph.value(y.id).scale_power = graph.value(sum).scale_power;
  if (!flat) y = b.reshape(y, b.ints({shape.begin(), shape.end()}));
  graph.value(y.id).scale_power = graph.value(sum).scale_power;
  take_place(graph, sum, y.id);
  graph.remove(add);
  graph.remove(found.product);
}

bool absorb_all(Graph& graph, PassContext& context, Products products) {
  bool changed = false;
  for (const NodeId id : graph.nodes()) {
    if (!graph.node(id).alive) continue;
    const BiasedProduct found = biased_product(graph, id, products);
    if (!found.product.valid()) continue;
    absorb(graph, context, id, found);
    changed = true;
  }
  return changed;
}

}  // namespace

bool absorb_biases(Graph& graph, PassContext& context) {
  return absorb_all(graph, context, Products::kF32);
}

bool absorb_biases_on_gpu(Graph& graph, PassContext& context) {
  return absorb_all(graph, context, Products::kAny);
}

bool is_bias_of_product_on_gpu(const Graph& graph, NodeId add) {
  return biased_product(graph, add, Products::kAny).product.valid();
}

}  // namespace halfnote
