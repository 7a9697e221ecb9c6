#include "compiler/ops/contraction/recurrent_parts.h"

#include "base/error.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::contraction {
namespace {

Expr scalar_like(Expr x, double number) { return x.builder->scalar(x.dtype(), number); }

Expr less(Expr a, Expr b) { return a.builder->op("Less", {a, b}); }

bool is_cell_function(const BodySizes& sizes, int64_t function) {
  return sizes.r.op == RecurrentOp::kLstm && function == 2;
}

Expr cut(const BodySizes& sizes, int64_t function, Expr x) {
  if (!sizes.r.clip || is_cell_function(sizes, function)) return x;
  const double bound = static_cast<double>(*sizes.r.clip);
  return x.builder->op("Clip", {x, scalar_like(x, -bound), scalar_like(x, bound)});
}

Expr slope_of(const Activation& f, Expr x, Expr y) {
  Builder& b = *x.builder;
  const auto alpha = static_cast<double>(f.alpha), beta = static_cast<double>(f.beta);
  const Expr zero = scalar_like(x, 0), one = scalar_like(x, 1);
  switch (f.kind) {
    case ActivationKind::kAffine:
      return b.op("Expand", {scalar_like(x, alpha), b.shape_of(x)});
    case ActivationKind::kElu:
      return where(less(x, zero), y + alpha, one);
    case ActivationKind::kHardSigmoid:
      return where(b.op("And", {less(zero, y), less(y, one)}), scalar_like(x, alpha), zero);
    case ActivationKind::kLeakyRelu:
      return where(less(x, zero), scalar_like(x, alpha), one);
    case ActivationKind::kRelu:
      return b.cast(less(zero, x), x.dtype());
    case ActivationKind::kScaledTanh: {
      const Expr t = b.op("Tanh", {x * beta});
      return (1.0 - t * t) * (alpha * beta);
    }
    case ActivationKind::kSigmoid:
      return y * (1.0 - y);
    case ActivationKind::kSoftplus:
      return b.op("Sigmoid", {x});
    case ActivationKind::kSoftsign: {
      const Expr d = b.op("Abs", {x}) + 1.0;
      return b.op("Reciprocal", {d * d});
    }
    case ActivationKind::kTanh:
      return 1.0 - y * y;
    case ActivationKind::kThresholdedRelu:
      return where(less(x, scalar_like(x, alpha)), zero, one);
  }
  return one;
}

}  // namespace

BodySizes body_sizes(const BodyContext& body, RecurrentOp op) {
  const SymbolicShape& x = body.inputs[0].shape();
  const std::vector<int64_t> w =
      require_static(body.inputs[1].shape(), 0, "the body of a recurrent op (W)");
  const std::vector<int64_t> r =
      require_static(body.inputs[2].shape(), 0, "the body of a recurrent op (R)");
  BodySizes sizes{recurrence_of(op, body.attributes, r[2]), 0, r[2], w[2]};
  if (sizes.r.reserve > 0) {
    throw Error(ErrorCode::kUnsupported,
                "a recurrent op that keeps a reserve has no function body: what is in it is the "
                "kernel's own")
        .hint("only the passes of a device set the attribute reserve");
  }
  const Dim& steps = x[sizes.r.batch_first ? 1 : 0];
  if (!steps.known() || steps.value < 1) {
    throw Error(ErrorCode::kUnsupported,
                "the function body of a recurrent op writes its steps out, but their number is "
                "not known")
        .expected("a sequence length of 1 or more", to_string(x))
        .hint("fix the dim of the sequence length with --dim NAME=N");
  }
  sizes.steps = steps.value;
  return sizes;
}

Expr slice(Expr x, int64_t axis, int64_t from, int64_t to) {
  Builder& b = *x.builder;
  return b.op("Slice", {x, b.ints({from}), b.ints({to}), b.ints({axis})});
}

std::vector<Expr> split(Expr x, int64_t axis, int64_t count) {
  if (count == 1) return {x};
  return x.builder->ops("Split", {x}, static_cast<int>(count),
                        {{"axis", axis}, {"num_outputs", count}});
}

Expr concat(const std::vector<Expr>& parts, int64_t axis) {
  if (parts.size() == 1) return parts[0];
  return parts[0].builder->ops("Concat", parts, 1, {{"axis", axis}})[0];
}

Expr in_layout(Expr x, bool batch_first) {
  if (!batch_first) return x;
  return x.builder->transpose(x, {1, 0, 2});
}

Expr recurrent_input(BodyContext& body, size_t index, bool batch_first) {
  if (index >= body.inputs.size() || !body.inputs[index].valid()) return body.b.none();
  return in_layout(body.b.to_math(body.inputs[index]), batch_first);
}

Expr direction_of(Expr x, int64_t d) {
  if (x.shape()[0].is(1)) return x;
  return slice(x, 0, d, d + 1);
}

Expr zero_state(const BodySizes& sizes, Expr x) {
  Builder& b = *x.builder;
  const Dim batch = x.shape()[1];
  if (batch.known()) return zeros(x.dtype(), b.ints({1, batch.value, sizes.hidden}));
  const Expr shape = concat({b.ints({1}), dims_of(x, 1, 2), b.ints({sizes.hidden})}, 0);
  return zeros(x.dtype(), shape);
}

Expr initial_state(const BodySizes& sizes, Expr x, Expr state, int64_t d) {
  return state.valid() ? direction_of(state, d) : zero_state(sizes, x);
}

Expr rounded(Expr x, DType dtype) { return x.builder->cast(x.builder->cast(x, dtype), x.dtype()); }

Expr within_length(const BodySizes& sizes, Expr lengths, int64_t offset) {
  Builder& b = *lengths.builder;
  std::vector<int32_t> times;
  for (int64_t t = 0; t < sizes.steps; ++t) times.push_back(static_cast<int32_t>(t + offset));
  const Expr all = b.constant(Tensor::of<int32_t>({sizes.steps, 1, 1}, times));
  return less(all, unsqueeze(lengths, {0, 2}));
}

Expr activation(const BodySizes& sizes, int64_t d, int64_t function, Expr given) {
  const Activation& f = sizes.r.activation(d, function);
  const Expr x = cut(sizes, function, given);
  Builder& b = *x.builder;
  const auto alpha = static_cast<double>(f.alpha), beta = static_cast<double>(f.beta);
  switch (f.kind) {
    case ActivationKind::kAffine:
      return x * alpha + beta;
    case ActivationKind::kScaledTanh:
      return b.op("Tanh", {x * beta}) * alpha;
    case ActivationKind::kThresholdedRelu:
      return where(less(x, scalar_like(x, alpha)), scalar_like(x, 0), x);
    default:
      break;
  }
  Attributes attributes;
  if (takes_alpha(f.kind)) attributes.set("alpha", f.alpha);
  if (takes_beta(f.kind)) attributes.set("beta", f.beta);
  return b.op(activation_name(f.kind), {x}, std::move(attributes));
}

Expr activation_slope(const BodySizes& sizes, int64_t d, int64_t function, Expr x, Expr y) {
  const Expr slope = slope_of(sizes.r.activation(d, function), x, y);
  if (!sizes.r.clip || is_cell_function(sizes, function)) return slope;
  Builder& b = *x.builder;
  const Expr bound = scalar_like(x, static_cast<double>(*sizes.r.clip));
  return where(less(bound, b.op("Abs", {x})), scalar_like(x, 0), slope);
}

}  // namespace halfnote::contraction
