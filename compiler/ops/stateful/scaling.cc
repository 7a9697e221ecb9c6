// What a mixed-precision step decides from its gradients: AllFinite, GlobalNorm, and
// UpdateLossScale, whose rule is docs/loss-scaling.md.
#include "base/error.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/stateful/parts.h"

namespace halfnote::stateful {
namespace {

/// Sum of the scalars, in order.
Expr sum_of(Builder& b, const std::vector<Expr>& scalars) {
  return scalars.size() == 1 ? scalars[0] : b.ops("Sum", scalars, 1)[0];
}

Expr sum_all(Expr x) { return x.builder->op("ReduceSum", {x}, {{"keepdims", int64_t{0}}}); }

Expr is_special(Expr x) {
  Builder& b = *x.builder;
  return b.op("Or", {b.op("IsNaN", {x}), b.op("IsInf", {x})});
}

struct Rule {
  double up, down, min, max;
  int64_t interval, hysteresis, first_window_extra, warmup_interval;
  bool every_clean, publish_delay;
};

Rule rule_of(const Attributes& attributes) {
  const std::string refill = attributes.get_string("refill", "on_growth");
  if (refill != "on_growth" && refill != "every_clean") {
    throw Error(ErrorCode::kModel, "unknown refill of UpdateLossScale")
        .expected("on_growth or every_clean", "\"" + refill + "\"");
  }
  return {.up = attributes.get_float("up", 2),
          .down = attributes.get_float("down", 0.5f),
          .min = attributes.get_float("min", 1),
          .max = attributes.get_float("max", 16777216),
          .interval = attributes.get_int("interval", 2000),
          .hysteresis = attributes.get_int("hysteresis", 1),
          .first_window_extra = attributes.get_int("first_window_extra", 0),
          .warmup_interval = attributes.get_int("warmup_interval", 0),
          .every_clean = refill == "every_clean",
          .publish_delay = attributes.get_int("publish_delay", 0) != 0};
}

/// Builds the update from the state before it; both outcomes are computed and `finite` selects.
class ScaleUpdate {
 public:
  ScaleUpdate(BodyContext& body)
      : b_(body.b),
        rule_(rule_of(body.attributes)),
        scale_(body.inputs[0]),
        growth_(body.inputs[1]),
        hysteresis_(body.inputs[2]),
        pending_(body.inputs[3]),
        clean_(body.inputs[4]),
        skips_(body.inputs[5]),
        skips_in_row_(body.inputs[6]),
        floor_hits_(body.inputs[7]),
        finite_(body.inputs[8]) {}

  std::vector<Expr> run() {
    const Expr before = rule_.publish_delay ? pending_ : scale_;
    const Outcome good = after_clean(before);
    const Outcome bad = after_overflow(before);
    const Expr next = select(finite_, good.scale, bad.scale);
    const Expr published = rule_.publish_delay ? b_.op("Identity", {pending_}) : next;
    const Expr pending = rule_.publish_delay ? next : b_.op("Identity", {next});
    return {published,
            select(finite_, good.growth, bad.growth),
            select(finite_, good.hysteresis, bad.hysteresis),
            pending,
            select(finite_, clean_, number(-1)),
            select(finite_, skips_, skips_ + 1.0),
            select(finite_, number(0), skips_in_row_ + 1.0),
            select(finite_, floor_hits_, hits_after_overflow(before))};
  }

 private:
  struct Outcome {
    Expr scale, growth, hysteresis;
  };

  Expr number(int64_t value) { return b_.scalar(DType::kI32, static_cast<double>(value)); }
  Expr real(double value) { return b_.scalar(DType::kF32, value); }
  Expr select(Expr mask, Expr yes, Expr no) { return b_.op("Where", {mask, yes, no}); }

  Outcome after_overflow(Expr before) {
    const Expr more = b_.op("Greater", {hysteresis_, number(1)});
    const Expr left = select(more, hysteresis_ - 1.0, number(0));
    Expr shrunk = before * rule_.down;
    if (rule_.min > 0) {
      const Expr floor = b_.op("Min", {before, real(rule_.min)});
      shrunk = select(b_.op("Less", {shrunk, real(rule_.min)}), floor, shrunk);
    }
    return {select(more, before, shrunk), number(0), left};
  }

  Expr hits_after_overflow(Expr before) {
    if (rule_.min <= 0) return b_.op("Identity", {floor_hits_});
    const Expr stays = b_.op("Greater", {hysteresis_, number(1)});
    const Expr above = b_.op("Greater", {before, real(rule_.min)});
    return select(b_.op("Or", {stays, above}), floor_hits_, floor_hits_ + 1.0);
  }

  Outcome after_clean(Expr before) {
    const Expr kept = rule_.every_clean ? number(rule_.hysteresis) : hysteresis_;
    const bool warms_up = rule_.warmup_interval > 0;
    if (!warms_up && rule_.interval <= 0) return {before, growth_, kept};
    const Expr early = b_.op("GreaterOrEqual", {clean_, number(0)});
    Expr interval = number(rule_.interval);
    if (warms_up) interval = select(early, number(rule_.warmup_interval), interval);
    const Expr count = growth_ + 1.0;
    const Expr extra = number(rule_.first_window_extra);
    const Expr full = b_.op("GreaterOrEqual", {count, interval + extra});
    const Outcome counted = {select(full, grown(before), before), select(full, extra, count),
                             select(full, number(rule_.hysteresis), kept)};
    if (rule_.interval > 0) return counted;
    // After the warm-up the scale never grows.
    return {select(early, counted.scale, before), select(early, counted.growth, growth_),
            select(early, counted.hysteresis, kept)};
  }

  Expr grown(Expr before) {
    const Expr product = before * rule_.up;
    Expr bounded = product;
    if (rule_.max > 0) {
      const Expr ceiling = b_.op("Max", {before, real(rule_.max)});
      bounded = select(b_.op("Greater", {product, real(rule_.max)}), ceiling, product);
    }
    return select(is_special(product), before, bounded);
  }

  Builder& b_;
  const Rule rule_;
  const Expr scale_, growth_, hysteresis_, pending_, clean_, skips_, skips_in_row_, floor_hits_,
      finite_;
};

}  // namespace

std::vector<ValueType> infer_all_finite(const Graph& graph, NodeId node) {
  for (size_t i = 0; i < graph.inputs(node).size(); ++i) {
    const DType dtype = operand_type(graph, node, i).dtype;
    if (is_float(dtype) || dtype == DType::kBool) continue;
    throw Error(ErrorCode::kModel, "an operand of AllFinite is no float tensor")
        .expected("a float type, or bool", to_string(operand_type(graph, node, i)));
  }
  return {ValueType::tensor(DType::kBool, SymbolicShape{})};
}

std::vector<ValueType> infer_global_norm(const Graph& graph, NodeId node) {
  std::vector<ValueType> types = {
      ValueType::tensor(math_dtype(operand_type(graph, node, 0).dtype), SymbolicShape{})};
  if (graph.outputs(node).size() > 1) {
    types.push_back(ValueType::tensor(DType::kBool, SymbolicShape{}));
  }
  return types;
}

namespace {

// x - x is 0, or NaN where x is Inf or NaN, and so is the sum: two nodes an operand, of which there
// are as many as the model has weights. A bool is another's answer.
Expr all_finite(Builder& b, std::span<const Expr> values) {
  std::vector<Expr> sums;
  for (const Expr& value : values) {
    const bool answer = value.dtype() == DType::kBool;
    const Expr x = answer ? value : b.to_math(value);
    sums.push_back(answer ? sum_all(b.cast(b.op("Not", {x}), DType::kF32))
                          : b.cast(sum_all(x - x), DType::kF32));
  }
  return b.op("Equal", {sum_of(b, sums), b.scalar(DType::kF32, 0)});
}

}  // namespace

std::vector<Expr> all_finite_body(BodyContext& body) { return {all_finite(body.b, body.inputs)}; }

std::vector<Expr> global_norm_body(BodyContext& body) {
  Builder& b = body.b;
  std::span<const Expr> gradients = body.inputs;
  const bool scaled = body.attributes.get_int("scaled", 0) != 0;
  if (scaled) gradients = gradients.first(gradients.size() - 1);
  std::vector<Expr> squares;
  for (const Expr& gradient : gradients) {
    const Expr plain = scaled ? b.to_math(gradient) * body.inputs.back() : gradient;
    const Expr wide = b.cast(plain, DType::kF64);
    squares.push_back(sum_all(wide * wide));
  }
  const Expr norm = b.op("Sqrt", {sum_of(b, squares)});
  std::vector<Expr> results = {b.cast(norm, body.output_types[0].dtype)};
  if (body.output_types.size() > 1) results.push_back(all_finite(b, gradients));
  return results;
}

std::vector<Expr> update_loss_scale_body(BodyContext& body) { return ScaleUpdate(body).run(); }

}  // namespace halfnote::stateful
