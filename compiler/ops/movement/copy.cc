// Gradients of ops that join, cut out, border or repeat parts of a tensor.
//
// The gradient of Slice is a Pad and that of Pad a Slice, which cancel; with other steps than 1 it
// is turned around and spread out before. Where there is none (computed steps, reflected borders)
// it adds dY up at the positions that were copied.
#include <algorithm>
#include <limits>

#include "compiler/ops/movement/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::movement {
namespace {

bool has_input(const GradientContext& rule, size_t index) {
  return index < rule.inputs.size() && rule.inputs[index].valid();
}

Expr optional_input(const GradientContext& rule, size_t index) {
  return has_input(rule, index) ? rule.inputs[index] : rule.b.none();
}

Expr join(Builder& b, const std::vector<Expr>& parts, int64_t axis) {
  if (parts.size() == 1) return parts[0];
  return b.ops("Concat", parts, 1, {{"axis", axis}})[0];
}

/// The forward op on the positions of X, and dY added up there. Operand `unread`, if there is one,
/// has the type of X and is not read.
Expr through_positions(GradientContext& rule, std::optional<size_t> unread = {}) {
  const std::string op = rule.graph().node(rule.node).op;
  std::vector<Expr> operands = rule.inputs;
  if (unread && *unread < operands.size()) operands[*unread] = rule.b.none();
  operands[0] = positions_of(rule.inputs[0]);
  Attributes attributes = rule.attributes();
  const Expr positions = rule.b.ops(op, operands, 1, std::move(attributes))[0];
  return add_at_positions(rule.inputs[0], positions, rule.grads[0]);
}

bool all_ones(const GradientContext& rule, const Graph& graph, size_t index) {
  if (!has_input(rule, index)) return true;
  const auto numbers = constant_ints(graph, rule.inputs[index].id);
  return numbers && std::all_of(numbers->begin(), numbers->end(), [](int64_t n) { return n == 1; });
}

/// The axes that a Slice cuts, with operand 3 or without; nothing if they are computed.
std::optional<std::vector<int64_t>> sliced_axes(GradientContext& rule) {
  if (has_input(rule, 3)) return constant_ints(rule.graph(), rule.inputs[3].id);
  const Dim count = rule.inputs[1].shape().at(0);
  if (!count.known()) return std::nullopt;
  return axes_between(0, count.value);
}

/// Pads that put a slice back, as numbers; nothing where starts or dims are not numbers.
std::optional<std::vector<int64_t>> fixed_slice_pads(GradientContext& rule,
                                                     const std::vector<int64_t>& axes) {
  const auto starts = constant_ints(rule.graph(), rule.inputs[1].id);
  if (!starts) return std::nullopt;
  const SymbolicShape from = rule.inputs[0].shape(), cut = rule.grads[0].shape();
  std::vector<int64_t> pads(2 * axes.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis =
        static_cast<size_t>(normalize_axis(axes[i], static_cast<int64_t>(from.size())));
    if (!from[axis].known() || !cut[axis].known()) return std::nullopt;
    const int64_t size = from[axis].value;
    const int64_t start = (*starts)[i] < 0 ? (*starts)[i] + size : (*starts)[i];
    pads[i] = std::clamp<int64_t>(start, 0, size);
    pads[axes.size() + i] = size - pads[i] - cut[axis].value;
  }
  return pads;
}

/// The same pads in integer ops on the shapes.
Expr computed_slice_pads(GradientContext& rule, Expr axes) {
  Builder& b = rule.b;
  const auto dims = [&](Expr x) { return b.op("Gather", {b.op("Shape", {x}), axes}); };
  const auto number = [&](int64_t n) { return b.constant(Tensor::scalar<int64_t>(n)); };
  const Expr size = dims(rule.inputs[0]);
  const Expr start = b.cast(rule.inputs[1], DType::kI64);
  const Expr wrapped =
      b.op("Where", {b.op("Less", {start, number(0)}), b.op("Add", {start, size}), start});
  const Expr before = b.op("Min", {b.op("Max", {wrapped, number(0)}), size});
  const Expr after = b.op("Sub", {b.op("Sub", {size, before}), dims(rule.grads[0])});
  return join(b, {before, after}, 0);
}

/// Where the elements of a slice come from along one axis: the first `begin`, the others `step`
/// apart.
struct Taken {
  size_t axis = 0;
  int64_t begin = 0, count = 0, step = 1, size = 0;
};

/// What a Slice takes, in numbers; nothing where it is computed, or no element.
std::optional<std::vector<Taken>> taken_by(GradientContext& rule,
                                           const std::vector<int64_t>& axes) {
  const auto starts = constant_ints(rule.graph(), rule.inputs[1].id);
  const auto steps = constant_ints(rule.graph(), rule.inputs[4].id);
  if (!starts || !steps || starts->size() != axes.size() || steps->size() != axes.size())
    return std::nullopt;
  const SymbolicShape from = rule.inputs[0].shape(), cut = rule.grads[0].shape();
  std::vector<Taken> all;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis =
        static_cast<size_t>(normalize_axis(axes[i], static_cast<int64_t>(from.size())));
    if (!from[axis].known() || !cut[axis].known() || cut[axis].value == 0) return std::nullopt;
    const int64_t size = from[axis].value, count = cut[axis].value;
    const int64_t start = (*starts)[i] < 0 ? (*starts)[i] + size : (*starts)[i];
    // A step that is never taken may be any number.
    all.push_back(
        {axis, std::clamp<int64_t>(start, 0, size - 1), count, count > 1 ? (*steps)[i] : 1, size});
  }
  return all;
}

/// dY with zeros between and behind its elements, `step` times as many; an invalid one where the
/// shape is not known well enough.
Expr spread(Expr dy, size_t axis, int64_t step) {
  Builder& b = *dy.builder;
  const SymbolicShape shape = dy.shape();
  std::vector<int64_t> wide;
  bool computed = false;
  for (size_t d = 0; d < shape.size(); ++d) {
    const bool known = shape[d].known();
    // One dim may be what is left.
    if (known ? shape[d].value == 0 : computed) return {};
    computed = computed || !known;
    wide.push_back(!known ? -1 : d == axis ? shape[d].value * step : shape[d].value);
  }
  const auto after = static_cast<int64_t>(axis) + 1;
  const Expr apart = b.op("Unsqueeze", {dy, b.ints({after})});
  const Expr padded = b.op("Pad", {apart, b.ints({0, step - 1}), b.none(), b.ints({after})});
  return b.reshape(padded, b.ints(wide));
}

/// dX of a Slice with steps: Slice backwards, spread(), Pad. An invalid one where numbers are
/// missing.
Expr put_back(GradientContext& rule, const std::vector<int64_t>& axes) {
  Builder& b = rule.b;
  auto all = taken_by(rule, axes);
  if (!all) return {};
  std::vector<int64_t> turned, pads(2 * axes.size());
  for (Taken& taken : *all) {
    if (taken.step > 0) continue;
    turned.push_back(static_cast<int64_t>(taken.axis));
    taken.begin += taken.step * (taken.count - 1);
    taken.step = -taken.step;
  }
  Expr dx = rule.grads[0];
  if (!turned.empty()) {
    const auto same = [&](int64_t n) { return b.ints(std::vector<int64_t>(turned.size(), n)); };
    dx = b.op("Slice",
              {dx, same(-1), same(std::numeric_limits<int64_t>::min()), b.ints(turned), same(-1)});
  }
  for (size_t i = 0; i < all->size(); ++i) {
    const Taken& taken = (*all)[i];
    if (taken.step > 1) dx = spread(dx, taken.axis, taken.step);
    if (!dx.valid()) return {};
    pads[i] = taken.begin;
    pads[all->size() + i] = taken.size - taken.begin - taken.count * taken.step;
  }
  const bool whole = std::all_of(pads.begin(), pads.end(), [](int64_t n) { return n == 0; });
  if (!whole) dx = b.op("Pad", {dx, b.ints(pads), b.none(), b.ints(axes)});
  return with_type_of(dx, rule.inputs[0]);
}

/// Repeats of a Tile along one axis: a number, or an element of the operand.
Expr repeats_of(GradientContext& rule, const std::optional<std::vector<int64_t>>& fixed,
                int64_t axis) {
  if (fixed) return rule.b.ints({(*fixed)[static_cast<size_t>(axis)]});
  return rule.b.op("Gather", {rule.inputs[1], rule.b.ints({axis})});
}

/// dY without its borders.
Expr cut_borders(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr dy = rule.grads[0], x = rule.inputs[0];
  const auto pads = constant_ints(rule.graph(), rule.inputs[1].id);
  const auto axes = has_input(rule, 3)
                        ? constant_ints(rule.graph(), rule.inputs[3].id)
                        : std::optional(axes_between(0, static_cast<int64_t>(x.rank())));
  const bool grows =
      pads && axes && std::all_of(pads->begin(), pads->end(), [](int64_t n) { return n >= 0; });
  if (!grows) {  // negative pads put back what was cut
    const Expr back = b.op("Neg", {rule.inputs[1]});
    const Expr dx = b.ops("Pad", {dy, back, b.none(), optional_input(rule, 3)}, 1)[0];
    return with_type_of(dx, x);
  }
  std::vector<int64_t> starts, ends, cut;
  for (size_t i = 0; i < axes->size(); ++i) {
    const int64_t before = (*pads)[i], after = (*pads)[axes->size() + i];
    if (before == 0 && after == 0) continue;
    starts.push_back(before);
    ends.push_back(after == 0 ? std::numeric_limits<int64_t>::max() : -after);
    cut.push_back((*axes)[i]);
  }
  if (cut.empty()) return dy;
  return with_type_of(b.op("Slice", {dy, b.ints(starts), b.ints(ends), b.ints(cut)}), x);
}

Expr total(Expr x) { return x.builder->op("ReduceSum", {x}, {{"keepdims", int64_t{0}}}); }

}  // namespace

Expr positions_of(Expr x) {
  Builder& b = *x.builder;
  const auto number = [&](int64_t n) { return b.constant(Tensor::scalar<int64_t>(n)); };
  const bool known = x.type().has_concrete_shape();
  const Expr count = known ? number(element_count(concrete(*x.type().shape))) : b.op("Size", {x});
  const Expr flat = b.op("Range", {number(0), count, number(1)});
  const Expr shaped = b.op("Reshape", {flat, b.shape_of(x)}, {{"allowzero", int64_t{1}}});
  b.graph().value(shaped.id).type = ValueType::tensor(DType::kI64, x.shape());
  return shaped;
}

Expr add_at_positions(Expr x, Expr positions, Expr dy) {
  Builder& b = *x.builder;
  const bool known = x.type().has_concrete_shape();
  const Expr count = known ? b.ints({element_count(concrete(*x.type().shape))})
                           : b.reshape(b.op("Size", {x}), b.ints({1}));
  const Expr flat = b.ints({-1});
  const Expr sums =
      b.op("ScatterElements",
           {zeros(dy.dtype(), count), b.reshape(positions, flat), b.reshape(dy, flat)},
           {{"axis", int64_t{0}}, {"reduction", std::string("add")}});
  return reshape_like(sums, x);
}

std::vector<Expr> concat_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr dy = rule.grads[0];
  if (rule.inputs.size() == 1) return {dy};
  const int64_t axis = normalize_axis(rule.attributes().get_int("axis", 0), dy.rank());
  std::vector<int64_t> sizes;
  std::vector<Expr> computed;
  bool known = true;
  for (const Expr& input : rule.inputs) {
    const Dim dim = input.shape()[static_cast<size_t>(axis)];
    known = known && dim.known();
    sizes.push_back(dim.value);
  }
  for (const Expr& input : rule.inputs) {
    if (!known) computed.push_back(dims_of(input, axis, axis + 1));
  }
  const Expr split = known ? b.ints(sizes) : join(b, computed, 0);
  std::vector<Expr> results =
      b.ops("Split", {dy, split}, static_cast<int>(rule.inputs.size()), {{"axis", axis}});
  for (size_t i = 0; i < results.size(); ++i) with_type_of(results[i], rule.inputs[i]);
  return results;
}

std::vector<Expr> split_gradient(GradientContext& rule) {
  const Expr x = rule.inputs[0];
  std::vector<Expr> parts;
  for (size_t i = 0; i < rule.grads.size(); ++i) {
    if (rule.grads[i].valid()) {
      parts.push_back(rule.grads[i]);
      continue;
    }
    const Expr part = rule.outputs[i].valid() ? rule.outputs[i] : rule.request_output(i);
    parts.push_back(zeros_like(part));
  }
  const int64_t axis = normalize_axis(rule.attributes().get_int("axis", 0), x.rank());
  std::vector<Expr> results(rule.inputs.size(), rule.b.none());
  results[0] = with_type_of(join(rule.b, parts, axis), x);
  return results;
}

std::vector<Expr> slice_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  std::vector<Expr> results(rule.inputs.size(), b.none());
  const auto axes = sliced_axes(rule);
  if (!axes || !all_ones(rule, rule.graph(), 4)) {
    results[0] = axes ? put_back(rule, *axes) : Expr{};
    if (!results[0].valid()) results[0] = through_positions(rule);
    return results;
  }
  const Expr axes_operand = b.ints(*axes);
  const auto fixed = fixed_slice_pads(rule, *axes);
  const Expr pads = fixed ? b.ints(*fixed) : computed_slice_pads(rule, axes_operand);
  const Expr dx = b.op("Pad", {rule.grads[0], pads, b.none(), axes_operand});
  results[0] = with_type_of(dx, rule.inputs[0]);
  return results;
}

std::vector<Expr> pad_gradient(GradientContext& rule) {
  std::vector<Expr> results(rule.inputs.size(), rule.b.none());
  if (rule.attributes().get_string("mode", "constant") != "constant") {
    constexpr size_t kBorder = 2;
    results[0] = through_positions(rule, kBorder);
    return results;
  }
  const Expr dx = cut_borders(rule);
  results[0] = dx;
  if (has_input(rule, 2) && rule.needed[2]) {  // what is not X's is the border's
    results[2] = reshape_like(total(rule.grads[0]) - total(dx), rule.inputs[2]);
  }
  return results;
}

std::vector<Expr> expand_gradient(GradientContext& rule) {
  return {rule.b.sum_to(rule.grads[0], rule.inputs[0]), rule.b.none()};
}

/// A repeated axis becomes two, (repeats, size), of which the first is summed.
std::vector<Expr> tile_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0];
  const auto fixed = constant_ints(rule.graph(), rule.inputs[1].id);
  std::vector<Expr> dims;
  std::vector<int64_t> summed;
  for (int64_t axis = 0; axis < x.rank(); ++axis) {
    if (!fixed || (*fixed)[static_cast<size_t>(axis)] != 1) {
      summed.push_back(static_cast<int64_t>(dims.size()));
      dims.push_back(repeats_of(rule, fixed, axis));
    }
    dims.push_back(dims_of(x, axis, axis + 1));
  }
  if (summed.empty()) return {rule.grads[0], b.none()};
  if (dims.size() > static_cast<size_t>(kMaxRank)) return {through_positions(rule), b.none()};
  const Expr apart =
      b.op("Reshape", {rule.grads[0], join(b, dims, 0)}, {{"allowzero", int64_t{1}}});
  return {with_type_of(b.reduce_sum(apart, summed, false), x), b.none()};
}

}  // namespace halfnote::movement
