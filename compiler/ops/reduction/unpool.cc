// Ops that put elements back where a window took them from, and pooling by norms.
//
//   Col2Im:      blocks added at their places in the image (ScatterND), padding into a last place
//                that is cut off
//   MaxUnpool:   X written at its indices into zeros
//   LpPool:      y = (Σ |x|^p)^(1/p);  dX = sign(x)·|x|^(p−1)·Σ over windows dY·y^(1−p)
#include <cmath>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/extent.h"
#include "compiler/ops/movement/parts.h"
#include "compiler/ops/reduction/parts.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/window.h"

namespace halfnote::reduction {
namespace {

std::vector<int64_t> known_ints(LowerContext& rule, size_t index, const char* what) {
  const auto numbers = constant_ints(rule.b.graph(), rule.inputs.at(index).id);
  if (numbers) return *numbers;
  throw Error(ErrorCode::kUnsupported, std::string(what) + " is computed by the model")
      .expected("a constant", "a value that depends on an input")
      .hint("fix the symbolic dims with --dim NAME=N, so that it folds");
}

struct Blocks {
  std::vector<int64_t> image, block, strides, dilations, pads;

  size_t rank() const { return image.size(); }
  /// Positions of the block along an axis.
  int64_t steps(size_t d) const {
    const int64_t room = image[d] + pads[d] + pads[d + rank()] - dilations[d] * (block[d] - 1) - 1;
    return room < 0 ? 0 : room / strides[d] + 1;
  }
  /// Where element `tap` of the block at `step` lies in the image; −1 in the padding.
  int64_t place(int64_t tap, int64_t step) const {
    int64_t place = 0, factor = 1;
    for (size_t d = rank(); d-- > 0; factor *= image[d]) {
      const int64_t at = step % steps(d) * strides[d] + tap % block[d] * dilations[d] - pads[d];
      if (at < 0 || at >= image[d]) return -1;
      place += at * factor;
      tap /= block[d];
      step /= steps(d);
    }
    return place;
  }
};

Blocks blocks_of(LowerContext& rule) {
  Blocks blocks;
  blocks.image = known_ints(rule, 1, "the image shape of Col2Im");
  blocks.block = known_ints(rule, 2, "the block shape of Col2Im");
  const size_t rank = blocks.image.size();
  const Attributes& attributes = rule.attributes();
  blocks.strides = attributes.get_ints("strides", std::vector<int64_t>(rank, 1));
  blocks.dilations = attributes.get_ints("dilations", std::vector<int64_t>(rank, 1));
  blocks.pads = attributes.get_ints("pads", std::vector<int64_t>(2 * rank, 0));
  const auto positive = [](const std::vector<int64_t>& numbers) {
    for (int64_t n : numbers) {
      if (n < 1) return false;
    }
    return true;
  };
  const bool fits = blocks.block.size() == rank && blocks.strides.size() == rank &&
                    blocks.dilations.size() == rank && blocks.pads.size() == 2 * rank;
  if (fits && positive(blocks.image) && positive(blocks.block) && positive(blocks.strides) &&
      positive(blocks.dilations)) {
    return blocks;
  }
  throw Error(ErrorCode::kModel, "the sizes of Col2Im do not fit each other")
      .expected("positive sizes, one for each of " + std::to_string(rank) + " dims",
                "block of " + std::to_string(blocks.block.size()) + " dims");
}

/// |x|^(p − 1)·sign(x), the slope of |x|^p / p.
Expr power_slope(Expr x, int64_t p) {
  Builder& b = *x.builder;
  const Expr sign = b.op("Sign", {x});
  if (p == 1) return sign;
  if (p == 2) return x;
  const Expr power =
      b.op("Pow", {b.op("Abs", {x}), b.scalar(x.dtype(), static_cast<double>(p - 1))});
  return sign * power;
}

}  // namespace

std::vector<Expr> lower_col2im(LowerContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0];
  const Blocks blocks = blocks_of(rule);
  int64_t taps = 1, steps = 1, places = 1;
  for (size_t d = 0; d < blocks.rank(); ++d) {
    taps = checked_mul(taps, blocks.block[d]);
    steps = checked_mul(steps, blocks.steps(d));
    places = checked_mul(places, blocks.image[d]);
  }
  const Dim columns = x.shape().at(1);
  const bool fits = columns.known() && columns.value % taps == 0;
  if (x.rank() != 3 || !fits || (x.shape()[2].known() && !x.shape()[2].is(steps))) {
    throw Error(ErrorCode::kModel, "the operand of Col2Im does not fit its blocks")
        .expected("(N, C·" + std::to_string(taps) + ", " + std::to_string(steps) + ")",
                  to_string(x.shape()));
  }
  const Extent channels = Extent::number(columns.value / taps);
  std::vector<int64_t> to;
  for (int64_t tap = 0; tap < taps; ++tap) {
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t place = blocks.place(tap, step);
      to.push_back(place < 0 ? places : place);
    }
  }
  const Expr rows = b.constant(Tensor::of<int64_t>({taps * steps, 1}, to), "places");
  const Extent batch{x, 0};
  const Expr apart = reshape_to(x, {{batch}, {channels}, {Extent::number(taps * steps)}});
  const Expr empty = zeros(x.dtype(), sizes_of(b, {Extent::number(places + 1), batch, channels}));
  const Expr sums = b.op("ScatterND", {empty, rows, b.transpose(apart, {2, 0, 1})},
                         {{"reduction", std::string("add")}});
  const Expr cut = b.op("Slice", {sums, b.ints({0}), b.ints({places}), b.ints({0})});
  std::vector<std::vector<Extent>> shape = {{batch}, {channels}};
  for (int64_t size : blocks.image) shape.push_back({Extent::number(size)});
  return {reshape_to(b.transpose(cut, {1, 2, 0}), shape)};
}

std::vector<ValueType> infer_max_unpool(const Graph& graph, NodeId node) {
  const ValueType& y = graph.value(graph.output(node)).type;
  const bool stated = graph.inputs(node).size() > 2 && graph.input(node, 2).valid();
  const ValueType& x = operand_type(graph, node, 0);
  if (!stated || !x.shape || x.rank() < 2) return {y};
  SymbolicShape shape(x.shape->size());
  if (const auto wanted = constant_ints(graph, graph.input(node, 2))) {
    if (wanted->size() != shape.size()) {
      throw Error(ErrorCode::kModel, "the output shape of MaxUnpool does not fit its operand")
          .expected(std::to_string(shape.size()) + " numbers", std::to_string(wanted->size()));
    }
    shape = symbolic(*wanted);
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    const bool negative = shape[d].known() && shape[d].value < 0;
    const Dim& own = (*x.shape)[d];
    if (negative || (d < 2 && shape[d].known() && own.known() && !shape[d].same_as(own))) {
      throw Error(ErrorCode::kModel, "the output shape of MaxUnpool does not fit its operand")
          .expected("N and C of " + to_string(x) + ", and sizes",
                    std::to_string(shape[d].value) + " at " + std::to_string(d));
    }
    if (d < 2) shape[d] = own;
  }
  return {ValueType::tensor(x.dtype, std::move(shape))};
}

std::vector<Expr> lower_max_unpool(LowerContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0];
  const std::vector<int64_t> sizes = require_static(x.shape(), 1, "MaxUnpool");
  const Attributes& attributes = rule.attributes();
  const std::vector<int64_t> kernel = attributes.get_ints("kernel_shape");
  const size_t rank = kernel.size();
  const auto strides = attributes.get_ints("strides", std::vector<int64_t>(rank, 1));
  const auto pads = attributes.get_ints("pads", std::vector<int64_t>(2 * rank, 0));
  if (rank + 1 != sizes.size() || strides.size() != rank || pads.size() != 2 * rank) {
    throw Error(ErrorCode::kModel, "the attributes of MaxUnpool do not fit its operand")
        .expected("one number for each spatial dim", to_string(x.shape()));
  }
  std::vector<int64_t> whole = {sizes[0]};  // C and the spatial dims
  for (size_t d = 0; d < rank; ++d) {
    whole.push_back((sizes[d + 1] - 1) * strides[d] - pads[d] - pads[d + rank] + kernel[d]);
  }
  const Expr count = sizes_of(b, {{x, 0}}) * b.ints({element_count(whole)});
  const Expr flat = b.ints({-1});
  const Expr indices = b.reshape(b.cast(rule.inputs[1], DType::kI64), flat);
  const Expr written =
      b.op("ScatterElements", {zeros(x.dtype(), count), indices, b.reshape(x, flat)},
           {{"axis", int64_t{0}}});
  std::vector<std::vector<Extent>> shape = {{{x, 0}}};
  for (int64_t size : whole) shape.push_back({Extent::number(size)});
  Expr y = reshape_to(written, shape);
  if (!rule.has_input(2)) return {y};
  const std::vector<int64_t> wanted = known_ints(rule, 2, "the output shape of MaxUnpool");
  std::vector<int64_t> after(2 * (rank + 2), 0);
  infer_max_unpool(b.graph(), rule.node);  // folding may have found the numbers since
  for (size_t d = 0; d < rank + 1; ++d) {
    after[rank + 3 + d] = wanted[d + 1] - whole[d];
  }
  return {b.op("Pad", {y, b.ints(after)})};
}

std::vector<Expr> lower_global_lp_pool(LowerContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0];
  const int64_t p = rule.attributes().get_int("p", 2);
  const Expr axes = b.ints(axes_between(2, x.rank()));
  if (p < 1) {
    throw Error(ErrorCode::kModel, "invalid p of GlobalLpPool")
        .expected("1 or more", std::to_string(p));
  }
  if (p <= 2) return {b.op(p == 1 ? "ReduceL1" : "ReduceL2", {x, axes})};
  const auto number = [&](double n) { return b.scalar(x.dtype(), n); };
  const Expr powers = b.op("Pow", {b.op("Abs", {x}), number(static_cast<double>(p))});
  const Expr sums = b.op("ReduceSum", {powers, axes});
  return {b.op("Pow", {sums, number(1.0 / static_cast<double>(p))})};
}

std::vector<Expr> lp_pool_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0], y = rule.outputs[0], dy = rule.grads[0];
  const int64_t p = rule.attributes().get_int("p", 2);
  const Window window = window_of(rule.attributes(), x.shape());
  Attributes attributes = window.attributes();
  attributes.set("count_include_pad", int64_t{1});
  // AveragePoolGrad divides by the elements of each window: as many as its kernel has, but for the
  // windows of ceil_mode that reach beyond the padding.
  Expr count = b.scalar(dy.dtype(), static_cast<double>(element_count(window.kernel)));
  if (rule.attributes().get_int("ceil_mode", 0) != 0) {
    constexpr const char* kWhat = "the gradient of LpPool with ceil_mode";
    attributes.set("ceil_mode", int64_t{1});
    Tensor counts = window_weights(window, require_static(x.shape(), 2, kWhat),
                                   require_static(y.shape(), 2, kWhat), true);
    for (double& number : counts.mutable_data<double>()) number = 1 / number;
    count = b.constant(counts.cast_to(dy.dtype()), "window_counts");
  }
  Expr share = dy;
  if (p > 1) {  // a window of zeros has no slope
    const Expr empty = b.op("Equal", {y, b.scalar(y.dtype(), 0)});
    const Expr safe = b.op("Where", {empty, b.scalar(y.dtype(), 1), y});
    const Expr power =
        p == 2 ? safe : b.op("Pow", {safe, b.scalar(y.dtype(), static_cast<double>(p - 1))});
    share = b.op("Where", {empty, b.scalar(y.dtype(), 0), dy / power});
  }
  const Expr spread = b.op("AveragePoolGrad", {share * count, b.shape_of(x)}, std::move(attributes),
                           kHalfnoteDomain);
  return {movement::with_type_of(spread * power_slope(x, p), x)};
}

std::vector<Expr> top_k_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0];
  std::vector<Expr> results(rule.inputs.size(), b.none());
  if (!rule.grads[0].valid()) return results;
  const Expr indices = rule.request_output(1);
  const int64_t axis = rule.attributes().get_int("axis", -1);
  // Indices of one line differ: nothing is added up, and 16 bits lose nothing.
  const Expr dx = b.op("ScatterElements", {movement::zeros_like(x), indices, rule.grads[0]},
                       {{"axis", axis}, {"reduction", std::string("add")}});
  results[0] = movement::with_type_of(dx, x);
  return results;
}

}  // namespace halfnote::reduction
