// DeformConv in simpler ops, two spatial dims.
//
//   place of tap t at output p:  base(t, p) + offset      base = p·stride − pad + tap·dilation
//   columns (N, C, taps·P):      Σ over the four pixels around the place: weight · X
//   (GatherElements),
//                                times the mask; pixels outside of the image have the weight 0
//   Y = W (g, M/g, C/g·taps) · columns (N, g, C/g·taps, P) + B
//
// Places and weights are (N, offset groups, 1, taps·P).
#include "base/error.h"
#include "compiler/ops/contraction/parts.h"
#include "compiler/ops/extent.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/window.h"

namespace halfnote::contraction {
namespace {

struct Deform {
  Window window;
  int64_t channels = 0, filters = 0, group = 1, offset_group = 1;
  std::vector<int64_t> in, out;

  int64_t taps() const { return element_count(window.kernel); }
  int64_t places() const { return element_count(out); }
};

/// Throws unless all but the batch is `wanted`.
void check_operand(const char* name, const Expr& operand, const std::vector<int64_t>& wanted) {
  const SymbolicShape& shape = operand.shape();
  bool fits = shape.size() == wanted.size() + 1;
  for (size_t i = 0; fits && i < wanted.size(); ++i) fits = shape[i + 1].is(wanted[i]);
  if (fits) return;
  throw Error(ErrorCode::kModel, std::string("the ") + name + " of DeformConv does not fit")
      .expected("(N, …) of " + to_string(Shape(wanted)), to_string(shape));
}

Deform plan_of(LowerContext& rule) {
  const Expr x = rule.inputs.at(0), w = rule.inputs.at(1);
  if (x.rank() != 4 || w.rank() != 4) {
    throw Error(ErrorCode::kUnsupported, "DeformConv in other than two spatial dims")
        .expected("X and W of rank 4", to_string(x.shape()) + " and " + to_string(w.shape()));
  }
  const std::vector<int64_t> image = require_static(x.shape(), 1, "DeformConv");
  const std::vector<int64_t> filter = require_static(w.shape(), 0, "the weight of DeformConv");
  Deform plan;
  plan.window = window_of(rule.attributes(), x.shape(), {filter[2], filter[3]});
  plan.channels = image[0];
  plan.filters = filter[0];
  plan.group = rule.attributes().get_int("group", 1);
  plan.offset_group = rule.attributes().get_int("offset_group", 1);
  plan.in = {image[1], image[2]};
  const Window& window = plan.window;
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t room =
        plan.in[axis] + window.begin(axis) + window.end(axis) - window.extent(axis);
    if (room < 0 || plan.in[axis] < 1) {
      throw Error(ErrorCode::kModel, "the kernel of DeformConv is larger than its image")
          .expected("an image of " + std::to_string(window.extent(axis)) + " or more",
                    to_string(x.shape()));
    }
    plan.out.push_back(room / window.strides[axis] + 1);
  }
  const bool divides = plan.group > 0 && plan.offset_group > 0 && plan.channels % plan.group == 0 &&
                       plan.filters % plan.group == 0 && plan.channels % plan.offset_group == 0 &&
                       filter[1] == plan.channels / plan.group && window.kernel[0] == filter[2] &&
                       window.kernel[1] == filter[3];
  if (!divides) {
    throw Error(ErrorCode::kModel, "X, W and the groups of DeformConv do not fit each other")
        .expected("channels and filters that divide into the groups",
                  to_string(x.shape()) + " and " + to_string(w.shape()));
  }
  return plan;
}

/// Where the taps lie without an offset, along one axis: (1, 1, taps·P).
Tensor base_places(const Deform& plan, size_t axis) {
  const Window& window = plan.window;
  Tensor places(DType::kF64, {1, 1, plan.taps() * plan.places()});
  const auto to = places.mutable_data<double>();
  for (size_t i = 0; i < to.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t tap = at / plan.places(), place = at % plan.places();
    const int64_t k = axis == 0 ? tap / window.kernel[1] : tap % window.kernel[1];
    const int64_t o = axis == 0 ? place / plan.out[1] : place % plan.out[1];
    to[i] = static_cast<double>(o * window.strides[axis] - window.begin(axis) +
                                k * window.dilations[axis]);
  }
  return places;
}

/// One of the two pixels next to a place along an axis.
struct Neighbour {
  Expr index;   // i64, within the image
  Expr weight;  // 0 for a pixel outside
};

std::vector<Neighbour> neighbours_of(Expr place, int64_t length) {
  Builder& b = *place.builder;
  const DType dtype = place.dtype();
  const Expr low = b.op("Floor", {place});
  const Expr rest = place - low;
  const Expr zero = b.scalar(dtype, 0), last = b.scalar(dtype, static_cast<double>(length - 1));
  std::vector<Neighbour> neighbours;
  for (int offset : {0, 1}) {
    const Expr index = offset == 0 ? low : low + 1.0;
    const Expr inside =
        b.op("And", {b.op("GreaterOrEqual", {index, zero}), b.op("LessOrEqual", {index, last})});
    const Expr weight = mask_zero(inside, offset == 0 ? 1.0 - rest : rest);
    const Expr within = b.op("Min", {b.op("Max", {index, zero}), last});
    neighbours.push_back({b.cast(within, DType::kI64), weight});
  }
  return neighbours;
}

/// The places along an axis: (N, offset groups, taps·P).
Expr places_of(const Deform& plan, Expr offset, size_t axis) {
  Builder& b = *offset.builder;
  const Extent group_taps = Extent::number(plan.offset_group * plan.taps());
  const Expr pairs = reshape_to(
      offset, {{{offset, 0}}, {group_taps}, {Extent::number(2)}, {Extent::number(plan.places())}});
  const Expr moved =
      b.op("Gather", {pairs, b.constant(Tensor::scalar<int64_t>(static_cast<int64_t>(axis)))},
           {{"axis", int64_t{2}}});
  const Expr flat = reshape_to(moved, {{{offset, 0}},
                                       {Extent::number(plan.offset_group)},
                                       {Extent::number(plan.taps() * plan.places())}});
  return flat + b.constant(base_places(plan, axis).cast_to(flat.dtype()), "places");
}

/// (N, offset groups, channels of one, taps·P).
Expr sampled(const Deform& plan, Expr x, Expr offset) {
  Builder& b = *x.builder;
  const int64_t per_group = plan.channels / plan.offset_group;
  const Expr image = reshape_to(x, {{{x, 0}},
                                    {Extent::number(plan.offset_group)},
                                    {Extent::number(per_group)},
                                    {Extent::number(plan.in[0] * plan.in[1])}});
  const Expr channels = b.ints({1, 1, per_group, 1});
  Expr sum = b.none();
  const auto columns = neighbours_of(places_of(plan, offset, 1), plan.in[1]);
  for (const Neighbour& row : neighbours_of(places_of(plan, offset, 0), plan.in[0])) {
    const Expr begin = row.index * b.constant(Tensor::scalar<int64_t>(plan.in[1]));
    for (const Neighbour& column : columns) {
      const Expr index = b.op("Expand", {unsqueeze(begin + column.index, {2}), channels});
      const Expr pixel = b.op("GatherElements", {image, index}, {{"axis", int64_t{3}}});
      const Expr term = b.to_math(pixel) * unsqueeze(row.weight * column.weight, {2});
      sum = sum.valid() ? sum + term : term;
    }
  }
  return sum;
}

}  // namespace

std::vector<Expr> lower_deform_conv(LowerContext& rule) {
  Builder& b = rule.b;
  const Deform plan = plan_of(rule);
  const Expr x = rule.inputs[0], w = b.to_math(rule.inputs[1]);
  const int64_t taps = plan.taps(), places = plan.places();
  const auto number = [](int64_t size) { return std::vector<Extent>{Extent::number(size)}; };
  check_operand("offset", rule.inputs.at(2),
                {plan.offset_group * taps * 2, plan.out[0], plan.out[1]});
  Expr columns = sampled(plan, x, b.to_math(rule.inputs[2]));
  if (rule.has_input(4)) {
    check_operand("mask", rule.inputs[4], {plan.offset_group * taps, plan.out[0], plan.out[1]});
    const Expr mask = b.to_math(rule.inputs[4]);
    columns = columns *
              reshape_to(
                  mask, {{{mask, 0}}, number(plan.offset_group), number(1), number(taps * places)});
  }
  const int64_t depth = plan.channels / plan.group * taps;
  const Expr grouped =
      reshape_to(columns, {{{x, 0}}, number(plan.group), number(depth), number(places)});
  const Expr filters =
      reshape_to(w, {number(plan.group), number(plan.filters / plan.group), number(depth)});
  Expr y = reshape_to(b.op("MatMul", {filters, grouped}),
                      {{{x, 0}}, number(plan.filters), number(plan.out[0]), number(plan.out[1])});
  if (rule.has_input(3)) y = y + per_channel(b.to_math(rule.inputs[3]), 4);
  return {b.cast(y, x.dtype())};
}

}  // namespace halfnote::contraction
