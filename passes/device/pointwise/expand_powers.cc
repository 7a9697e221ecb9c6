// expand_powers: a power whose exponent is the constant 2 or 3 (of a GELU, of a variance) becomes
// products, which chains compute without asking each element for its exponent.
//
//   y = Pow (x, 3)   ──▶   a = Mul (x, x)  y = Mul (a, x)
//
// Exact: the kernels compute these powers so. Leaves alone: cubes in 16 bits, whose square would be
// rounded, integers and f64, which have no chains, and exponents of a higher rank than x.
#include "passes/device/pointwise/expand_powers.h"

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/pass_through.h"

namespace halfnote {
namespace {

/// The exponent, where it is one that this pass knows for such an x; else 0.
int small_exponent(const Graph& graph, ValueId x, ValueId exponent) {
  const DType dtype = graph.value(x).type.dtype;
  const Tensor* tensor = graph.constant(exponent);
  const std::optional<Shape> shape = known_shape(graph, x);
  if (tensor == nullptr || tensor->size() != 1 || !shape) return 0;
  if (tensor->shape().size() > shape->size()) return 0;
  const double power = tensor->at_as_double(0);
  if (power == 2 && (dtype == DType::kF32 || is_16bit_float(dtype))) return 2;
  return power == 3 && dtype == DType::kF32 ? 3 : 0;
}

bool expand(Graph& graph, NodeId id, const InferNode& infer) {
  const Node& node = graph.node(id);
  if (!node.domain.empty() || node.op != "Pow") return false;
  const ValueId from = graph.input(id, 0);
  const int power = small_exponent(graph, from, graph.input(id, 1));
  if (power == 0) return false;
  expand_into(graph, id, infer, [&](Builder& builder) {
    const Expr x = builder.value(from);
    const Expr square = builder.op("Mul", {x, x});
    return power == 2 ? square : builder.op("Mul", {square, x});
  });
  return true;
}

}  // namespace

bool expand_powers(Graph& graph, PassContext& context) {
  bool changed = false;
  for (const NodeId node : graph.all_nodes()) changed |= expand(graph, node, context.infer);
  return changed;
}

}  // namespace halfnote
