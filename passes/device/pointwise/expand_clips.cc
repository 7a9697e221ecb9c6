// expand_clips: Clip (ReLU6, among others) and its gradient become the comparisons they consist of,
// which fuse_pointwise makes part of the chains around them.
//
//   y = Clip (x, 0, 6)               ──▶  m = Max (x, 0)  y = Min (m, 6)
//   dx = ClipGrad (dy, x, 0, 6)      ──▶  a = GreaterOrEqual (x, 0)  b = LessOrEqual (x, 6)
//                                         i = And (a, b)  dx = Where (i, dy, 0)
//
// Exact, NaN and crossed bounds too. Leaves alone: integers and f64, which have no chains, and
// bounds of a higher rank than x.
#include "passes/device/pointwise/expand_clips.h"

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/pass_through.h"

namespace halfnote {
namespace {

/// The first bound among the operands.
constexpr size_t kClipBounds = 1, kGradBounds = 2;

bool has_chains(const Graph& graph, ValueId value) {
  const ValueType& type = graph.value(value).type;
  return (type.dtype == DType::kF32 || is_16bit_float(type.dtype)) && type.has_concrete_shape();
}

/// A scalar, or one element of no higher rank than x.
bool bound_fits(const Graph& graph, ValueId bound, ValueId x) {
  if (!bound.valid()) return true;
  if (!has_chains(graph, bound)) return false;
  const SymbolicShape& shape = *graph.value(bound).type.shape;
  return element_count(concrete(shape)) == 1 && shape.size() <= graph.value(x).type.shape->size();
}

class ClipExpander {
 public:
  ClipExpander(Graph& graph, const InferNode& infer) : graph_(graph), infer_(infer) {}

  bool expand(NodeId id) {
    const Node& node = graph_.node(id);
    const bool clips = is_op(node, "Clip");
    if (!clips && (node.domain != kHalfnoteDomain || node.op != "ClipGrad")) return false;
    const size_t first = clips ? kClipBounds : kGradBounds;
    const ValueId x = graph_.input(id, first - 1);
    low_ = graph_.input(id, first);
    high_ = graph_.input(id, first + 1);
    if (!low_.valid() && !high_.valid()) return false;
    if (!has_chains(graph_, x) || !bound_fits(graph_, low_, x) || !bound_fits(graph_, high_, x))
      return false;
    expand_into(graph_, id, infer_, [&](Builder& builder) {
      return clips ? clip(builder, x) : gradient(builder, graph_.input(id, 0), x);
    });
    return true;
  }

 private:
  Expr clip(Builder& builder, ValueId x) const {
    Expr y = builder.value(x);
    if (low_.valid()) y = builder.op("Max", {y, builder.value(low_)});
    if (high_.valid()) y = builder.op("Min", {y, builder.value(high_)});
    return y;
  }

  Expr gradient(Builder& builder, ValueId dy, ValueId x) const {
    Expr inside;
    if (low_.valid())
      inside = builder.op("GreaterOrEqual", {builder.value(x), builder.value(low_)});
    if (high_.valid()) {
      const Expr below = builder.op("LessOrEqual", {builder.value(x), builder.value(high_)});
      inside = inside.valid() ? builder.op("And", {inside, below}) : below;
    }
    return where(inside, builder.value(dy), builder.scalar(graph_.value(dy).type.dtype, 0));
  }

  Graph& graph_;
  const InferNode& infer_;
  ValueId low_, high_;
};

}  // namespace

bool expand_clips(Graph& graph, PassContext& context) {
  ClipExpander expander(graph, context.infer);
  bool changed = false;
  for (const NodeId node : graph.all_nodes()) changed |= expander.expand(node);
  return changed;
}

}  // namespace halfnote
