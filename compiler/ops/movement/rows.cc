// The operator rows of the movement family: ops that copy, select or make elements, and shapes.
#include "compiler/ops/families.h"
#include "compiler/ops/movement/parts.h"

namespace halfnote {
namespace {

using namespace movement;  // NOLINT(google-build-using-namespace): the rules of this family
using enum PrecisionClass;

constexpr std::string_view kShapeOnly = "reads no values: no gradient exists";
constexpr std::string_view kIndices = "integer output: no gradient exists";
constexpr std::string_view kDataDependent =
    "not in this release: gradients of ops whose result shape depends on data";

constexpr uint32_t kShape = 0b10;  // operand 1: a shape, counts, axes

/// An op that copies elements of operand 0: linear in it, of any type.
OperatorRow mover(std::string_view name, Legality legality, GradientRule gradient,
                  std::string_view note = {}, uint32_t size_inputs = 0, uint32_t plan_inputs = 0) {
  return {.name = name,
          .precision = kClear,
          .legality = legality,
          .scale = ScaleRule::kFirst,
          .gradient = gradient,
          .size_inputs = size_inputs,
          .plan_inputs = plan_inputs,
          .note = note};
}

/// An op whose result does not depend on the values of any float.
OperatorRow maker(std::string_view name, Legality legality, std::string_view reason,
                  std::string_view note, uint32_t size_inputs = 0) {
  return {.name = name,
          .precision = kClear,
          .legality = legality,
          .scale = ScaleRule::kAbsorb,
          .no_gradient = reason,
          .size_inputs = size_inputs,
          .note = note};
}

/// Writes updates into data. Our kernels add in f32 whatever the type.
OperatorRow scatter(std::string_view name, GradientRule gradient) {
  return {.name = name,
          .precision = kFp32,
          .legality = {11, 13},
          .fp32_math_inside = true,
          .scale = ScaleRule::kSame,
          .gradient = gradient,
          .note = "sums in f32: 16-bit ones saturate"};
}

std::vector<OperatorRow> movers() {
  return {
      mover("DepthToSpace", {1, 13}, depth_to_space_gradient),
      mover("Expand", {8, 13}, expand_gradient, "", kShape),
      mover("Flatten", {1, 13}, reshape_gradient),
      mover("Gather", {1, 13}, gather_gradient, "its gradient is summed in f32"),
      mover("GatherElements", {11, 13}, gather_elements_gradient, "its gradient is summed in f32"),
      mover("GatherND", {11, 13}, gather_nd_gradient, "its gradient is summed in f32"),
      mover("Identity", {1, 13}, identity_gradient),
      mover("Pad", {1, 13}, pad_gradient, "the padded value has the type of the data", 0b1010,
            0b1010),
      mover("Reshape", {1, 13}, reshape_gradient, "", kShape),
      mover("ReverseSequence", {10, 28}, reverse_sequence_gradient),
      mover("Slice", {1, 13}, slice_gradient, "", 0b11110, 0b11110),
      mover("SpaceToDepth", {1, 13}, space_to_depth_gradient),
      mover("Split", {1, 13}, split_gradient, "", kShape),
      mover("Squeeze", {1, 13}, squeeze_gradient, "", kShape),
      mover("Tile", {1, 13}, tile_gradient, "", kShape),
      mover("Transpose", {1, 13}, transpose_gradient),
      mover("Trilu", {14, 14}, trilu_gradient),
      mover("Unsqueeze", {1, 13}, unsqueeze_gradient, "", kShape),
      scatter("ScatterElements", scatter_elements_gradient),
      scatter("ScatterND", scatter_nd_gradient),
      {.name = "Concat",
       .precision = kClear,
       .legality = {1, 13},
       .scale = ScaleRule::kSame,
       .gradient = concat_gradient},
  };
}

std::string stays_data_dependent(const Graph&, NodeId) { return std::string(kDataDependent); }

/// Ops that select elements by their values.
std::vector<OperatorRow> selections() {
  return {
      {.name = "Compress",
       .precision = kClear,
       .legality = {9, 28},
       .scale = ScaleRule::kFirst,
       .no_gradient = kLowered,
       .no_gradient_here = stays_data_dependent,
       .sized_by_values = true,
       .lower = lower_compress,
       .note = "with a constant mask: written as Gather"},
      {.name = "NonZero",
       .precision = kClear,
       .legality = {9, 13},
       .scale = ScaleRule::kAbsorb,
       .no_gradient = kIndices,
       .sized_by_values = true,
       .note = "reads the type that the value has"},
      {.name = "Unique",
       .precision = kClear,
       .legality = {11, 28},
       .no_gradient = kDataDependent,
       .sized_by_values = true,
       .note = "rounding merges values: reads the type that the value has"},
  };
}

std::vector<OperatorRow> made_for_devices() {
  return {
      {.domain = kHalfnoteDomain,
       .name = "AddStrided",
       .precision = kOpaque,
       .legality = {1, 1},
       .scale = ScaleRule::kSame,
       .no_gradient = "made behind differentiation",
       .infer = infer_add_strided,
       .body = add_strided_body,
       .note = "a sum that the second operand has every few pixels a part of; made for a device"},
      {.domain = kHalfnoteDomain,
       .name = "Patches",
       .precision = kOpaque,
       .legality = {1, 1},
       .scale = ScaleRule::kFirst,
       .no_gradient = "made behind differentiation",
       .infer = infer_patches,
       .body = patches_body,
       .note = "windows become channels; made for a device"},
  };
}

std::vector<OperatorRow> others() {
  return {
      {.name = "CenterCropPad",
       .precision = kClear,
       .legality = {18, 18},
       .scale = ScaleRule::kFirst,
       .no_gradient = kLowered,
       .size_inputs = kShape,
       .lower = lower_center_crop_pad},
      maker("Constant", {1, 13}, "has no operands", "written anew in the type it runs in"),
      maker("ConstantOfShape", {9, 20}, kShapeOnly, "attribute value gives the type", 0b1),
      {.name = "EyeLike",
       .precision = kClear,
       .legality = {9, 22},
       .scale = ScaleRule::kAbsorb,
       .gradient = no_values,
       .note = "attribute dtype gives the type"},
      {.name = "OneHot",
       .precision = kClear,
       .legality = {9, 28},
       .fp32_inputs = 0b011,  // indices and depth are counts: rounding would change them
       .place_inputs = 0b011,
       .gradient = one_hot_gradient,
       .size_inputs = kShape,
       .note = "the gradient goes to the two values"},
      {.name = "Range",
       .precision = kFp32,
       .legality = {27, 27},
       .place_inputs = 0b111,
       .no_gradient = "not in this release: gradient of Range",
       .size_inputs = 0b111,
       .infer = infer_range,
       .note = "not exact above 2048 in f16, 256 in bf16"},
      {.name = "Scatter",
       .precision = kClear,
       .legality = {9, 0},
       .scale = ScaleRule::kSame,
       .no_gradient = "deprecated: lifting writes it as ScatterElements"},
      maker("Shape", {1, 13}, kShapeOnly, "breaks the chain of floats: needs no cast"),
      maker("Size", {1, 13}, kShapeOnly, "breaks the chain of floats: needs no cast"),
      {.name = "TensorScatter",
       .precision = kClear,
       .legality = {24, 24},
       .scale = ScaleRule::kSame,
       .no_gradient = "newer than op-set 23"},
  };
}

}  // namespace

std::vector<OperatorRow> movement_rows() {
  std::vector<OperatorRow> rows = movers();
  for (const auto part : {selections, made_for_devices, others}) {
    const std::vector<OperatorRow> more = part();
    rows.insert(rows.end(), more.begin(), more.end());
  }
  return rows;
}

}  // namespace halfnote
