// Gradients of the reductions. Each brings dY and, where the rule reads it, Y to the reduced shape
// with its dims kept, so that they broadcast against X; the axes must be constant.
#include <algorithm>
#include <set>

#include "base/error.h"
#include "compiler/ops/reduction/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::reduction {
namespace {

/// What all reductions share: X, and dY and Y with the reduced dims kept as 1.
struct Reduction {
  Expr x, y, grad;
  std::vector<int64_t> axes;  // in [0, rank), sorted
};

std::vector<int64_t> axes_of(GradientContext& rule, int64_t rank) {
  std::vector<int64_t> axes;
  if (rule.inputs.size() > 1 && rule.inputs[1].valid()) {
    const auto constant = constant_ints(rule.graph(), rule.inputs[1].id);
    if (!constant) {
      throw Error(ErrorCode::kUnsupported, "the axes of a reduction are computed in the graph")
          .expected("a constant", "\"" + rule.graph().value(rule.inputs[1].id).name + "\"");
    }
    axes = *constant;
  }
  for (int64_t& axis : axes) axis = normalize_axis(axis, rank);
  std::sort(axes.begin(), axes.end());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  return axes;
}

/// What a rule needs of its operands, and what it does for empty axes that reduce nothing.
struct Traits {
  bool reads_output = false;
  bool identity_of_one = true;  // the reduction of one element is that element
};

/// The gradient for X, then none for the axes. `formula` gets the operands with dims kept.
template <class Formula>
std::vector<Expr> apply(GradientContext& rule, Traits traits, Formula&& formula) {
  Reduction r{rule.inputs[0], rule.outputs[0], rule.grads[0], axes_of(rule, rule.inputs[0].rank())};
  std::vector<Expr> results(rule.inputs.size(), rule.b.none());
  if (r.axes.empty() && rule.attributes().get_int("noop_with_empty_axes", 0) != 0) {
    if (!traits.identity_of_one) {
      throw Error(ErrorCode::kUnsupported, "a reduction over no axes: ONNX leaves its value open")
          .hint("drop noop_with_empty_axes, or name the axes");
    }
    results[0] = r.grad;
    return results;
  }
  if (r.axes.empty()) r.axes = axes_between(0, r.x.rank());
  if (rule.attributes().get_int("keepdims", 1) == 0) {
    r.grad = unsqueeze(r.grad, r.axes);
    if (traits.reads_output) r.y = unsqueeze(r.y, r.axes);
  }
  results[0] = formula(r);
  return results;
}

Expr equal(Expr a, Expr b) { return a.builder->op("Equal", {a, b}); }
Expr number(Expr like, double value) { return like.builder->scalar(like.dtype(), value); }

/// dY to every element that equals the extreme, divided by their number.
Expr share_extreme(Expr x, Expr y, Expr grad, const std::vector<int64_t>& axes) {
  Builder& b = *x.builder;
  const Expr mask = b.cast(equal(x, y), x.dtype());
  return mask * (grad / b.reduce_sum(mask, axes, true));
}

std::vector<int64_t> spatial_axes(Expr x) { return axes_between(2, x.rank()); }

}  // namespace

std::vector<Expr> reduce_sum_gradient(GradientContext& rule) {
  return apply(rule, {}, [](const Reduction& r) { return expand_like(r.grad, r.x); });
}

std::vector<Expr> reduce_mean_gradient(GradientContext& rule) {
  return apply(rule, {}, [](const Reduction& r) {
    return expand_like(r.grad / count_along(r.x, r.axes, r.x.dtype()), r.x);
  });
}

std::vector<Expr> reduce_extreme_gradient(GradientContext& rule) {
  return apply(rule, {.reads_output = true},
               [](const Reduction& r) { return share_extreme(r.x, r.y, r.grad, r.axes); });
}

std::vector<Expr> reduce_l1_gradient(GradientContext& rule) {
  return apply(rule, {.identity_of_one = false},
               [](const Reduction& r) { return r.grad * r.x.builder->op("Sign", {r.x}); });
}

std::vector<Expr> reduce_l2_gradient(GradientContext& rule) {
  return apply(rule, {.reads_output = true, .identity_of_one = false}, [](const Reduction& r) {
    // Where the norm is 0 all x are 0, and so is the gradient taken there.
    const Expr norm = where(equal(r.y, number(r.y, 0)), number(r.y, 1), r.y);
    return r.grad / norm * r.x;
  });
}

std::vector<Expr> reduce_log_sum_gradient(GradientContext& rule) {
  return apply(rule, {.reads_output = true, .identity_of_one = false}, [](const Reduction& r) {
    return expand_like(r.grad / r.y.builder->op("Exp", {r.y}), r.x);
  });
}

std::vector<Expr> reduce_log_sum_exp_gradient(GradientContext& rule) {
  return apply(rule, {.reads_output = true, .identity_of_one = false},
               [](const Reduction& r) { return r.grad * r.x.builder->op("Exp", {r.x - r.y}); });
}

std::vector<Expr> reduce_sum_square_gradient(GradientContext& rule) {
  return apply(rule, {.identity_of_one = false},
               [](const Reduction& r) { return r.grad * (r.x * 2.0); });
}

std::vector<Expr> reduce_prod_gradient(GradientContext& rule) {
  return apply(rule, {}, [](const Reduction& r) {
    // With P the product of the elements that are not 0 and n the number of zeros on the way:
    // n = 0: P/x;  n = 1: P at the zero, else 0;  n > 1: 0.
    Builder& b = *r.x.builder;
    const Expr is_zero = equal(r.x, number(r.x, 0));
    const Expr safe = where(is_zero, number(r.x, 1), r.x);
    const Expr product = b.op("ReduceProd", {safe, b.ints(r.axes)});
    const Expr zeros_seen = b.reduce_sum(b.cast(is_zero, r.x.dtype()), r.axes, true);
    const Expr at_zero = mask_zero(equal(zeros_seen, number(r.x, 1)), product);
    const Expr elsewhere = mask_zero(equal(zeros_seen, number(r.x, 0)), product / safe);
    return r.grad * where(is_zero, at_zero, elsewhere);
  });
}

std::vector<Expr> cum_sum_gradient(GradientContext& rule) {
  const int64_t exclusive = rule.attributes().get_int("exclusive", 0);
  const int64_t reverse = rule.attributes().get_int("reverse", 0);
  const Expr dx = rule.b.op("CumSum", {rule.grads[0], rule.inputs[1]},
                            {{"exclusive", exclusive}, {"reverse", int64_t{reverse == 0}}});
  return {dx, rule.b.none()};
}

std::vector<Expr> global_average_pool_gradient(GradientContext& rule) {
  const Expr x = rule.inputs[0];
  return {expand_like(rule.grads[0] / count_along(x, spatial_axes(x), x.dtype()), x)};
}

std::vector<Expr> global_max_pool_gradient(GradientContext& rule) {
  const Expr x = rule.inputs[0];
  return {share_extreme(x, rule.outputs[0], rule.grads[0], spatial_axes(x))};
}

std::vector<ValueType> infer_own_sum(const Graph& graph, NodeId node) {
  const Attributes& attributes = graph.node(node).attributes;
  const DType dtype = out_dtype_of(attributes, operand_type(graph, node, 0).dtype);
  const SymbolicShape& shape = operand_shape(graph, node, 0);
  const auto rank = static_cast<int64_t>(shape.size());
  std::set<int64_t> axes;
  for (const int64_t axis : attributes.get_ints("axes")) axes.insert(normalize_axis(axis, rank));
  const bool keep = attributes.get_int("keepdims", 1) != 0;
  SymbolicShape reduced;
  for (int64_t d = 0; d < rank; ++d) {
    if (!axes.empty() && !axes.contains(d)) {
      reduced.push_back(shape[static_cast<size_t>(d)]);
    } else if (keep) {
      reduced.push_back(Dim(1));
    }
  }
  return {ValueType::tensor(dtype, reduced)};
}

std::vector<Expr> own_sum_body(BodyContext& body) {
  Builder& b = body.b;
  std::vector<Expr> operands = {b.to_math(body.inputs[0])};
  const std::vector<int64_t> axes = body.attributes.get_ints("axes");
  if (!axes.empty()) operands.push_back(b.ints(axes));
  const Attributes attributes = {{"keepdims", body.attributes.get_int("keepdims", 1)}};
  const Expr sum = b.ops("ReduceSum", operands, 1, attributes)[0];
  return {b.cast(sum, body.output_types[0].dtype)};
}

}  // namespace halfnote::reduction
