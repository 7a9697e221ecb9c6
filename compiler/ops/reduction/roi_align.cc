// RoiAlign's gradient. The regions are taken as given, as torchvision takes them: the gradient goes
// to the image alone.
//
// The mean over the samples of a bin is separable: Y(r) = Ay(r) · X(batch(r)) · Ax(r)ᵀ, where row i
// of Ay (oH, H) is the mean of the linear weights of the samples of bin i. So the body of
// RoiAlignGrad adds Ayᵀ · dY · Ax to the image of each region.
#include "base/error.h"
#include "compiler/ir/model.h"
#include "compiler/ops/reduction/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::reduction {
namespace {

/// What both axes of the body share: the regions in pixels of X, (R, 4).
struct Regions {
  Expr corners;
  Expr shape;  // of X
  bool half_pixel = true;
  int64_t ratio = 0;
};

/// 0, 1, …, count − 1 as floats; `count` is an int64 scalar.
Expr counted(Expr count, DType dtype) {
  Builder& b = *count.builder;
  const Expr zero = b.constant(Tensor::scalar<int64_t>(0));
  const Expr one = b.constant(Tensor::scalar<int64_t>(1));
  return b.cast(b.op("Range", {zero, count, one}), dtype);
}

Expr number(Builder& b, int64_t value) { return b.constant(Tensor::scalar<int64_t>(value)); }

/// Samples along one axis: the largest count of any region, and the count of each, (R, 1, 1).
struct Samples {
  Expr most, counts;
};

Samples samples_of(const Regions& regions, Expr bin) {
  Builder& b = *bin.builder;
  if (regions.ratio > 0) {
    return {number(b, regions.ratio), b.scalar(bin.dtype(), static_cast<double>(regions.ratio))};
  }
  const Expr counts = b.op("Max", {b.op("Ceil", {bin}), b.scalar(bin.dtype(), 0)});
  const Expr flat = b.reshape(counts, b.ints({-1}));
  const Expr none = b.constant(Tensor::full(bin.dtype(), {1}, 0));  // without a region: none
  const Expr all = b.op("Concat", {flat, none}, {{"axis", int64_t{0}}});
  const Expr most = b.op("ReduceMax", {all, b.ints({0})}, {{"keepdims", int64_t{0}}});
  return {b.cast(most, DType::kI64), counts};
}

/// The weights of one axis, (R, bins, size of X): axis 0 is y, axis 1 is x.
Expr axis_weights(const Regions& regions, int64_t axis, int64_t bins) {
  Builder& b = *regions.corners.builder;
  const DType dtype = regions.corners.dtype();
  const auto corner = [&](int64_t index) {
    const Expr picked = b.op("Gather", {regions.corners, b.ints({index})}, {{"axis", int64_t{1}}});
    return unsqueeze(picked, {2});  // (R, 1, 1)
  };
  const Expr begin = corner(1 - axis);
  Expr extent = corner(3 - axis) - begin;
  if (!regions.half_pixel) extent = b.op("Max", {extent, b.scalar(dtype, 1)});
  const Expr bin = extent / static_cast<double>(bins);
  const Samples samples = samples_of(regions, bin);
  const Expr safe = b.op("Max", {samples.counts, b.scalar(dtype, 1)});

  const Expr place = counted(samples.most, dtype);  // (K)
  const Expr first = unsqueeze(counted(number(b, bins), dtype), {1});
  const Expr at = begin + (first + (place + 0.5) / safe) * bin;  // (R, bins, K)
  const Expr size = b.op("Gather", {regions.shape, number(b, 2 + axis)});
  const Expr length = b.cast(size, dtype);
  const Expr inside = b.op("And", {b.op("And", {b.op("GreaterOrEqual", {at, b.scalar(dtype, -1)}),
                                                b.op("LessOrEqual", {at, length})}),
                                   b.op("Less", {place, samples.counts})});
  const Expr zero = b.scalar(dtype, 0);
  const Expr pixel = b.op("Min", {b.op("Max", {at, zero}), length - 1.0});
  const Expr away = b.op("Abs", {unsqueeze(pixel, {3}) - counted(size, dtype)});
  const Expr weight = mask_zero(unsqueeze(inside, {3}), b.op("Max", {1.0 - away, zero}));
  return b.reduce_sum(weight, {2}, false) / safe;
}

}  // namespace

std::vector<ValueType> infer_roi_align_grad(const Graph& graph, NodeId node) {
  const ValueType& grad = operand_type(graph, node, 0);
  const SymbolicShape& y = operand_shape(graph, node, 0);
  SymbolicShape x = spelled_shape(graph, node, 3);
  if (y.size() != 4 || x.size() != 4) {
    throw Error(ErrorCode::kModel, "dY or the shape of X has the wrong rank")
        .expected("4 dims", to_string(y) + " and " + to_string(x));
  }
  if (!x[1].known() && x[1].symbol.empty()) x[1] = y[1];
  return {ValueType::tensor(grad.dtype, std::move(x))};
}

std::vector<Expr> roi_align_gradient(GradientContext& rule) {
  const std::string mode = rule.attributes().get_string("mode", "avg");
  if (mode != "avg") {
    throw Error(ErrorCode::kUnsupported, "no gradient of RoiAlign with this mode")
        .expected("avg", mode)
        .hint("write the largest of the samples as GridSample and MaxPool");
  }
  const Expr x = rule.inputs[0];
  Attributes attributes = rule.attributes();
  attributes.erase("mode");
  const Expr dx =
      rule.b.op("RoiAlignGrad", {rule.grads[0], rule.inputs[1], rule.inputs[2], rule.b.shape_of(x)},
                std::move(attributes), kHalfnoteDomain);
  return {dx, rule.b.none(), rule.b.none()};
}

std::vector<Expr> roi_align_grad_body(BodyContext& body) {
  Builder& b = body.b;
  const Expr grad = b.to_math(body.inputs[0]);
  const std::vector<int64_t> bins = require_static(grad.shape(), 2, "the body of RoiAlignGrad");
  const Attributes& attributes = body.attributes;
  Regions regions;
  regions.half_pixel =
      attributes.get_string("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  regions.ratio = attributes.get_int("sampling_ratio", 0);
  regions.shape = body.inputs[3];
  regions.corners = b.cast(body.inputs[1], grad.dtype()) *
                        static_cast<double>(attributes.get_float("spatial_scale", 1)) -
                    (regions.half_pixel ? 0.5 : 0.0);

  const Expr down = b.transpose(axis_weights(regions, 0, bins[0]), {0, 2, 1});
  const Expr along = axis_weights(regions, 1, bins[1]);
  const Expr spread =
      b.op("MatMul", {b.op("MatMul", {unsqueeze(down, {1}), grad}), unsqueeze(along, {1})});
  const Expr images = unsqueeze(b.cast(body.inputs[2], DType::kI64), {1});
  const Expr sum = b.op("ScatterND", {zeros(grad.dtype(), regions.shape), images, spread},
                        {{"reduction", std::string("add")}});
  return {b.cast(sum, body.output_types[0].dtype)};
}

}  // namespace halfnote::reduction
