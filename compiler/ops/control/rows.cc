// Control flow, containers, quantization, strings and images, signal processing, resampling: what
// fits no other family. Rules of the few that have some stand with their next of kin.
#include "compiler/ops/contraction/parts.h"
#include "compiler/ops/control/parts.h"
#include "compiler/ops/families.h"
#include "compiler/ops/reduction/parts.h"

namespace halfnote {
namespace {

using enum PrecisionClass;

constexpr std::string_view kTrips =
    "how often it runs depends on data: give the trip count as a constant (or bind the dims it "
    "follows from, --dim NAME=N) and pass the condition on";
constexpr std::string_view kMap =
    "its sequences are not known at compile time: fix the dims (--dim NAME=N), give sizes as "
    "constants";
constexpr std::string_view kContainer =
    "its elements are not known at compile time: fix the dims (--dim NAME=N), give sizes and "
    "positions as constants";
constexpr std::string_view kQuantized = "the operands or results are quantized: no gradient exists";
constexpr std::string_view kText = "works on strings or encoded bytes: no gradient exists";
constexpr std::string_view kGenerated = "made from counts: no gradient exists";
std::vector<OperatorRow> control_flow() {
  return {
      {.name = "If",
       .precision = kStruct,
       .legality = {1, 16},
       .gradient = control::if_gradient,
       .note = "both branches give the same types"},
      {.name = "Loop",
       .precision = kStruct,
       .legality = {1, 16},
       .no_gradient = kTrips,
       .note = "a carried value keeps its type"},
      {.name = "Scan",
       .precision = kStruct,
       .legality = {8, 16},
       .gradient = control::scan_gradient,
       .note = "a carried value keeps its type"},
      {.name = "SequenceMap",
       .precision = kStruct,
       .legality = {17, 0},
       .no_gradient = kMap,
       .note = "a function: inlined"},
  };
}

/// Legality speaks of tensors: an op that has only containers is legal in none.
OperatorRow container(std::string_view name, Legality legality) {
  return {.name = name, .precision = kClear, .legality = legality, .no_gradient = kContainer};
}

std::vector<OperatorRow> containers() {
  return {
      container("ConcatFromSequence", {11, 0}),
      container("Optional", {15, 28}),
      container("OptionalGetElement", {15, 28}),
      container("OptionalHasElement", {18, 28}),
      container("SequenceAt", {11, 0}),
      container("SequenceConstruct", {11, 0}),
      container("SequenceEmpty", {}),
      container("SequenceErase", {}),
      container("SequenceInsert", {11, 0}),
      container("SequenceLength", {}),
      container("SplitToSequence", {11, 24}),
  };
}

OperatorRow text(std::string_view name) {
  return {.name = name, .precision = kOpaque, .no_gradient = kText};
}

std::vector<OperatorRow> never_retyped() {
  return {
      {.name = "DequantizeLinear",
       .precision = kOpaque,
       .legality = {19, 19},
       .no_gradient = kQuantized,
       .note = "its scale keeps its type"},
      {.name = "DynamicQuantizeLinear", .precision = kOpaque, .no_gradient = kQuantized},
      {.name = "QuantizeLinear",
       .precision = kOpaque,
       .legality = {19, 19},
       .no_gradient = kQuantized,
       .note = "its scale keeps its type"},
      text("ImageDecoder"),
      text("RegexFullMatch"),
      text("StringConcat"),
      text("StringNormalizer"),
      text("StringSplit"),
      text("TfIdfVectorizer"),
  };
}

OperatorRow generated(std::string_view name) {
  return {.name = name, .precision = kFp32, .legality = {17, 17}, .no_gradient = kGenerated};
}

std::vector<OperatorRow> signals() {
  return {
      generated("BlackmanWindow"),
      {.name = "DFT",
       .precision = kFp32,
       .legality = {17, 17},
       .scale = ScaleRule::kFirst,
       .gradient = control::dft_gradient},
      generated("HammingWindow"),
      generated("HannWindow"),
      generated("MelWeightMatrix"),
      {.name = "STFT",
       .precision = kFp32,
       .legality = {17, 17},
       .scale = ScaleRule::kFirst,
       .no_gradient = kLowered,
       .lower = control::lower_stft,
       .note = "written as the DFT of windowed frames"},
  };
}

std::vector<OperatorRow> sampling() {
  return {
      {.name = "AffineGrid",
       .precision = kFp32,
       .legality = {20, 20},
       .no_gradient = kLowered,
       .lower = reduction::lower_affine_grid,
       .note = "coordinates need f32"},
      {.name = "GridSample",
       .precision = kFp32,
       .legality = {16, 22},
       .fp32_inputs = 1u << 1,
       .scale = ScaleRule::kFirst,
       .no_gradient = kLowered,
       .lower = reduction::lower_grid_sample,
       .note = "the grid stays f32"},
      {.name = "NonMaxSuppression",
       .precision = kFp32,
       .fp32_inputs = 0b11011,
       .no_gradient = "integer output: no gradient exists",
       .note = "f32 only in ONNX"},
      {.name = "Resize",
       .precision = kFp32,
       .legality = {10, 13},
       .fp32_inputs = 0b110,
       .scale = ScaleRule::kFirst,
       .gradient = reduction::resize_gradient,
       .infer = reduction::infer_resize,
       .note = "roi and scales stay f32"},
      {.name = "RotaryEmbedding",
       .precision = kInfer,
       .legality = {23, 23},
       .scale = ScaleRule::kFirst,
       .no_gradient = kLowered,
       .lower = contraction::lower_rotary_embedding,
       .note = "written as Mul, Sub and Add; the caches have the type of X"},
      {.name = "Upsample",
       .precision = kFp32,
       .legality = {1, 0},
       .fp32_inputs = 1u << 1,
       .scale = ScaleRule::kFirst,
       .no_gradient = "deprecated: lifting writes it as Resize",
       .note = "the scales stay f32"},
  };
}

/// ONNX's own training ops, which passes/foreign/ writes in others.
OperatorRow training(std::string_view name, Legality legality, std::string_view note) {
  return {.domain = "ai.onnx.preview.training",
          .name = name,
          .precision = kFp32,
          .legality = legality,
          .no_gradient = "part of the training step: expanded before differentiation",
          .note = note};
}

/// A gradient has the type of what it is taken by: the first operands, one a result.
std::vector<ValueType> types_of_gradients(const Graph& graph, NodeId node) {
  std::vector<ValueType> types;
  for (size_t i = 0; i < graph.outputs(node).size(); ++i) {
    const ValueId x = graph.input(node, i);
    types.push_back(x.valid() ? graph.value(x).type : ValueType{});
  }
  return types;
}

std::vector<OperatorRow> training_ops() {
  OperatorRow gradient = training("Gradient", {1, 0}, "names the values it differentiates");
  gradient.infer = types_of_gradients;
  return {
      training("Adagrad", {}, "sums of squares"),
      training("Adam", {}, "epsilon before bias correction, unlike PyTorch"),
      gradient,
      training("Momentum", {}, "standard or nesterov"),
  };
}

}  // namespace

std::vector<OperatorRow> control_rows() {
  std::vector<OperatorRow> all;
  for (auto part : {control_flow, containers, never_retyped, signals, sampling, training_ops}) {
    const std::vector<OperatorRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace halfnote
