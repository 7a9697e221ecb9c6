// Random numbers from a stream: ai.halfnote.RandomNormal and RandomUniform, what ONNX's random ops
// become in a training step, and their bodies. Bernoulli and Multinomial are lowered to uniform
// numbers.
//
//   e = RandomNormalLike (x)   ──▶   e = ai.halfnote.RandomNormal <dtype, node> (x, seed, step)
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/stateful/parts.h"

namespace halfnote::stateful {
namespace {

Expr draw_as(LowerContext& rule, std::string_view op, std::initializer_list<const char*> numbers,
             const RandomStream& stream) {
  const Graph& graph = rule.b.graph();
  const ValueType& type = graph.value(graph.output(rule.node)).type;
  Attributes attributes = {{"dtype", static_cast<int64_t>(type.dtype)}, {"node", stream.node}};
  for (const char* name : numbers) {
    if (const Attribute* number = rule.attributes().find(name)) attributes.set(name, *number);
  }
  // A shape that is known need not keep its operand in memory.
  const bool known = type.has_concrete_shape();
  if (known) attributes.set("shape", std::vector<int64_t>(concrete(*type.shape)));
  const Expr like = known || !rule.has_input(0) ? rule.b.none() : rule.inputs[0];
  return rule.b.op(op, {like, stream.seed, stream.step}, std::move(attributes), kHalfnoteDomain);
}

/// The attribute `seed` of a node, if it has one, for the uniform numbers that it is lowered to.
Attributes uniform_attributes(LowerContext& rule) {
  Attributes attributes = {{"dtype", static_cast<int64_t>(DType::kF64)}};
  if (const Attribute* seed = rule.attributes().find("seed")) attributes.set("seed", *seed);
  return attributes;
}

/// `drawn` elements in order as a result of the call.
Expr shaped(BodyContext& body, Expr drawn, Expr count) {
  Builder& b = body.b;
  const ValueType& type = body.output_types[0];
  const Expr shape =
      type.has_concrete_shape() ? b.ints(concrete(*type.shape)) : b.shape_of(body.inputs[0]);
  const Expr all = b.reshape(drawn, b.ints({-1}));
  const Expr cut = b.op("Slice", {all, b.ints({0}), b.reshape(count, b.ints({1}))});
  // By way of f32, as kernels store it.
  const Expr wide = type.dtype == DType::kF64 ? cut : b.cast(cut, DType::kF32);
  return b.cast(reshape_exactly(wide, shape), type.dtype);
}

Expr count_of(BodyContext& body) {
  Builder& b = body.b;
  const ValueType& type = body.output_types[0];
  if (!type.has_concrete_shape()) return b.op("Size", {body.inputs[0]});
  return b.constant(Tensor::scalar(element_count(concrete(*type.shape))));
}

/// Words as numbers of [0, 1) in f64, which holds them exactly.
Expr fractions(BodyContext& body, Expr count) {
  const Expr words =
      random_words(count, body.inputs[1], body.inputs[2], body.attributes.get_int("node", 0));
  return body.b.cast(words, DType::kF64) * 0x1p-32;
}

}  // namespace

Expr draw_normal(LowerContext& rule, const RandomStream& stream) {
  return draw_as(rule, "RandomNormal", {"mean", "scale"}, stream);
}

Expr draw_uniform(LowerContext& rule, const RandomStream& stream) {
  return draw_as(rule, "RandomUniform", {"low", "high"}, stream);
}

std::vector<Expr> lower_bernoulli(LowerContext& rule) {
  Builder& b = rule.b;
  const Graph& graph = b.graph();
  const DType dtype = graph.value(graph.output(rule.node)).type.dtype;
  const Expr p = rule.inputs[0];
  const Expr u = b.op("RandomUniformLike", {p}, uniform_attributes(rule));
  return {b.cast(b.op("Less", {u, b.cast(p, DType::kF64)}), dtype)};
}

/// The number of the first class whose cumulative probability is above u: as many as are not.
std::vector<Expr> lower_multinomial(LowerContext& rule) {
  Builder& b = rule.b;
  const Graph& graph = b.graph();
  const DType dtype = graph.value(graph.output(rule.node)).type.dtype;
  const Expr x = rule.inputs[0];
  const int64_t samples = rule.attributes().get_int("sample_size", 1);
  if (x.rank() != 2 || samples < 1) {
    throw Error(ErrorCode::kModel, "Multinomial cannot be drawn in this form")
        .expected("scores (batch, classes) and a sample_size of 1 or more",
                  to_string(x.type()) + " and " + std::to_string(samples));
  }
  const Expr p = b.op("Softmax", {b.cast(x, DType::kF64)}, {{"axis", int64_t{1}}});
  const Expr sums = b.op("CumSum", {p, b.scalar(DType::kI64, 1)});
  const Expr total = b.op("ReduceMax", {sums, b.ints({1})});  // 1 but for rounding
  const Expr size =
      b.ops("Concat", {dims_of(x, 0, 1), b.ints({samples})}, 1, {{"axis", int64_t{0}}})[0];
  const Expr u = b.op("RandomUniformLike", {zeros(DType::kF32, size)}, uniform_attributes(rule));
  const Expr passed = b.op("GreaterOrEqual", {unsqueeze(u * total, {2}), unsqueeze(sums, {1})});
  return {b.cast(b.reduce_sum(b.cast(passed, DType::kI64), {2}, false), dtype)};
}

std::vector<ValueType> infer_random(const Graph& graph, NodeId node) {
  const Attributes& attributes = graph.node(node).attributes;
  const int64_t code = attributes.get_int("dtype", static_cast<int64_t>(DType::kF32));
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    if (static_cast<int64_t>(dtype) != code) continue;
    if (!attributes.has("shape")) {
      return {ValueType::tensor(dtype, operand_shape(graph, node, 0))};
    }
    return {ValueType::tensor(dtype, symbolic(attributes.get_ints("shape")))};
  }
  throw Error(ErrorCode::kModel, "random numbers of a type that is no float of 16 bits or more")
      .expected("a dtype of 1, 10, 11 or 16", std::to_string(code));
}

std::vector<Expr> random_uniform_body(BodyContext& body) {
  const double low = body.attributes.get_float("low", 0);
  const double high = body.attributes.get_float("high", 1);
  const Expr count = count_of(body);
  return {shaped(body, fractions(body, count) * (high - low) + low, count)};
}

/// Box and Muller's method: words 0 and 1 give two numbers, 2 and 3 two more.
std::vector<Expr> random_normal_body(BodyContext& body) {
  Builder& b = body.b;
  const double mean = body.attributes.get_float("mean", 0);
  const double scale = body.attributes.get_float("scale", 1);
  const Expr count = count_of(body);
  const Expr pairs = b.reshape(fractions(body, count), b.ints({-1, 2}));
  const auto column = [&](int64_t i) {
    return b.op("Slice", {pairs, b.ints({i}), b.ints({i + 1}), b.ints({1})});
  };
  const Expr radius = b.op("Sqrt", {b.op("Log", {column(0) + 0x1p-32}) * -2.0});
  const Expr angle = column(1) * (2 * std::numbers::pi);
  const Expr length = radius * scale;
  const std::vector<Expr> both = {length * b.op("Cos", {angle}), length * b.op("Sin", {angle})};
  const Expr drawn = b.ops("Concat", both, 1, {{"axis", int64_t{1}}})[0];
  return {shaped(body, drawn + mean, count)};
}

}  // namespace halfnote::stateful
