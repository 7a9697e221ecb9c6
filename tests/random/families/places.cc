// Nodes that take elements by their places: gather and scatter, masks, one-hot rows, sequences
// turned round, windows put together again.
#include <algorithm>
#include <numeric>

#include "tests/random/growth.h"

namespace halfnote::random {
namespace {

using Ints = std::vector<int64_t>;

/// Indices below `extent`, some of them from the end.
Tensor places(Growth& g, const Shape& shape, int64_t extent) {
  if (extent == 0 && element_count(shape) > 0) throw Misfit();
  Tensor tensor(DType::kI64, shape);
  for (int64_t& place : tensor.mutable_data<int64_t>()) {
    place = g.pick(static_cast<int>(extent));
    if (g.chance(30)) place -= extent;
  }
  return tensor;
}

/// Tuples of indices into the dims of `s` behind the first `batch`, so many of them.
Tensor tuples(Growth& g, const Shape& s, size_t batch, size_t depth, int64_t count) {
  Shape shape(s.begin(), s.begin() + static_cast<int64_t>(batch));
  shape.push_back(count);
  shape.push_back(static_cast<int64_t>(depth));
  Tensor tensor(DType::kI64, shape);
  size_t at = 0;
  for (int64_t& place : tensor.mutable_data<int64_t>()) {
    const auto extent = static_cast<int>(s[batch + at++ % depth]);
    if (extent == 0) throw Misfit();
    place = g.pick(2 * extent) - extent;
  }
  return tensor;
}

void gather_nd(Growth& g) {
  const Expr x = g.any(1, 4, 512);
  const Shape s = g.shape(x);
  const auto batch = static_cast<size_t>(g.chance(30) ? g.pick(x.rank()) : 0);
  const size_t depth = 1 + static_cast<size_t>(g.pick(static_cast<int>(s.size() - batch)));
  const Expr where = g.constant_of(tuples(g, s, batch, depth, g.between(0, 4)));
  g.keep(g.op("GatherND", {x, where}, {{"batch_dims", static_cast<int64_t>(batch)}}));
}

void scatter_nd(Growth& g) {
  static constexpr const char* kHow[] = {"none", "add", "add", "mul", "max", "min"};
  const Expr x = g.any(1, 3, 512);
  const Shape s = g.shape(x);
  const size_t depth = 1 + static_cast<size_t>(g.pick(x.rank()));
  const std::string how = g.one_of(kHow);
  // Where nothing is combined, a place that stands twice would be anybody's guess.
  const int64_t count = how == "none" ? 1 : g.between(1, 4);
  Shape updates = {count};
  updates.insert(updates.end(), s.begin() + static_cast<int64_t>(depth), s.end());
  const Expr where = g.constant_of(tuples(g, s, 0, depth, count));
  g.keep(g.op("ScatterND", {x, where, g.like(updates)}, {{"reduction", how}}));
}

/// Along the axis every line of indices is a part of a permutation where nothing is combined.
void scatter_elements(Growth& g) {
  static constexpr const char* kHow[] = {"none", "none", "add", "add", "mul", "max", "min"};
  const Expr x = g.any(1, 3, 512);
  const Shape s = g.shape(x);
  const auto axis = static_cast<size_t>(g.pick(x.rank()));
  Shape part = s;
  for (int64_t& dim : part) dim = g.pick(static_cast<int>(dim) + 1);
  const std::string how = g.one_of(kHow);
  Tensor where(DType::kI64, part);
  if (how == "none") {
    int64_t inner = 1, turn = g.pick(8);
    for (size_t d = axis + 1; d < part.size(); ++d) inner *= part[d];
    std::span<int64_t> all = where.mutable_data<int64_t>();
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = (static_cast<int64_t>(i) / inner % part[axis] + turn) % s[axis];
    }
  } else {
    where = places(g, part, s[axis]);
  }
  g.keep(g.op("ScatterElements", {x, g.constant_of(std::move(where)), g.like(part)},
              {{"axis", static_cast<int64_t>(axis)}, {"reduction", how}}));
}

/// Rows 0 and 1, or two learned numbers, by constant indices; then a product or a sum.
void one_hot(Growth& g) {
  const int64_t rows = g.size(), depth = g.between(1, 6);
  const Expr index = g.constant_of(places(g, {rows}, depth));
  const Expr values =
      g.chance(40) ? g.weight({2}) : g.constant_of(Tensor::of<float>({2}, {0.0f, 1.0f}));
  const Expr count = g.constant_of(Tensor::scalar<int64_t>(depth));
  const Expr hot =
      g.op("OneHot", {index, count, values}, {{"axis", int64_t{g.chance(70) ? -1 : 0}}});
  if (g.chance(50)) return g.keep(g.op("Mul", {hot, g.like(g.shape(hot))}));
  g.keep(g.op("MatMul", {hot, g.weight({g.shape(hot)[1], g.size()})}));
}

/// A mask of constant bools, as of what is padded in a batch, and one of a triangle.
void masked(Growth& g) {
  const Expr x = g.any(1, 4);
  const Shape s = g.shape(x);
  static constexpr float kHidden[] = {0.0f, -16.0f, 0.5f};
  const Expr hidden = g.constant_of(Tensor::scalar(g.one_of(kHidden)));
  Shape of(s.begin() + g.pick(static_cast<int>(s.size())), s.end());
  if (g.chance(30)) of[0] = 1;
  Tensor mask(DType::kBool, of);
  for (bool& seen : mask.mutable_data<bool>()) seen = g.chance(70);
  const Expr test = g.constant_of(std::move(mask));
  if (g.chance(50)) return g.keep(g.op("Where", {test, x, hidden}));
  g.keep(g.op("Where", {test, g.like(s), x}));
}

void reverse_sequence(Growth& g) {
  const Expr x = g.any(2, 4, 512);
  const Shape s = g.shape(x);
  const int64_t time = g.pick(2);
  const int64_t batch = 1 - time;
  Tensor lengths(DType::kI64, {s[static_cast<size_t>(batch)]});
  const auto most = static_cast<int>(s[static_cast<size_t>(time)]);
  for (int64_t& length : lengths.mutable_data<int64_t>())
    length = std::min(most, g.between(1, most + 1));
  g.keep(g.op("ReverseSequence", {x, g.constant_of(std::move(lengths))},
              {{"time_axis", time}, {"batch_axis", batch}}));
}

void crop_or_pad(Growth& g) {
  const Expr x = g.any(1, 4, 512);
  Ints axes, goal;
  for (int d = 0; d < x.rank(); ++d) {
    if (!g.chance(60)) continue;
    axes.push_back(g.chance(50) ? d : d - x.rank());
    goal.push_back(g.between(1, 6));
  }
  if (axes.empty()) throw Misfit();
  g.keep(g.op("CenterCropPad", {x, g.ints(goal)}, {{"axes", axes}}));
}

void windows_to_picture(Growth& g) {
  const int64_t height = g.between(1, 5), width = g.between(1, 5), channels = g.between(1, 2);
  const Ints block = {g.between(1, static_cast<int>(std::min<int64_t>(2, height))),
                      g.between(1, static_cast<int>(std::min<int64_t>(3, width)))};
  const int64_t count = (height - block[0] + 1) * (width - block[1] + 1);
  const Expr x = g.like({g.between(1, 2), channels * block[0] * block[1], count});
  g.keep(g.op("Col2Im", {g.op("Tanh", {x}), g.ints({height, width}), g.ints(block)}));
}

/// The largest in windows, put back to where it stood.
void unpool(Growth& g) {
  const Expr x = g.any(4, 4, 512);
  const Ints two = {2, 2};
  const std::vector<Expr> pooled =
      g.ops("MaxPool", {x}, 2, {{"kernel_shape", two}, {"strides", two}});
  const Expr small = g.chance(50) ? g.op("Tanh", {pooled[0]}) : pooled[0];
  // The places are those of the size that MaxUnpool infers, whatever size is asked for.
  Shape s = g.shape(x);
  if (s[2] % 2 != 0 || s[3] % 2 != 0) throw Misfit();
  std::vector<Expr> operands = {small, pooled[1]};
  if (g.chance(50)) {
    s[3] += g.pick(2);
    operands.push_back(g.ints({s.begin(), s.end()}));
  }
  g.keep(g.op("MaxUnpool", operands, {{"kernel_shape", two}, {"strides", two}}));
}

/// What a constant mask picks, along an axis or of all elements.
void compress(Growth& g) {
  const Expr x = g.any(1, 3, 512);
  const Shape s = g.shape(x);
  const auto axis = static_cast<size_t>(g.pick(x.rank()));
  const bool flat = g.chance(30);
  // A mask may be shorter than what it picks from.
  const int64_t extent = flat ? element_count(s) : s[axis];
  Tensor mask(DType::kBool, {g.chance(20) ? extent / 2 : extent});
  for (bool& seen : mask.mutable_data<bool>()) seen = g.chance(60);
  Attributes attributes;
  if (!flat) attributes.set("axis", static_cast<int64_t>(axis));
  g.keep(g.op("Compress", {x, g.constant_of(std::move(mask))}, std::move(attributes)));
}

void diagonal(Growth& g) {
  const Expr x = g.any(2, 2, 512);
  const Expr ones = g.op("EyeLike", {x}, {{"k", int64_t{g.between(-1, 1)}}});
  g.keep(g.op(g.chance(50) ? "Mul" : "Add", {x, ones}));
}

}  // namespace

void grow_places(Growth& g) {
  static constexpr void (*kSteps[])(Growth&) = {gather_nd,        gather_nd,
                                                scatter_nd,       scatter_nd,
                                                scatter_elements, scatter_elements,
                                                one_hot,          one_hot,
                                                masked,           masked,
                                                reverse_sequence, crop_or_pad,
                                                diagonal,         windows_to_picture,
                                                unpool,           compress};
  g.one_of(kSteps)(g);
}

}  // namespace halfnote::random
