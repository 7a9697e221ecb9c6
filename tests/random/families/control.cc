// If, Loop and Scan, with bodies of the other families; sequences and optional values.
#include <numeric>

#include "runtime/core/interpret/pieces.h"
#include "tests/random/growth.h"

namespace halfnote::random {
namespace {

using Ints = std::vector<int64_t>;

constexpr int kMostDepth = 2;  // bodies in bodies

/// One to three steps inside a body; the value kept last, or a copy of `otherwise`.
Expr grow_inside(Growth& g, Expr otherwise) {
  static constexpr void (*kInside[])(Growth&) = {
      grow_elementwise,   grow_elementwise, grow_elementwise, grow_contraction, grow_movement,
      grow_normalization, grow_reduction,   grow_control,     grow_places,      grow_picture};
  const size_t before = g.pool().size();
  for (int i = g.between(1, 3); i > 0; --i) g.grow(g.one_of(kInside));
  return g.pool().size() > before ? g.pool().back() : g.op("Neg", {otherwise});
}

/// A value of this shape made in the body, from the values there.
Expr shaped(Growth& g, const Shape& shape, Expr of) {
  static constexpr const char* kOps[] = {"Tanh", "Sigmoid", "Neg", "Sin", "Relu", "Identity"};
  static constexpr const char* kJoins[] = {"Add", "Mul", "Sub", "Max"};
  if (g.shape(of) == shape) return g.op(g.one_of(kOps), {of});
  if (element_count(g.shape(of)) == 0) return g.op(g.one_of(kOps), {g.like(shape)});
  const Expr mean = g.op("ReduceMean", {of}, {{"keepdims", int64_t{0}}});
  return g.op(g.one_of(kOps), {g.op(g.one_of(kJoins), {g.like(shape), mean})});
}

Expr condition(Growth& g) {
  if (g.chance(25)) return g.constant_of(Tensor::scalar(g.chance(50)));
  const Expr x = g.any();
  if (element_count(g.shape(x)) == 0) throw Misfit();
  const Expr sum = g.op("ReduceMean", {x}, {{"keepdims", int64_t{0}}});
  const Expr test =
      g.op(g.chance(50) ? "Greater" : "Less", {sum, g.constant_of(Tensor::scalar(0.125f))});
  return g.chance(25) ? g.op("Not", {test}) : test;
}

/// Both branches grow; that which is not taken is brought to the types of the other.
void branch(Growth& g) {
  const Expr test = condition(g);
  const bool yes = g.known(test).at_as_int(0) != 0;
  g.open_body();
  std::vector<Expr> taken = {grow_inside(g, g.any())};
  if (g.chance(30)) taken.push_back(shaped(g, g.shape(g.any(0, 4, 256)), taken[0]));
  std::vector<Shape> shapes;
  for (const Expr& x : taken) shapes.push_back(g.shape(x));
  const RegionId one = g.close_body(taken);
  g.open_body();
  std::vector<Expr> others;
  for (const Shape& shape : shapes) others.push_back(shaped(g, shape, grow_inside(g, g.any())));
  const RegionId other = g.close_body(others);
  const std::vector<Expr> results =
      g.control("If", {test}, static_cast<int>(shapes.size()),
                {{"then_branch", yes ? one : other}, {"else_branch", yes ? other : one}});
  for (const Expr& x : results) g.keep(x);
}

/// The next state of a body: of this state and what the body made.
Expr next_state(Growth& g, Expr state, Expr made) {
  const Expr term = shaped(g, g.shape(state), made);
  const Expr sum = g.op(g.chance(70) ? "Add" : "Sub", {state, term});
  return g.chance(60) ? g.op("Tanh", {sum}) : sum;
}

void loop(Growth& g) {
  const Expr state = g.any(0, 4, 256);
  const Expr most = g.constant_of(Tensor::scalar<int64_t>(g.between(0, 4)));
  const bool stops = g.chance(30);
  const Expr go = g.chance(50) || stops ? g.constant_of(Tensor::scalar(true)) : g.builder().none();
  g.open_body();
  const Expr trip = g.formal(Tensor::scalar<int64_t>(0));
  const Expr goes = g.formal(Tensor::scalar(true));
  const Expr inner = g.formal(g.known(state));
  if (g.chance(40)) {
    g.keep(g.op("Cast", {trip}, {{"to", static_cast<int64_t>(DType::kF32)}}));
  }
  const Expr next = next_state(g, inner, grow_inside(g, inner));
  Expr again = goes;
  if (stops) {
    const Expr total = g.op("ReduceSum", {next}, {{"keepdims", int64_t{0}}});
    again = g.op("Less", {total, g.constant_of(Tensor::scalar(1.0f))});
  }
  std::vector<Expr> outputs = {again, next};
  if (!stops && g.chance(60)) outputs.push_back(shaped(g, g.shape(g.any(0, 3, 64)), next));
  const int results = static_cast<int>(outputs.size()) - 1;
  const RegionId body = g.close_body(outputs);
  const std::vector<Expr> made = g.control("Loop", {most, go, state}, results, {{"body", body}});
  // What goes round may change its shape as far as ONNX knows, and how much was collected is open.
  const Shape& shape = g.shape(state);
  g.keep(g.op("Reshape", {made[0], g.ints({shape.begin(), shape.end()})},
              {{"allowzero", int64_t{1}}}));
  if (results == 2) g.keep(g.op("ReduceSum", {made[1], g.ints({0})}, {{"keepdims", int64_t{0}}}));
}

/// What a Scan reads: values of the pool along some axis, or an input of open length.
struct Scanned {
  std::vector<Expr> values;
  Ints axes, turns;
  bool open = false;
};

Scanned scanned(Growth& g) {
  Scanned s;
  s.open = g.depth() == 0 && g.chance(40);
  const Shape shape = {g.between(1, 4), g.between(1, 3), g.between(1, 5)};
  s.values.push_back(s.open ? g.open_input(g.numbers(shape, 1.0)) : g.any(1, 4, 512));
  const Shape first = g.shape(s.values[0]);
  const int axis = s.open ? 0 : g.pick(static_cast<int>(first.size()));
  const int64_t length = first[static_cast<size_t>(axis)];
  if (length < 1 || length > 8) throw Misfit();
  s.axes.push_back(g.chance(50) ? axis : axis - static_cast<int>(first.size()));
  if (!s.open && g.chance(30)) {
    s.values.push_back(g.like({length, g.between(1, 4)}));
    s.axes.push_back(0);
  }
  for (size_t k = 0; k < s.values.size(); ++k) s.turns.push_back(g.chance(30));
  return s;
}

void scan(Growth& g) {
  const Scanned s = scanned(g);
  const bool carries = g.chance(80);
  std::vector<Expr> operands, outputs;
  if (carries) operands.push_back(g.any(0, 3, 256));
  const Tensor state = carries ? g.known(operands[0]) : Tensor();
  g.open_body();
  const Expr inner = carries ? g.formal(state) : g.builder().none();
  Expr made = g.builder().none();
  for (size_t k = 0; k < s.values.size(); ++k) {
    const Tensor& all = g.known(s.values[k]);
    const auto rank = static_cast<int64_t>(all.shape().size());
    const int64_t axis = s.axes[k] < 0 ? s.axes[k] + rank : s.axes[k];
    const int64_t at = s.turns[k] != 0 ? all.shape()[static_cast<size_t>(axis)] - 1 : 0;
    made = g.formal(take_along(all, axis, at));
    operands.push_back(s.values[k]);
  }
  made = grow_inside(g, made);
  if (carries) outputs.push_back(next_state(g, inner, made));
  Attributes attributes = {{"num_scan_inputs", static_cast<int64_t>(s.values.size())},
                           {"scan_input_axes", s.axes},
                           {"scan_input_directions", s.turns}};
  if (!carries || g.chance(60)) {
    outputs.push_back(shaped(g, g.chance(50) ? g.shape(made) : Shape{2}, made));
    attributes.set("scan_output_axes", Ints{g.chance(80) ? 0 : -1});
    attributes.set("scan_output_directions", Ints{g.chance(30)});
  }
  const size_t count = outputs.size();
  attributes.set("body", g.close_body(outputs));
  const std::vector<Expr> results =
      g.control("Scan", operands, static_cast<int>(count), std::move(attributes));
  if (carries) g.keep(results[0]);
  if (count == 1 && carries) return;
  // What was collected over an open length is summed: other nodes want known shapes.
  const Expr all = results.back();
  if (!s.open) return g.keep(all);
  const Expr sum = g.op("ReduceSum", {all}, {{"keepdims", int64_t{0}}});
  g.keep(sum);
}

/// Cut into a sequence; one piece, or all of them together again.
void cut(Growth& g) {
  const Expr x = g.any(1, 4, 1024);
  const int axis = g.pick(x.rank());
  const auto extent = static_cast<int>(g.shape(x)[static_cast<size_t>(axis)]);
  if (extent < 1) throw Misfit();
  const int width = g.between(1, extent);
  const bool keeps = width > 1 || g.chance(50);
  const Expr size = g.constant_of(Tensor::scalar<int64_t>(width));
  const Expr pieces = keeps ? g.container("SplitToSequence", {x, size}, {{"axis", int64_t{axis}}})
                            : g.container("SplitToSequence", {x},
                                          {{"axis", int64_t{axis}}, {"keepdims", int64_t{0}}});
  const int count = (extent + width - 1) / width;
  const Expr place = g.constant_of(Tensor::scalar<int64_t>(g.pick(2 * count) - count));
  if (g.chance(60)) g.keep_evaluated(g.container("SequenceAt", {pieces, place}));
  if (g.chance(50)) {
    const bool stacks = !keeps && g.chance(50);
    if (!keeps && !stacks && x.rank() < 2) throw Misfit();
    g.keep_evaluated(
        g.container("ConcatFromSequence", {pieces},
                    {{"axis", int64_t{keeps ? axis : 0}}, {"new_axis", int64_t{stacks}}}));
  }
}

/// A sequence of values of one shape, changed, then read.
void sequence(Growth& g) {
  const Expr x = g.any(1, 3, 256);
  std::vector<Expr> parts = {x};
  for (int i = g.between(0, 2); i > 0; --i) parts.push_back(g.like(g.shape(x)));
  Expr list = g.container("SequenceConstruct", parts);
  auto count = static_cast<int>(parts.size());
  const auto place = [&](int limit) {
    return g.constant_of(Tensor::scalar<int64_t>(g.pick(limit)));
  };
  if (g.chance(40)) {
    list = g.container("SequenceInsert", {list, g.like(g.shape(x)), place(count + 1)});
    ++count;
  }
  if (count > 1 && g.chance(40)) {
    list = g.container("SequenceErase", {list, place(count)});
    --count;
  }
  if (g.chance(50)) return g.keep_evaluated(g.container("SequenceAt", {list, place(count)}));
  g.keep_evaluated(
      g.container("ConcatFromSequence", {list},
                  {{"axis", int64_t{g.pick(x.rank())}}, {"new_axis", int64_t{g.chance(50)}}}));
}

void optional_value(Growth& g) {
  const Expr held = g.container("Optional", {g.any()});
  g.keep_evaluated(g.container("OptionalGetElement", {held}));
}

}  // namespace

void grow_control(Growth& g) {
  static constexpr void (*kSteps[])(Growth&) = {branch, branch, loop, scan, scan};
  if (g.depth() >= kMostDepth) throw Misfit();
  g.one_of(kSteps)(g);
}

void grow_container(Growth& g) {
  static constexpr void (*kSteps[])(Growth&) = {cut, cut, sequence, sequence, optional_value};
  if (g.depth() > 0) throw Misfit();
  g.one_of(kSteps)(g);
}

}  // namespace halfnote::random
