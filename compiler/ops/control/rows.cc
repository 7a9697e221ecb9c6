// Control flow, containers, and ONNX's own training ops.
#include <limits>

#include "compiler/ops/control/parts.h"
#include "compiler/ops/control/trips.h"
#include "compiler/ops/families.h"

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

/// Trips that are counted, but too many. The largest integers stand for "until the condition says".
std::string too_many_trips(const Graph& graph, NodeId node) {
  const Tensor* trips = graph.constant(graph.input(node, 0));
  if (trips == nullptr || trips->size() != 1) return "";
  const int64_t count = trips->at_as_int(0);
  const bool open =
      count == std::numeric_limits<int64_t>::max() || count == std::numeric_limits<int32_t>::max();
  if (count <= kMaxTrips || open) return "";
  return "its trip count is " + std::to_string(count) + ", over the limit of " +
         std::to_string(kMaxTrips) + ": lower it, or compute all trips at once";
}

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
       .no_gradient_here = too_many_trips,
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
  for (auto part : {control_flow, containers, training_ops}) {
    const std::vector<OperatorRow> rows = part();
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

}  // namespace halfnote
