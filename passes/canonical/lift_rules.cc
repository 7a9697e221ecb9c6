#include "passes/canonical/lift_rules.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/shape.h"

namespace halfnote {
namespace {

using Ctx = LiftContext;

Node& node_of(const Ctx& c) { return c.graph.node(c.node); }
const Attributes& attributes(const Ctx& c) { return c.graph.node(c.node).attributes; }

/// Moves an int-list attribute to input `slot`.
void ints_to_input(const Ctx& c, const char* name, size_t slot) {
  if (!attributes(c).has(name)) return;
  const std::vector<int64_t> values = attributes(c).get_ints(name);
  node_of(c).attributes.erase(name);
  c.graph.set_input(c.node, slot, c.b.ints(values).id);
}

DType input_type(const Ctx& c) {
  const ValueId x = c.graph.input(c.node, 0);
  const DType dtype = x.valid() ? c.graph.value(x).type.dtype : DType::kUndefined;
  return dtype == DType::kUndefined ? DType::kF32 : dtype;
}

int rank_of(const Ctx& c) {
  const int rank = c.graph.value(c.graph.input(c.node, 0)).type.rank();
  if (rank >= 0) return rank;
  throw Error(ErrorCode::kUnsupported, "lifting this op needs the rank of its operand")
      .at({{}, node_of(c).name, node_of(c).op})
      .hint("run shape inference on the model before export, or export with op-set 13 or newer");
}

void axes_to_input(const Ctx& c) { ints_to_input(c, "axes", 1); }
void split_to_input(const Ctx& c) { ints_to_input(c, "split", 1); }

/// Split of op-set 18 wants num_outputs where the sizes are not given.
void split_count(const Ctx& c) {
  if (c.graph.input(c.node, 1).valid() || attributes(c).has("num_outputs")) return;
  node_of(c).attributes.set("num_outputs", static_cast<int64_t>(c.graph.outputs(c.node).size()));
}

void clip_bounds(const Ctx& c) {
  const DType dtype = input_type(c);
  for (const auto& [name, slot] : {std::pair{"min", size_t{1}}, std::pair{"max", size_t{2}}}) {
    if (!attributes(c).has(name)) continue;
    const float bound = attributes(c).get_float(name, 0);
    node_of(c).attributes.erase(name);
    c.graph.set_input(c.node, slot, c.b.scalar(dtype, bound).id);
  }
}

void pad_inputs(const Ctx& c) {
  ints_to_input(c, "pads", 1);
  const float value = attributes(c).get_float("value", 0);
  node_of(c).attributes.erase("value");
  if (value != 0) c.graph.set_input(c.node, 2, c.b.scalar(input_type(c), value).id);
}

void slice_inputs(const Ctx& c) {
  ints_to_input(c, "starts", 1);
  ints_to_input(c, "ends", 2);
  ints_to_input(c, "axes", 3);
}

void topk_input(const Ctx& c) {
  if (!attributes(c).has("k")) return;
  const int64_t k = attributes(c).get_int("k", 1);
  node_of(c).attributes.erase("k");
  c.graph.set_input(c.node, 1, c.b.ints({k}).id);
}

[[noreturn]] void refuse(const Ctx& c, const std::string& what, const std::string& hint) {
  throw Error(ErrorCode::kUnsupported, what).at({{}, node_of(c).name, node_of(c).op}).hint(hint);
}

/// Dropout below op-set 12 has its ratio as an attribute and no training form.
void dropout_ratio(const Ctx& c) {
  const float ratio = attributes(c).get_float("ratio", 0.5f);
  node_of(c).attributes.erase("ratio");
  const ValueId mask = c.graph.output(c.node, 1);
  if (c.from < 10 && mask.valid() && c.graph.has_uses(mask)) {
    refuse(c, "the mask of Dropout is a number",
           "from op-set 10 on it is a bool: export with that");
  }
  c.graph.set_input(c.node, 1, c.b.scalar(DType::kF32, ratio).id);
}

/// BatchNormalization: the training form of op-set 9 shows itself by its outputs (Y, mean, var,
/// saved_mean, saved_var).
void batch_normalization(const Ctx& c) {
  if (attributes(c).get_int("spatial", 1) == 0) {
    refuse(c, "BatchNormalization with spatial = 0",
           "statistics per element are not in newer op-sets; use LayerNormalization");
  }
  node_of(c).attributes.erase("spatial");
  const bool training = c.graph.outputs(c.node).size() > 1;
  if (!training) return;
  for (size_t i = c.graph.outputs(c.node).size(); i-- > 3;) {
    const ValueId saved = c.graph.output(c.node, i);
    if (!saved.valid()) continue;
    if (c.graph.has_uses(saved)) {
      refuse(c, "a saved statistic of BatchNormalization is used",
             "from op-set 14 on it is no result: compute it with ReduceMean");
    }
    c.graph.drop_output(c.node, i);
  }
  node_of(c).attributes.set("training_mode", int64_t{1});
}

/// Softmax below op-set 13 works on the 2-D view at its axis (default 1).
void softmax_2d(const Ctx& c) {
  const int rank = rank_of(c);
  const int64_t axis = normalize_axis(attributes(c).get_int("axis", 1), rank);
  node_of(c).attributes.set("axis", int64_t{-1});
  if (axis == rank - 1) return;
  const Expr x = c.b.value(c.graph.input(c.node, 0));
  const Expr flat = c.b.op("Flatten", {x}, {{"axis", axis}});
  c.graph.set_input(c.node, 0, flat.id);
  const ValueId result = c.graph.output(c.node);
  c.graph.value(result).type = flat.type();
  c.b.set_insert_point(c.graph.after(c.node));
  const Expr shape = c.b.shape_of(x);
  const Expr back = c.b.reshape(c.b.value(result), shape);
  c.graph.replace_uses_if(result, back.id,
                          [&](const Use& use) { return use.node() != c.b.last(); });
  const std::string name = c.graph.value(result).name;
  c.graph.rename(result, c.graph.unique_name(name + ".flat"));
  c.graph.rename(back.id, name);
}

void rename_op(const Ctx& c, std::string_view op) { node_of(c).op = op; }
void scatter_elements(const Ctx& c) { rename_op(c, "ScatterElements"); }

/// Where Resize-10 takes the nearest sample: at the floor of its place where it enlarges, at the
/// ceiling where it shrinks. Upsample never shrinks.
std::string nearest_mode_10(const Ctx& c) {
  if (node_of(c).op == "Upsample" || attributes(c).get_string("mode", "nearest") != "nearest") {
    return "floor";
  }
  const Tensor* scales = c.graph.constant(c.graph.input(c.node, 1));
  bool grows = scales == nullptr, shrinks = scales == nullptr;
  for (int64_t i = 0; scales != nullptr && i < scales->size(); ++i) {
    grows |= scales->at_as_double(i) > 1;
    shrinks |= scales->at_as_double(i) < 1;
  }
  if (grows && shrinks) {
    refuse(c, "Resize to the nearest sample that may enlarge one axis and shrink another",
           "from op-set 11 on all axes round alike: export with that, or split the node");
  }
  return shrinks ? "ceil" : "floor";
}

/// Resize-10 and Upsample have (X, scales): the asymmetric form of Resize-11.
void resize_10(const Ctx& c) {
  const std::string nearest = nearest_mode_10(c);
  rename_op(c, "Resize");
  if (attributes(c).has("scales")) {
    const std::vector<float> scales = attributes(c).get_floats("scales");
    node_of(c).attributes.erase("scales");
    c.graph.set_input(
        c.node, 1,
        c.b.constant(Tensor::of<float>({static_cast<int64_t>(scales.size())}, scales)).id);
  }
  const ValueId scales = c.graph.input(c.node, 1);
  c.graph.set_input(c.node, 1, ValueId{});
  c.graph.set_input(c.node, 2, scales);
  node_of(c).attributes.set("coordinate_transformation_mode", std::string("asymmetric"));
  node_of(c).attributes.set("nearest_mode", nearest);
}

/// Resize-11 gives an empty tensor for the operand it leaves out, and has a mode of its own.
void resize_11(const Ctx& c) {
  if (attributes(c).get_string("coordinate_transformation_mode", "") == "tf_half_pixel_for_nn") {
    refuse(c, "Resize with tf_half_pixel_for_nn", "op-set 13 dropped that mode: use half_pixel");
  }
  for (size_t slot = 1; slot <= 2; ++slot) {
    const Tensor* tensor = c.graph.constant(c.graph.input(c.node, slot));
    if (tensor != nullptr && tensor->size() == 0) c.graph.set_input(c.node, slot, ValueId{});
  }
  c.graph.resize_inputs(c.node, c.graph.inputs(c.node).size());
}

/// GridSample-20 calls bilinear and bicubic by ONNX's words.
void grid_sample_modes(const Ctx& c) {
  const std::string mode = attributes(c).get_string("mode", "bilinear");
  node_of(c).attributes.set("mode", mode == "bilinear"  ? std::string("linear")
                                    : mode == "bicubic" ? std::string("cubic")
                                                        : mode);
}

void dft_axis(const Ctx& c) {
  const int64_t axis = attributes(c).get_int("axis", 1);
  node_of(c).attributes.erase("axis");
  c.graph.set_input(c.node, 2, c.b.constant(Tensor::scalar<int64_t>(axis)).id);
}

/// GroupNormalization-18 has scale and bias per group; from 21 on they are per channel.
void group_normalization(const Ctx& c) {
  const ValueType& type = c.graph.value(c.graph.input(c.node, 0)).type;
  const int64_t groups = attributes(c).get_int("num_groups", 0);
  if (!type.shape || type.shape->size() < 2 || !(*type.shape)[1].known() || groups < 1) {
    throw Error(ErrorCode::kUnsupported, "lifting GroupNormalization needs its number of channels")
        .at({{}, node_of(c).name, node_of(c).op});
  }
  const int64_t channels = (*type.shape)[1].value;
  for (size_t slot : {size_t{1}, size_t{2}}) {
    const Expr per_group = c.b.value(c.graph.input(c.node, slot));
    const Expr column = c.b.reshape(per_group, c.b.ints({groups, 1}));
    const Expr wide = c.b.op("Expand", {column, c.b.ints({groups, channels / groups})});
    c.graph.set_input(c.node, slot, c.b.reshape(wide, c.b.ints({channels})).id);
  }
}

/// RoiAlign below op-set 16 takes pixels at their corners; from then on at their centres, if not
/// said.
void roi_align(const Ctx& c) {
  node_of(c).attributes.set("coordinate_transformation_mode", std::string("output_half_pixel"));
}

/// Scan-8 scans each sample of a batch on its own, for as many steps as `sequence_lens` says.
void scan_8(const Ctx& c) {
  refuse(c, "Scan-8 has a batch axis and sequence_lens",
         "from op-set 9 on Scan has neither: export with that");
}

/// Below op-set 7 an operation broadcast its second operand only where asked, from `axis` on.
void legacy_broadcast(const Ctx& c) {
  const bool placed = attributes(c).get_int("broadcast", 0) != 0 && attributes(c).has("axis");
  const int64_t given = attributes(c).get_int("axis", 0);
  for (const char* name : {"broadcast", "axis", "consumed_inputs"})
    node_of(c).attributes.erase(name);
  if (!placed) return;
  const int64_t rank = rank_of(c);
  const Expr right = c.b.value(c.graph.input(c.node, 1));
  const int64_t end = normalize_axis(given, rank) + right.rank();
  std::vector<int64_t> axes;
  for (int64_t behind = end; behind < rank; ++behind) axes.push_back(right.rank() + behind - end);
  if (axes.empty()) return;
  c.graph.set_input(c.node, 1, c.b.op("Unsqueeze", {right, c.b.ints(axes)}).id);
}

/// Below op-set 7 a slope of one dim belonged to the channels, axis 1.
void prelu_channels(const Ctx& c) {
  node_of(c).attributes.erase("consumed_inputs");
  const Expr slope = c.b.value(c.graph.input(c.node, 1));
  const int rank = rank_of(c);
  if (slope.rank() != 1 || rank <= 2) return;
  std::vector<int64_t> axes;
  for (int64_t axis = 1; axis <= rank - 2; ++axis) axes.push_back(axis);
  c.graph.set_input(c.node, 1, c.b.op("Unsqueeze", {slope, c.b.ints(axes)}).id);
}

void drop_gemm_broadcast(const Ctx& c) { node_of(c).attributes.erase("broadcast"); }

/// Attributes of op-set 6 that say what the number of outputs says from op-set 7 on.
void drop_is_test(const Ctx& c) {
  node_of(c).attributes.erase("is_test");
  node_of(c).attributes.erase("consumed_inputs");
}

void keep(const Ctx&) {}

/// The spatial sizes of the results are to be inferred anew.
void open_spatial_sizes(const Ctx& c) {
  for (ValueId output : c.graph.outputs(c.node)) {
    if (!output.valid()) continue;
    ValueType& type = c.graph.value(output).type;
    for (size_t axis = 2; type.shape && axis < type.shape->size(); ++axis) {
      (*type.shape)[axis] = Dim();
    }
  }
}

/// Before op-set 22 the library's inference counted windows of ceil_mode that begin in the padding
/// behind the operand, which nobody pools. The sizes are inferred as op-set 22 has them.
void ceil_windows(const Ctx& c) {
  if (attributes(c).get_int("ceil_mode", 0) != 0) open_spatial_sizes(c);
}

/// The sizes of the kernel of a ConvTranspose; empty where they are open.
std::vector<int64_t> kernel_sizes(const Ctx& c) {
  if (attributes(c).has("kernel_shape")) return attributes(c).get_ints("kernel_shape");
  const ValueId w = c.graph.input(c.node, 1);
  const ValueType type = w.valid() ? c.graph.value(w).type : ValueType{};
  std::vector<int64_t> sizes;
  for (size_t axis = 2; type.shape && axis < type.shape->size(); ++axis) {
    if (!(*type.shape)[axis].known()) return {};
    sizes.push_back((*type.shape)[axis].value);
  }
  return sizes;
}

/// ConvTranspose with auto_pad: the library's inference adds output_padding to sizes that are to be
/// input · stride. What the full output, (input − 1) · stride + output_padding + extent, has too
/// much does not depend on the input; it is cut off at both ends (no pads where it is too small).
/// Leaves alone: output_shape, which states the size, and attributes that inference will refuse.
void transposed_pads(const Ctx& c) {
  const std::string mode = attributes(c).get_string("auto_pad", "NOTSET");
  const bool upper = mode == "SAME_UPPER";
  if (!upper && mode != "SAME_LOWER") return;
  if (attributes(c).has("output_shape") || attributes(c).has("pads")) return;
  const std::vector<int64_t> kernel = kernel_sizes(c);
  const size_t rank = kernel.size();
  if (rank == 0) {
    refuse(c, "ConvTranspose with auto_pad and a kernel of open size",
           "give it kernel_shape, or pads instead of auto_pad");
  }
  const std::vector<int64_t> ones(rank, 1),
      strides = attributes(c).get_ints("strides", ones),
      dilations = attributes(c).get_ints("dilations", ones),
      extra = attributes(c).get_ints("output_padding", std::vector<int64_t>(rank, 0));
  if (strides.size() != rank || dilations.size() != rank || extra.size() != rank) return;
  std::vector<int64_t> pads(2 * rank);
  for (size_t axis = 0; axis < rank; ++axis) {
    if (kernel[axis] < 1 || strides[axis] < 1 || dilations[axis] < 1 || extra[axis] < 0) return;
    const int64_t reach = checked_add(checked_mul(kernel[axis] - 1, dilations[axis]), 1);
    const int64_t surplus = checked_add(reach, extra[axis]) - strides[axis];
    const int64_t total = std::max<int64_t>(0, surplus);
    pads[axis] = upper ? total / 2 : total - total / 2;
    pads[rank + axis] = total - pads[axis];
  }
  node_of(c).attributes.erase("auto_pad");
  node_of(c).attributes.set("pads", pads);
  open_spatial_sizes(c);
}

/// The library cannot infer the function of an op whose `axes` are not given.
void mean_variance_axes(const Ctx& c) {
  if (attributes(c).has("axes")) return;
  node_of(c).attributes.set("axes", std::vector<int64_t>{0, 2, 3});
}

/// The library's inference takes an absent `onesided` for 0, against the default of the schema.
void stft_onesided(const Ctx& c) {
  if (!attributes(c).has("onesided")) node_of(c).attributes.set("onesided", int64_t{1});
}

void drop_consumed_inputs(const Ctx& c) { node_of(c).attributes.erase("consumed_inputs"); }

constexpr LiftRule kLiftRules[] = {
    {"Add", 7, legacy_broadcast, "broadcast, axis: attributes -> the shapes"},
    {"And", 7, legacy_broadcast, "broadcast, axis: attributes -> the shapes"},
    {"AveragePool", 7, keep, "count_include_pad is new"},
    {"AveragePool", 22, ceil_windows, "no window begins behind the operand"},
    {"BatchNormalization", 7, drop_is_test, "is_test: attribute -> number of outputs"},
    {"BatchNormalization", 14, batch_normalization, "training form by outputs -> training_mode"},
    {"Clip", 11, clip_bounds, "min, max: attributes -> inputs"},
    {"ConvTranspose", kAlways, transposed_pads, "auto_pad SAME_* -> pads"},
    {"DFT", 20, dft_axis, "axis: attribute -> input"},
    {"Div", 7, legacy_broadcast, "broadcast, axis: attributes -> the shapes"},
    {"Dropout", 7, drop_is_test, "is_test: attribute -> always"},
    {"Dropout", 12, dropout_ratio, "ratio: attribute -> input"},
    {"Equal", 7, legacy_broadcast, "broadcast, axis: attributes -> the shapes"},
    {"Gemm", 7, drop_gemm_broadcast, "broadcast: attribute -> always"},
    {"Greater", 7, legacy_broadcast, "broadcast, axis: attributes -> the shapes"},
    {"GridSample", 20, grid_sample_modes, "bilinear, bicubic -> linear, cubic"},
    {"GroupNormalization", 21, group_normalization, "scale and bias per group -> per channel"},
    {"Hardmax", 13, softmax_2d, "2-D at axis -> along the last axis"},
    {"Less", 7, legacy_broadcast, "broadcast, axis: attributes -> the shapes"},
    {"LogSoftmax", 13, softmax_2d, "2-D at axis -> along the last axis"},
    {"LpPool", 22, ceil_windows, "no window begins behind the operand"},
    {"MaxPool", 22, ceil_windows, "no window begins behind the operand"},
    {"MeanVarianceNormalization", kAlways, mean_variance_axes, "the default of axes, spelt out"},
    {"Mul", 7, legacy_broadcast, "broadcast, axis: attributes -> the shapes"},
    {"Or", 7, legacy_broadcast, "broadcast, axis: attributes -> the shapes"},
    {"PRelu", 7, prelu_channels, "a slope of one dim: channels -> the last axis"},
    {"Pad", 11, pad_inputs, "pads, value: attributes -> inputs"},
    {"Pow", 7, legacy_broadcast, "broadcast, axis: attributes -> the shapes"},
    {"ReduceL1", 18, axes_to_input, "axes: attribute -> input"},
    {"ReduceL2", 18, axes_to_input, "axes: attribute -> input"},
    {"ReduceLogSum", 18, axes_to_input, "axes: attribute -> input"},
    {"ReduceLogSumExp", 18, axes_to_input, "axes: attribute -> input"},
    {"ReduceMax", 18, axes_to_input, "axes: attribute -> input"},
    {"ReduceMean", 18, axes_to_input, "axes: attribute -> input"},
    {"ReduceMin", 18, axes_to_input, "axes: attribute -> input"},
    {"ReduceProd", 18, axes_to_input, "axes: attribute -> input"},
    {"ReduceSum", 13, axes_to_input, "axes: attribute -> input"},
    {"ReduceSumSquare", 18, axes_to_input, "axes: attribute -> input"},
    {"Resize", 11, resize_10, "(X, scales) -> (X, roi, scales), asymmetric"},
    {"Resize", 13, resize_11, "empty operands -> absent ones"},
    {"RoiAlign", 16, roi_align, "pixels at their corners -> output_half_pixel"},
    {"STFT", kAlways, stft_onesided, "the default of onesided, spelt out"},
    {"Scan", 9, scan_8, "refused: batch axis, sequence_lens"},
    {"Scatter", 24, scatter_elements, "deprecated name"},
    {"Slice", 10, slice_inputs, "starts, ends, axes: attributes -> inputs"},
    {"Softmax", 13, softmax_2d, "2-D at axis -> along the last axis"},
    {"Split", 13, split_to_input, "split: attribute -> input"},
    {"Split", 18, split_count, "equal parts -> num_outputs"},
    {"Squeeze", 13, axes_to_input, "axes: attribute -> input"},
    {"Sub", 7, legacy_broadcast, "broadcast, axis: attributes -> the shapes"},
    {"Sum", 8, drop_consumed_inputs, "dead attribute"},
    {"TopK", 10, topk_input, "k: attribute -> input"},
    {"Unsqueeze", 13, axes_to_input, "axes: attribute -> input"},
    {"Upsample", 24, resize_10, "deprecated name of Resize"},
    {"Xor", 7, legacy_broadcast, "broadcast, axis: attributes -> the shapes"},
};

}  // namespace

std::span<const LiftRule> lift_rules() { return kLiftRules; }

}  // namespace halfnote
