// Nodes that move elements, and random ones.
#include <algorithm>
#include <numeric>

#include "tests/random/growth.h"

namespace halfnote::random {
namespace {

using Ints = std::vector<int64_t>;

int axis_of(Growth& g, Expr x) { return g.pick(std::max(1, x.rank())); }

void reshape(Growth& g) {
  const Expr x = g.any();
  const Shape s = g.shape(x);
  Ints goal(s.begin(), s.end());
  switch (g.pick(4)) {
    case 0:
      goal = {-1};
      break;
    case 1:
      std::reverse(goal.begin(), goal.end());
      break;
    case 2:
      if (goal.size() < 6) goal.insert(goal.begin() + g.pick(static_cast<int>(goal.size()) + 1), 1);
      break;
    default:
      if (goal.size() >= 2) {
        goal[1] = goal[0] == 0 ? 0 : -1;
        goal.resize(2);
        if (goal[1] == 0) throw Misfit();
      }
  }
  g.keep(g.op("Reshape", {x, g.ints(goal)}, {{"allowzero", int64_t{element_count(s) == 0}}}));
}

void transpose(Growth& g) {
  const Expr x = g.any(2, 5);
  Ints perm(static_cast<size_t>(x.rank()));
  std::iota(perm.begin(), perm.end(), 0);
  for (size_t i = perm.size(); i > 1; --i) {
    std::swap(perm[i - 1], perm[static_cast<size_t>(g.pick(static_cast<int>(i)))]);
  }
  g.keep(g.op("Transpose", {x}, {{"perm", perm}}));
}

void concat(Growth& g) {
  const Expr x = g.any(1, 5, 1024);
  const int axis = axis_of(g, x);
  std::vector<Expr> parts = {x};
  for (int i = g.between(1, 2); i > 0; --i) {
    Shape other = g.shape(x);
    other[static_cast<size_t>(axis)] = g.between(0, 3);
    parts.push_back(g.chance(20) ? x : g.like(other));
  }
  if (g.chance(50)) std::rotate(parts.begin(), parts.begin() + 1, parts.end());
  g.keep(g.op("Concat", parts, {{"axis", int64_t{axis}}}));
}

void split(Growth& g) {
  const Expr x = g.any(1, 5);
  const int axis = axis_of(g, x);
  const auto extent = static_cast<int>(g.shape(x)[static_cast<size_t>(axis)]);
  const int first = g.pick(extent + 1);
  const std::vector<Expr> parts =
      g.ops("Split", {x, g.ints({first, extent - first})}, 2, {{"axis", int64_t{axis}}});
  g.keep(parts[0]);
  if (g.chance(60)) g.keep(parts[1]);
}

void slice(Growth& g) {
  const Expr x = g.any(1, 5);
  const int axis = axis_of(g, x);
  const auto extent = static_cast<int>(g.shape(x)[static_cast<size_t>(axis)]);
  int from = g.pick(extent + 1), to = g.pick(extent + 1), step = g.chance(70) ? 1 : 2;
  if (from > to) std::swap(from, to);
  if (g.chance(20)) {  // backwards
    std::swap(from, to);
    from -= 1;
    to = to == 0 ? -extent - 1 : to - 1;
    step = -step;
  }
  g.keep(g.op("Slice", {x, g.ints({from}), g.ints({to}), g.ints({axis}), g.ints({step})}));
}

void pad(Growth& g) {
  static constexpr const char* kModes[] = {"constant", "constant", "reflect", "edge", "wrap"};
  const Expr x = g.any(1, 4, 512);
  Ints pads(static_cast<size_t>(2 * x.rank()));
  const std::string mode = g.one_of(kModes);
  const Shape s = g.shape(x);
  for (size_t i = 0; i < pads.size(); ++i) {
    const auto extent = static_cast<int>(s[i % s.size()]);
    const int most = mode == "constant" ? 2 : std::clamp(extent - 1, 0, 2);
    pads[i] = g.pick(most + 1);
    if (mode == "constant" && g.chance(10) && extent > 2) pads[i] = -1;
  }
  std::vector<Expr> operands = {x, g.ints(pads)};
  if (mode == "constant" && g.chance(50)) operands.push_back(g.constant_of(Tensor::scalar(0.25f)));
  g.keep(g.op("Pad", operands, {{"mode", mode}}));
}

/// Rows of a weight by indices, some of them twice or from the end.
void gather(Growth& g) {
  const Expr table = g.chance(60) ? g.weight({g.between(1, 7), g.size()}) : g.any(1, 4);
  const int axis = axis_of(g, table);
  const auto extent = static_cast<int>(g.shape(table)[static_cast<size_t>(axis)]);
  if (extent == 0) throw Misfit();
  Ints places(static_cast<size_t>(g.between(1, 6)));
  for (int64_t& place : places) place = g.pick(2 * extent) - extent;
  g.keep(g.op("Gather", {table, g.ints(places)}, {{"axis", int64_t{axis}}}));
}

void gather_elements(Growth& g) {
  const Expr x = g.any(1, 3, 512);
  const Shape s = g.shape(x);
  const int axis = axis_of(g, x);
  const auto extent = static_cast<int>(s[static_cast<size_t>(axis)]);
  if (extent == 0) throw Misfit();
  Tensor places(DType::kI64, s);
  for (int64_t& place : places.mutable_data<int64_t>()) place = g.pick(extent);
  g.keep(g.op("GatherElements", {x, g.constant_of(std::move(places))}, {{"axis", int64_t{axis}}}));
}

void expand(Growth& g) {
  const Expr x = g.any(0, 4, 256);
  Ints goal = g.shape(x);
  for (int64_t& dim : goal) {
    if (dim == 1 && g.chance(70)) dim = g.between(1, 5);
  }
  if (g.chance(40)) goal.insert(goal.begin(), g.between(1, 3));
  g.keep(g.op("Expand", {x, g.ints(goal)}));
}

void tile(Growth& g) {
  const Expr x = g.any(1, 4, 256);
  Ints repeats(static_cast<size_t>(x.rank()));
  for (int64_t& repeat : repeats) repeat = g.chance(60) ? 1 : g.between(1, 3);
  g.keep(g.op("Tile", {x, g.ints(repeats)}));
}

void flatten(Growth& g) {
  const Expr x = g.any();
  g.keep(g.op("Flatten", {x}, {{"axis", int64_t{g.pick(x.rank() + 1)}}}));
}

void squeeze(Growth& g) {
  const Expr x = g.any(0, 5);
  const Expr wide = g.op("Unsqueeze", {x, g.ints({g.pick(x.rank() + 1)})});
  if (g.chance(50)) return g.keep(wide);
  g.keep(g.op("Squeeze", {g.op("Relu", {wide})}));
}

void of_pictures(Growth& g) {
  const Expr x = g.any(4, 4, 512);
  const Shape s = g.shape(x);
  if (s[1] % 4 == 0 && g.chance(50)) {
    return g.keep(
        g.op("DepthToSpace", {x},
             {{"blocksize", int64_t{2}}, {"mode", std::string(g.chance(50) ? "DCR" : "CRD")}}));
  }
  if (s[2] % 2 == 0 && s[3] % 2 == 0 && g.chance(50)) {
    return g.keep(g.op("SpaceToDepth", {x}, {{"blocksize", int64_t{2}}}));
  }
  static constexpr const char* kModes[] = {"nearest", "linear", "cubic"};
  const Expr scales = g.constant_of(Tensor::of<float>({4}, {1.0f, 1.0f, 2.0f, 1.5f}));
  g.keep(
      g.op("Resize", {x, g.builder().none(), scales}, {{"mode", std::string(g.one_of(kModes))}}));
}

void triangle(Growth& g) {
  const Expr x = g.any(2, 4);
  g.keep(g.op("Trilu", {x}, {{"upper", int64_t{g.chance(50)}}}));
}

void scatter(Growth& g) {
  const Expr x = g.any(1, 3, 512);
  const Shape s = g.shape(x);
  if (s[0] < 2) throw Misfit();
  Shape rows = s;
  rows[0] = 1;
  const Expr place = g.constant_of(Tensor::of<int64_t>({1, 1}, {g.pick(static_cast<int>(s[0]))}));
  const std::string how = g.chance(50) ? "add" : "none";
  g.keep(g.op("ScatterND", {x, place, g.like(rows)}, {{"reduction", how}}));
}

void dropout(Growth& g) {
  const Expr ratio = g.constant_of(Tensor::scalar(0.25f));
  const Expr training = g.constant_of(Tensor::scalar(g.chance(30)));
  g.keep(g.op("Dropout", {g.any(), ratio, training}));
}

/// Bits of the shape of x, one in three of them 1.
Tensor example_bits(Growth& g, const Shape& shape, DType dtype) {
  Tensor bits(DType::kF32, shape);
  for (float& bit : bits.mutable_data<float>()) bit = g.chance(33) ? 1.0f : 0.0f;
  return bits.cast_to(dtype);
}

/// Probabilities, 0 and 1 among them.
Tensor shares(Growth& g, const Shape& shape) {
  Tensor tensor(DType::kF32, shape);
  for (float& x : tensor.mutable_data<float>()) x = static_cast<float>(g.pick(9)) / 8.0f;
  return tensor;
}

/// x where a coin of the probability sigmoid(x), or of a constant one, says so.
void coins(Growth& g) {
  const Expr x = g.any(0, 4, 512);
  const Shape s = g.shape(x);
  const Expr share = g.chance(50) ? g.op("Sigmoid", {x}) : g.constant_of(shares(g, s));
  const Expr coin = g.drawn("Bernoulli", {share}, example_bits(g, s, DType::kF32));
  g.keep(g.op(g.chance(70) ? "Mul" : "Add", {x, coin}));
}

/// Rows of a weight by drawn classes.
void drawn_classes(Growth& g) {
  const Expr scores = g.any(2, 2, 256);
  const Shape s = g.shape(scores);
  if (s[1] < 2) throw Misfit();
  const int64_t samples = g.between(1, 3);
  const Expr classes =
      g.drawn("Multinomial", {scores}, example_bits(g, {s[0], samples}, DType::kI32),
              {{"sample_size", samples}});
  if (g.chance(50)) return g.keep(g.op("Gather", {g.weight({s[1], g.size()}), classes}));
  const Expr numbers = g.op("Cast", {classes}, {{"to", static_cast<int64_t>(DType::kF32)}});
  g.keep(g.op("Mul", {numbers, g.like({s[0], samples})}));
}

}  // namespace

void grow_movement(Growth& g) {
  static constexpr void (*kSteps[])(Growth&) = {
      reshape,     transpose,       concat,  split,   slice,     pad,
      gather,      gather_elements, expand,  tile,    flatten,   squeeze,
      of_pictures, triangle,        scatter, reshape, transpose, concat};
  g.one_of(kSteps)(g);
}

void grow_stateful(Growth& g) {
  static constexpr void (*kSteps[])(Growth&) = {dropout, dropout, coins, drawn_classes};
  g.one_of(kSteps)(g);
}

}  // namespace halfnote::random
