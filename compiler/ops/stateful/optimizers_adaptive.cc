// Bodies of Adagrad, RMSprop, Lion, LAMB and Adafactor. As in optimizers.cc: what all elements
// share is computed in f64 and rounded once, `commit` false gives the old state back.
#include <array>

#include "compiler/ops/rule_support.h"
#include "compiler/ops/stateful/parts.h"

namespace halfnote::stateful {
namespace {

Expr root(Expr x) { return x.builder->op("Sqrt", {x}); }

/// The first `results.size()` states: param, and those from input 2 on that are there.
std::vector<Expr> old_states(BodyContext& body, size_t end) {
  std::vector<Expr> old = {body.inputs[0]};
  for (size_t i = 2; i < end; ++i) {
    if (body.inputs[i].valid()) old.push_back(body.inputs[i]);
  }
  return old;
}

/// The mean of x over `axis`, in f64.
Expr mean_along(Expr x, int64_t axis, bool keep) {
  Builder& b = *x.builder;
  return b.op("ReduceMean", {b.cast(x, DType::kF64), b.ints({axis})},
              {{"keepdims", int64_t{keep}}});
}

/// sqrt(mean(x²)), in f64.
Expr root_mean_square(Expr x) {
  Builder& b = *x.builder;
  const Expr wide = b.cast(x, DType::kF64);
  return root(b.op("ReduceMean", {wide * wide}, {{"keepdims", int64_t{0}}}));
}

/// sqrt(Σ x²), in f64.
Expr norm(Expr x) {
  Builder& b = *x.builder;
  return root(b.op("ReduceSumSquare", {b.cast(x, DType::kF64)}, {{"keepdims", int64_t{0}}}));
}

/// The trust ratio of LAMB, in f64.
Expr trust_ratio(BodyContext& body, Expr param, Expr direction) {
  Builder& b = body.b;
  const double low = body.attributes.get_float("min_ratio", 0);
  const double high = body.attributes.get_float("max_ratio", 0);
  const Expr zero = b.scalar(DType::kF64, 0);
  const Expr above = norm(param), below = norm(direction);
  const Expr both = b.op("And", {b.op("Greater", {above, zero}), b.op("Greater", {below, zero})});
  Expr ratio = above / below;
  if (low > 0) ratio = b.op("Max", {ratio, b.scalar(DType::kF64, low)});
  if (high > 0) ratio = b.op("Min", {ratio, b.scalar(DType::kF64, high)});
  return b.op("Where", {both, ratio, b.scalar(DType::kF64, 1)});
}

}  // namespace

std::vector<ValueType> infer_states(const Graph& graph, NodeId node, size_t end) {
  std::vector<ValueType> types = {operand_type(graph, node, 0)};
  for (size_t i = 2; i < end; ++i) {
    if (graph.input(node, i).valid()) types.push_back(operand_type(graph, node, i));
  }
  return types;
}

std::vector<ValueType> infer_rmsprop(const Graph& graph, NodeId node) {
  return infer_states(graph, node, 5);
}

std::vector<ValueType> infer_adafactor(const Graph& graph, NodeId node) {
  return infer_states(graph, node, 4);
}

std::vector<Expr> adagrad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr param = body.inputs[0], sum = body.inputs[2];
  const double epsilon = body.attributes.get_float("epsilon", 1e-10f);
  const double lr_decay = body.attributes.get_float("lr_decay", 0);
  const double decay = body.attributes.get_float("weight_decay", 0);
  Expr lr = body.inputs[3];
  if (lr_decay != 0) {
    const Expr before = b.cast(body.inputs[4], DType::kF64) - 1.0;
    lr = b.cast(b.cast(lr, DType::kF64) / (before * lr_decay + 1.0), param.dtype());
  }
  const Expr grad = with_decay(body.inputs[1], param, decay);
  const Expr fresh = sum + grad * grad;
  return committed(body, 5, {param - lr * grad / (root(fresh) + epsilon), fresh}, {param, sum});
}

std::vector<Expr> rmsprop_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr param = body.inputs[0], lr = body.inputs[5];
  const double alpha = body.attributes.get_float("alpha", 0.99f);
  const double epsilon = body.attributes.get_float("epsilon", 1e-8f);
  const double momentum = body.attributes.get_float("momentum", 0);
  const double decay = body.attributes.get_float("weight_decay", 0);
  const bool centered = body.attributes.get_int("centered", 0) != 0;
  const Expr grad = with_decay(body.inputs[1], param, decay);
  const Expr square = body.inputs[2] * alpha + grad * (1 - alpha) * grad;
  std::vector<Expr> fresh = {param, square};
  Expr variance = square;
  if (centered) {
    const Expr mean = body.inputs[3] * alpha + grad * (1 - alpha);
    fresh.push_back(mean);
    variance = b.op("Max", {square - mean * mean, b.scalar(param.dtype(), 0)});
  }
  Expr step = grad / (root(variance) + epsilon);
  if (momentum != 0) {
    step = body.inputs[4] * momentum + step;
    fresh.push_back(step);
  }
  fresh[0] = param - lr * step;
  return committed(body, 6, fresh, old_states(body, 5));
}

std::vector<Expr> lion_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr param = body.inputs[0], grad = body.inputs[1], m = body.inputs[2];
  const Expr lr = body.inputs[3];
  const double beta1 = body.attributes.get_float("beta1", 0.9f);
  const double beta2 = body.attributes.get_float("beta2", 0.99f);
  const double decay = body.attributes.get_float("weight_decay", 0);
  const Expr sign = b.op("Sign", {m * beta1 + grad * (1 - beta1)});
  const Expr keep = b.cast(1.0 - b.cast(lr, DType::kF64) * decay, param.dtype());
  const Expr base = decay == 0 ? param : param * keep;
  return committed(body, 4, {base - lr * sign, m * beta2 + grad * (1 - beta2)}, {param, m});
}

std::vector<Expr> lamb_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr param = body.inputs[0], grad = body.inputs[1];
  const Expr m = body.inputs[2], v = body.inputs[3];
  const DType dtype = param.dtype();
  const double beta1 = body.attributes.get_float("beta1", 0.9f);
  const double beta2 = body.attributes.get_float("beta2", 0.999f);
  const double epsilon = body.attributes.get_float("epsilon", 1e-6f);
  const double decay = body.attributes.get_float("weight_decay", 0);
  const Expr step = b.cast(body.inputs[5], DType::kF64);
  const auto correction = [&](double beta) {
    return 1.0 - b.op("Pow", {b.scalar(DType::kF64, beta), step});
  };
  const bool rate_corrects = body.attributes.get_int("lamb_mode", 0) == 1;
  const Expr first = correction(beta1), second_root = root(correction(beta2));
  const Expr new_m = m * beta1 + grad * (1 - beta1);
  const Expr new_v = v * beta2 + grad * (1 - beta2) * grad;
  const Expr adam = rate_corrects ? new_m / (root(new_v) + epsilon)
                                  : new_m / b.cast(first, dtype) /
                                        (root(new_v) / b.cast(second_root, dtype) + epsilon);
  const Expr direction = with_decay(adam, param, decay);
  Expr rate = b.cast(body.inputs[4], DType::kF64);
  if (rate_corrects) rate = rate * (second_root / first);
  rate = rate * trust_ratio(body, param, direction);
  return committed(body, 6, {param - b.cast(rate, dtype) * direction, new_m, new_v}, {param, m, v});
}

namespace {

/// The new second moment of Adafactor (means of rows and columns, or one of the parameter's
/// shape), and the update before it is scaled.
struct AdafactorMoments {
  std::vector<Expr> fresh;
  Expr update;
};

AdafactorMoments adafactor_moments(BodyContext& body, Expr beta) {
  Builder& b = body.b;
  const Expr grad = body.inputs[1];
  const DType dtype = grad.dtype();
  const double epsilon = body.attributes.get_float("epsilon", 1e-30f);
  const Expr keep = b.cast(beta, dtype), rest = b.cast(1.0 - beta, dtype);
  const Expr square = grad * grad + epsilon;
  if (!body.inputs[3].valid()) {
    const Expr moment = body.inputs[2] * keep + square * rest;
    return {{moment}, grad / root(moment)};
  }
  const Expr row = body.inputs[2] * keep + b.cast(mean_along(square, -1, false), dtype) * rest;
  const Expr column = body.inputs[3] * keep + b.cast(mean_along(square, -2, false), dtype) * rest;
  const Expr share = row / b.cast(mean_along(row, -1, true), dtype);
  const Expr spread = root(unsqueeze(share, {-1})) * root(unsqueeze(column, {-2}));
  return {{row, column}, grad / spread};
}

}  // namespace

std::vector<Expr> adafactor_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr param = body.inputs[0];
  const DType dtype = param.dtype();
  const auto number = [&](const char* name, float fallback) -> double {
    return body.attributes.get_float(name, fallback);
  };
  const double decay = number("weight_decay", 0);
  const Expr one = b.scalar(DType::kF64, 1);
  const Expr lr = b.cast(body.inputs[4], DType::kF64);
  const Expr step = b.cast(body.inputs[5], DType::kF64);
  const Expr power = b.scalar(DType::kF64, number("decay_rate", -0.8f));
  const AdafactorMoments moments = adafactor_moments(body, 1.0 - b.op("Pow", {step, power}));
  Expr rate = lr;
  if (body.attributes.get_int("relative_step", 1) != 0) {
    rate = b.op("Min", {lr, 1.0 / root(step)});
  }
  if (body.attributes.get_int("scale_parameter", 1) != 0) {
    const Expr least = b.scalar(DType::kF64, number("epsilon_param", 1e-3f));
    rate = rate * b.op("Max", {root_mean_square(param), least});
  }
  const Expr excess = root_mean_square(moments.update) / number("clip_threshold", 1);
  const Expr scale = b.cast(rate / b.op("Max", {excess, one}), dtype);
  const Expr base = decay == 0 ? param : param * b.cast(1.0 - lr * decay, dtype);
  std::vector<Expr> fresh = {base - scale * moments.update};
  fresh.insert(fresh.end(), moments.fresh.begin(), moments.fresh.end());
  return committed(body, 6, fresh, old_states(body, 4));
}

}  // namespace halfnote::stateful
