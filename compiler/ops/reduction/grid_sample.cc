// GridSample and AffineGrid in simpler ops, for any number of spatial dims.
//
//   coordinate of axis d:  x = ((g + 1)·L − 1) / 2, or (g + 1)/2·(L − 1) where corners align
//   taps of an axis:       floor(x) + offset, with linear or cubic weights of x − floor(x)
//   Y = Σ over all combinations of taps: Π weights · X at them     (GatherElements on X as (N, C,
//   P))
//
// Coordinates beyond the border are clipped or reflected first, taps again afterwards; with zeros
// padding the weight of a tap outside is 0. Of a cubic mode only the taps are brought inside: its
// neighbours move with a point beyond the border (PyTorch, onnxruntime; ONNX's reference evaluator
// clips a point that lies more than half a pixel outside).
// Indices and weights are (N, 1, Q), Q points per image.
#include <cmath>

#include "base/error.h"
#include "compiler/ops/extent.h"
#include "compiler/ops/reduction/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::reduction {
namespace {

enum class Padding : uint8_t { kZeros, kBorder, kReflection };

struct Sampling {
  std::string mode;
  Padding padding = Padding::kZeros;
  bool align = false;
};

/// One tap of one axis for every point.
struct Tap {
  Expr index;   // within the axis
  Expr weight;  // invalid: 1
};

[[noreturn]] void invalid(const char* attribute, const std::string& value) {
  throw Error(ErrorCode::kModel, std::string("invalid attribute ") + attribute + " of GridSample")
      .expected("a value that ONNX knows", value);
}

Sampling sampling_of(const Attributes& attributes) {
  Sampling s{attributes.get_string("mode", "linear"), Padding::kZeros,
             attributes.get_int("align_corners", 0) != 0};
  if (s.mode != "linear" && s.mode != "cubic" && s.mode != "nearest") invalid("mode", s.mode);
  const std::string padding = attributes.get_string("padding_mode", "zeros");
  if (padding == "border") s.padding = Padding::kBorder;
  if (padding == "reflection") s.padding = Padding::kReflection;
  if (padding != "zeros" && s.padding == Padding::kZeros) invalid("padding_mode", padding);
  return s;
}

Expr clipped(Expr x, double low, double high) {
  Builder& b = *x.builder;
  return b.op("Clip", {x, b.scalar(x.dtype(), low), b.scalar(x.dtype(), high)});
}

/// Reflected at both borders until it lies within: a triangle wave.
Expr reflected(Expr x, double low, double high) {
  Builder& b = *x.builder;
  const double range = high - low;
  if (range <= 0) return x * 0.0 + low;
  const Expr away = b.op("Abs", {x - low});
  const Expr phase = away - b.op("Floor", {away / (2 * range)}) * (2 * range);
  const Expr back = b.op("Greater", {phase, b.scalar(x.dtype(), range)});
  return b.op("Where", {back, 2 * range - phase, phase}) + low;
}

Expr coordinate(const Sampling& s, Expr g, int64_t length) {
  const auto size = static_cast<double>(length);
  Expr x = s.align ? (g + 1.0) * ((size - 1) / 2) : ((g + 1.0) * size - 1.0) * 0.5;
  if (s.mode == "nearest") x = g.builder->op("Round", {x});
  if (s.mode == "cubic") return x;
  if (s.padding == Padding::kBorder) return clipped(x, 0, size - 1);
  if (s.padding == Padding::kZeros) return x;
  return s.align ? reflected(x, 0, size - 1) : reflected(x, -0.5, size - 0.5);
}

/// The four weights of cubic convolution with a = −3/4, for distances 1 + f, f, 1 − f, 2 − f.
Expr cubic_weight(Expr f, int64_t offset) {
  constexpr double kA = -0.75;
  const bool inner = offset == 0 || offset == 1;
  const Expr d = offset <= 0 ? f - static_cast<double>(offset) : static_cast<double>(offset) - f;
  if (inner) return ((kA + 2) * d - (kA + 3)) * d * d + 1.0;
  return ((kA * d - 5 * kA) * d + 8 * kA) * d - 4 * kA;
}

std::vector<Tap> taps_of(const Sampling& s, Expr x, int64_t length) {
  Builder& b = *x.builder;
  const bool nearest = s.mode == "nearest", cubic = s.mode == "cubic";
  const Expr base = nearest ? x : b.op("Floor", {x});
  const Expr f = nearest ? b.none() : x - base;
  const auto size = static_cast<double>(length);
  std::vector<Tap> taps;
  for (int64_t offset = cubic ? -1 : 0; offset <= (cubic ? 2 : nearest ? 0 : 1); ++offset) {
    Expr index = offset == 0 ? base : base + static_cast<double>(offset);
    Expr weight = b.none();
    if (cubic) weight = cubic_weight(f, offset);
    if (s.mode == "linear") weight = offset == 0 ? 1.0 - f : f;
    if (s.padding == Padding::kZeros) {
      const Expr inside =
          b.op("And", {b.op("GreaterOrEqual", {index, b.scalar(x.dtype(), 0)}),
                       b.op("LessOrEqual", {index, b.scalar(x.dtype(), size - 1)})});
      weight = weight.valid() ? mask_zero(inside, weight) : b.cast(inside, x.dtype());
    }
    if (s.padding == Padding::kReflection) {
      const double edge = s.align ? 0 : -0.5;
      index = reflected(index, edge, size - 1 - edge);
    }
    taps.push_back({b.cast(clipped(index, 0, size - 1), DType::kI64), weight});
  }
  return taps;
}

/// All combinations of the taps so far with those of one more axis.
std::vector<Tap> combined(const std::vector<Tap>& so_far, const std::vector<Tap>& more,
                          int64_t length) {
  if (so_far.empty()) return more;
  std::vector<Tap> all;
  for (const Tap& a : so_far) {
    Builder& b = *a.index.builder;
    const Expr row = a.index * b.scalar(DType::kI64, static_cast<double>(length));
    for (const Tap& c : more) {
      Expr weight = a.weight.valid() ? a.weight : c.weight;
      if (a.weight.valid() && c.weight.valid()) weight = a.weight * c.weight;
      all.push_back({row + c.index, weight});
    }
  }
  return all;
}

/// Coordinate `index` of every point, as (N, 1, Q).
Expr points_of(Expr grid, int64_t index) {
  Builder& b = *grid.builder;
  const int64_t last = grid.rank() - 1;
  const Expr picked =
      b.op("Gather", {grid, b.constant(Tensor::scalar<int64_t>(index))}, {{"axis", last}});
  std::vector<Extent> points;
  for (int64_t axis = 1; axis < last; ++axis) points.push_back({grid, axis});
  return reshape_to(picked, {{{grid, 0}}, {Extent::number(1)}, points});
}

/// Place `i` of an axis of `size` in [−1, 1].
double normalized_place(int64_t i, int64_t size, bool align) {
  const auto at = static_cast<double>(i), length = static_cast<double>(size);
  if (!align) return (2 * at + 1) / length - 1;
  return size == 1 ? -1 : 2 * at / (length - 1) - 1;
}

/// (points, axes + 1): the places of every point, the last axis first, and 1.
Tensor base_grid(const std::vector<int64_t>& sizes, bool align) {
  const auto axes = static_cast<int64_t>(sizes.size());
  Tensor grid(DType::kF64, {element_count(sizes), axes + 1});
  const auto to = grid.mutable_data<double>();
  for (size_t at = 0; at < to.size(); at += sizes.size() + 1) {
    int64_t rest = static_cast<int64_t>(at) / (axes + 1);
    for (size_t d = sizes.size(); d-- > 0; rest /= sizes[d]) {
      to[at + sizes.size() - 1 - d] = normalized_place(rest % sizes[d], sizes[d], align);
    }
    to[at + sizes.size()] = 1;
  }
  return grid;
}

}  // namespace

std::vector<Expr> lower_affine_grid(LowerContext& rule) {
  Builder& b = rule.b;
  const Expr theta = rule.inputs[0];
  const auto size = constant_ints(b.graph(), rule.inputs.at(1).id);
  if (!size) {
    throw Error(ErrorCode::kUnsupported, "the size of AffineGrid is computed by the model")
        .expected("a constant", "a value that depends on an input")
        .hint("fix the symbolic dims with --dim NAME=N, so that it folds");
  }
  if (theta.rank() != 3 || size->size() < 3 ||
      !theta.shape()[1].is(static_cast<int64_t>(size->size()) - 2)) {
    throw Error(ErrorCode::kModel, "theta and size of AffineGrid do not fit each other")
        .expected("(N, axes, axes + 1) for N, C and axes sizes", to_string(theta.shape()));
  }
  const std::vector<int64_t> axes(size->begin() + 2, size->end());
  for (int64_t length : axes) {
    if (length >= 1) continue;
    throw Error(ErrorCode::kModel, "a size of AffineGrid is not positive")
        .expected("1 or more", std::to_string(length));
  }
  const Tensor base = base_grid(axes, rule.attributes().get_int("align_corners", 0) != 0);
  const Expr points = b.constant(base.cast_to(theta.dtype()), "base_grid");
  const Expr moved = b.op("MatMul", {points, b.transpose(theta, {0, 2, 1})});
  std::vector<std::vector<Extent>> shape = {{{theta, 0}}};
  for (int64_t length : axes) shape.push_back({Extent::number(length)});
  shape.push_back({{theta, 1}});
  return {reshape_to(moved, shape)};
}

std::vector<Expr> lower_grid_sample(LowerContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0], grid = b.to_math(rule.inputs[1]);
  const int64_t axes = x.rank() - 2;
  if (axes < 1 || grid.rank() != x.rank()) {
    throw Error(ErrorCode::kModel, "X and grid of GridSample have the wrong ranks")
        .expected("(N, C, spatial…) and (N, points…, axes)",
                  to_string(x.shape()) + " and " + to_string(grid.shape()));
  }
  const std::vector<int64_t> sizes = require_static(x.shape(), 2, "GridSample");
  for (int64_t length : sizes) {
    if (length > 0) continue;
    throw Error(ErrorCode::kModel, "the pictures of GridSample have no points")
        .expected("spatial dims of at least 1", to_string(x.shape()));
  }
  const Sampling sampling = sampling_of(rule.attributes());
  std::vector<Tap> taps;
  int64_t places = 1;
  for (int64_t axis = 0; axis < axes; ++axis) {  // the last coordinate is that of the first axis
    const int64_t length = sizes[static_cast<size_t>(axis)];
    const Expr at = coordinate(sampling, points_of(grid, axes - 1 - axis), length);
    taps = combined(taps, taps_of(sampling, at, length), length);
    places = checked_mul(places, length);
  }
  const Expr flat = reshape_to(x, {{{x, 0}}, {{x, 1}}, {Extent::number(places)}});
  const Expr channels = sizes_of(b, {Extent::number(1), {x, 1}, Extent::number(1)});
  Expr sum = b.none();
  for (const Tap& tap : taps) {
    const Expr index = b.op("Expand", {tap.index, channels});
    Expr term = b.to_math(b.op("GatherElements", {flat, index}, {{"axis", int64_t{2}}}));
    if (tap.weight.valid()) term = term * b.cast(tap.weight, term.dtype());
    sum = sum.valid() ? sum + term : term;
  }
  std::vector<std::vector<Extent>> shape = {{{x, 0}}, {{x, 1}}};
  for (int64_t axis = 1; axis < grid.rank() - 1; ++axis) shape.push_back({{grid, axis}});
  return {b.cast(reshape_to(sum, shape), x.dtype())};
}

}  // namespace halfnote::reduction
