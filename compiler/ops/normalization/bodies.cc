// Bodies of the normalizations of ai.halfnote in standard ops: f32 math (f64 for f64), rounded
// once.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "compiler/ops/normalization/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::normalization {
namespace {

Expr round_to(Expr x, const ValueType& type) { return x.builder->cast(x, type.dtype); }

bool has_norm_part(const BodyContext& body, size_t index) {
  return index < body.inputs.size() && body.inputs[index].valid();
}

/// X with its residual, rounded to the type of X.
Expr residual_sum(BodyContext& body, size_t index) {
  Builder& b = body.b;
  const Expr x = body.inputs[0];
  return b.cast(b.to_math(x) + b.to_math(body.inputs[index]), x.dtype());
}

/// `value` and an operand that may be missing.
Expr with_part(BodyContext& body, Expr value, size_t index) {
  return has_norm_part(body, index) ? value + body.b.to_math(body.inputs[index]) : value;
}

/// dY and its second part, if there is one, as one number rounded to the type of dY.
Expr summed_grad(BodyContext& body, size_t index) {
  Builder& b = body.b;
  const Expr grad = b.to_math(body.inputs[0]);
  if (!has_norm_part(body, index)) return grad;
  return b.to_math(b.cast(with_part(body, grad, index), body.inputs[0].dtype()));
}

/// 1, 2, 4, … of the eight channels that share a byte.
Expr powers_of_two(Builder& b) {
  return b.constant(Tensor::of<float>({8}, {1, 2, 4, 8, 16, 32, 64, 128}));
}

/// The signs of y as bits: bytes (N, spatial…, C / 8).
Expr pack_signs(Builder& b, Expr y) {
  const Expr above = b.cast(b.op("Greater", {y, b.scalar(y.dtype(), 0)}), DType::kF32);
  std::vector<int64_t> grouped(static_cast<size_t>(y.rank()) - 1, 0);  // 0 copies the dim
  grouped.insert(grouped.end(), {y.shape()[1].value / 8, 8});
  const Expr bits = b.reshape(channels_last(above), b.ints(grouped)) * powers_of_two(b);
  return b.cast(b.reduce_sum(bits, {y.rank()}, false), DType::kU8);
}

/// Where such bytes have a 1, as bools (N, C, spatial…).
Expr unpack_signs(Builder& b, Expr signs) {
  const int rank = signs.rank();
  const Expr bytes = b.op("Unsqueeze", {b.cast(signs, DType::kF32), b.ints({rank})});
  const Expr shifted = b.op("Floor", {bytes / powers_of_two(b)});
  const Expr bits = shifted - b.op("Floor", {shifted * 0.5}) * 2.0;
  std::vector<int64_t> flat(static_cast<size_t>(rank) - 1, 0);
  flat.push_back(signs.shape().back().value * 8);
  const Expr last = b.reshape(bits, b.ints(flat));
  return b.op("Greater", {channels_second(last), b.scalar(DType::kF32, 0)});
}

/// (N, C, spatial…) as (N, groups, rest); 0 groups: C of them. With -1 where nothing is empty, and
/// then 0 copies.
std::vector<int64_t> groups_of(const SymbolicShape& shape, int64_t groups) {
  const bool empty = is_concrete(shape) && element_count(concrete(shape)) == 0;
  if (!empty) return {0, groups, -1};
  const int64_t rows = groups == 0 ? shape[1].value : groups;
  int64_t rest = groups == 0 ? 1 : shape[1].value / groups;
  for (size_t i = 2; i < shape.size(); ++i) rest = checked_mul(rest, shape[i].value);
  return {shape[0].value, rows, rest};
}

/// The residual of a BatchNormalization, normalized where it has a line.
Expr residual_on_its_line(BodyContext& body) {
  const Expr residual = body.b.to_math(body.inputs[5]);
  if (!has_norm_part(body, 6)) return residual;
  const auto channel = [&](size_t i) { return per_channel(body.inputs[i], residual.rank()); };
  return (residual - channel(8)) * (channel(6) * channel(9)) + channel(7);
}

/// The operands of one normalization in a gradient.
struct OneNorm {
  Expr x, scale, mean, inv_std;
};

/// dX, dScale and dB for a dY as it counts.
std::vector<Expr> gradient_of(Builder& b, Expr grad, const OneNorm& of, const ValueType& type) {
  const int rank = of.x.rank();
  const std::vector<int64_t> axes = axes_but_channel(rank);
  const Expr scale = per_channel(of.scale, rank), inv_std = per_channel(of.inv_std, rank);
  const Expr normalized = (b.to_math(of.x) - per_channel(of.mean, rank)) * inv_std;
  const Expr product = grad * normalized;
  const Expr centred = grad - mean_keep(grad, axes) - normalized * mean_keep(product, axes);
  const Expr dx = scale * inv_std * centred;
  return {round_to(dx, type), b.reduce_sum(product, axes, false), b.reduce_sum(grad, axes, false)};
}

}  // namespace

std::vector<Expr> batch_normalization_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr x = b.to_math(body.inputs[0]);
  const Expr scale = body.inputs[1], bias = body.inputs[2];
  const int rank = x.rank();
  const std::vector<int64_t> axes = axes_but_channel(rank);
  const double epsilon = body.attributes.get_float("epsilon", 1e-5f);
  const double momentum = body.attributes.get_float("momentum", 0.9f);

  const Expr mean = mean_keep(x, axes);
  const Expr centred = x - mean;
  const Expr variance = mean_keep(centred * centred, axes);
  const Expr inv_std = b.op("Reciprocal", {b.op("Sqrt", {variance + epsilon})});
  Expr y = centred * inv_std * per_channel(scale, rank) + per_channel(bias, rank);
  if (has_norm_part(body, 5)) y = y + residual_on_its_line(body);
  if (body.attributes.get_string("activation", "") == "Relu") y = b.op("Relu", {y});

  const Expr batch_mean = squeeze(mean, axes), batch_variance = squeeze(variance, axes);
  const auto running = [&](Expr old, Expr batch) {
    return old * momentum + batch * (1.0 - momentum);
  };
  const Expr rounded = round_to(y, body.output_types[0]);
  std::vector<Expr> results = {rounded, running(body.inputs[3], batch_mean),
                               running(body.inputs[4], batch_variance), batch_mean,
                               squeeze(inv_std, axes)};
  if (body.output_types.size() > results.size())
    results.push_back(pack_signs(b, b.to_math(rounded)));
  return results;
}

std::vector<Expr> batch_normalization_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const OneNorm of{body.inputs[1], body.inputs[2], body.inputs[3], body.inputs[4]};
  const DType dtype = of.x.dtype();
  const int rank = of.x.rank();

  Expr grad = summed_grad(body, 5);
  Expr y = has_norm_part(body, 6) ? b.to_math(body.inputs[6]) : b.none();
  if (has_norm_part(body, 7)) {
    const Expr factor = per_channel(of.scale, rank) * per_channel(of.inv_std, rank);
    const Expr centred_x = b.to_math(of.x) - per_channel(of.mean, rank);
    y = b.to_math(b.cast(centred_x * factor + per_channel(body.inputs[7], rank), dtype));
  }
  if (y.valid()) grad = mask_zero(b.op("Greater", {y, b.scalar(y.dtype(), 0)}), grad);
  if (has_norm_part(body, 8)) grad = mask_zero(unpack_signs(b, body.inputs[8]), grad);

  std::vector<Expr> results = gradient_of(b, grad, of, body.output_types[0]);
  if (body.output_types.size() > 3) results.push_back(b.cast(grad, dtype));
  if (body.output_types.size() > 4) {
    const OneNorm other{body.inputs[9], body.inputs[10], body.inputs[11], body.inputs[12]};
    for (const Expr& result : gradient_of(b, grad, other, body.output_types[4]))
      results.push_back(result);
  }
  return results;
}

std::vector<Expr> layer_normalization_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr sum = residual_sum(body, 3), x = b.to_math(sum);
  const int64_t axis = normalize_axis(body.attributes.get_int("axis", -1), x.rank());
  const std::vector<int64_t> inner = axes_between(axis, x.rank());
  const double epsilon = body.attributes.get_float("epsilon", 1e-5f);

  const Expr mean = mean_keep(x, inner);
  const Expr centred = x - mean;
  const Expr variance = mean_keep(centred * centred, inner);
  const Expr inv_std = b.op("Reciprocal", {b.op("Sqrt", {variance + epsilon})});
  Expr y = centred * inv_std * b.cast(body.inputs[1], x.dtype());
  if (has_norm_part(body, 2)) y = y + b.cast(body.inputs[2], x.dtype());
  return {round_to(y, body.output_types[0]), mean, inv_std, sum};
}

std::vector<Expr> layer_normalization_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr grad = summed_grad(body, 5);
  const Expr x = b.to_math(body.inputs[1]);
  const Expr scale = b.to_math(body.inputs[2]);
  const Expr mean = b.cast(body.inputs[3], x.dtype());
  const Expr inv_std = b.cast(body.inputs[4], x.dtype());
  const int64_t axis = normalize_axis(body.attributes.get_int("axis", -1), x.rank());
  const std::vector<int64_t> inner = axes_between(axis, x.rank());
  const std::vector<int64_t> outer = axes_between(0, axis);

  const Expr normalized = (x - mean) * inv_std;
  const Expr scaled = grad * scale;
  const Expr centred =
      scaled - mean_keep(scaled, inner) - normalized * mean_keep(scaled * normalized, inner);
  return {round_to(with_part(body, inv_std * centred, 6), body.output_types[0]),
          round_to(b.reduce_sum(grad * normalized, outer, false), body.output_types[1]),
          round_to(b.reduce_sum(grad, outer, false), body.output_types[2])};
}

std::vector<Expr> rms_normalization_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr sum = residual_sum(body, 2), x = b.to_math(sum);
  const int64_t axis = normalize_axis(body.attributes.get_int("axis", -1), x.rank());
  const double epsilon = body.attributes.get_float("epsilon", 1e-5f);
  const Expr square = mean_keep(x * x, axes_between(axis, x.rank()));
  const Expr inv_rms = b.op("Reciprocal", {b.op("Sqrt", {square + epsilon})});
  const Expr y = x * inv_rms * b.cast(body.inputs[1], x.dtype());
  return {round_to(y, body.output_types[0]), sum};
}

std::vector<Expr> rms_normalization_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr grad = summed_grad(body, 3);
  const Expr x = b.to_math(body.inputs[1]);
  const Expr scale = b.to_math(body.inputs[2]);
  const int64_t axis = normalize_axis(body.attributes.get_int("axis", -1), x.rank());
  const std::vector<int64_t> inner = axes_between(axis, x.rank());
  const double epsilon = body.attributes.get_float("epsilon", 1e-5f);

  const Expr inv_rms = b.op("Reciprocal", {b.op("Sqrt", {mean_keep(x * x, inner) + epsilon})});
  const Expr normalized = x * inv_rms;
  const Expr scaled = grad * scale;
  const Expr dx = inv_rms * (scaled - normalized * mean_keep(scaled * normalized, inner));
  const Expr d_scale = b.reduce_sum(grad * normalized, axes_between(0, axis), false);
  return {round_to(with_part(body, dx, 4), body.output_types[0]),
          round_to(d_scale, body.output_types[1])};
}

std::vector<Expr> group_normalization_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr grad = b.to_math(body.inputs[0]);
  const Expr x = b.to_math(body.inputs[1]);
  const Expr scale = per_channel(b.to_math(body.inputs[2]), x.rank());
  const int64_t groups = body.attributes.get_int("num_groups", 0);
  const double epsilon = body.attributes.get_float("epsilon", 1e-5f);
  const Expr shape = b.shape_of(x);
  const std::vector<int64_t> sizes = groups_of(x.shape(), groups);
  const Expr grouped = b.ints(sizes);
  const auto in_groups = [&](Expr full) {
    return sizes.back() < 0 ? b.reshape(full, grouped) : reshape_exactly(full, grouped);
  };
  const auto as_x = [&](Expr full) { return reshape_exactly(full, shape); };

  const Expr rows = in_groups(x);
  const Expr centred = rows - mean_keep(rows, {2});
  const Expr variance = mean_keep(centred * centred, {2});
  const Expr inv_std = b.op("Reciprocal", {b.op("Sqrt", {variance + epsilon})});
  const Expr normalized = centred * inv_std;
  const Expr scaled = in_groups(grad * scale);
  const Expr dx = inv_std * (scaled - mean_keep(scaled, {2}) -
                             normalized * mean_keep(scaled * normalized, {2}));
  const std::vector<int64_t> axes = axes_but_channel(x.rank());
  const Expr d_scale = b.reduce_sum(grad * as_x(normalized), axes, false);
  return {round_to(as_x(dx), body.output_types[0]), round_to(d_scale, body.output_types[1]),
          round_to(b.reduce_sum(grad, axes, false), body.output_types[2])};
}

std::vector<Expr> softmax_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr grad = b.to_math(body.inputs[0]);
  const Expr y = b.to_math(body.inputs[1]);
  const int64_t axis = body.attributes.get_int("axis", -1);
  const Expr dx = (grad - b.reduce_sum(grad * y, {axis}, true)) * y;
  return {round_to(dx, body.output_types[0])};
}

std::vector<Expr> log_softmax_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr grad = b.to_math(body.inputs[0]);
  const Expr y = b.to_math(body.inputs[1]);
  const int64_t axis = body.attributes.get_int("axis", -1);
  const Expr dx = grad - b.op("Exp", {y}) * b.reduce_sum(grad, {axis}, true);
  return {round_to(dx, body.output_types[0])};
}

}  // namespace halfnote::normalization
