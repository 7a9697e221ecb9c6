// How often a body may run, and how it is told.
#pragma once

#include <cstdint>

#include "base/shape.h"
#include "compiler/ir/graph.h"

namespace halfnote {

/// More trips are not planned; exporters write the largest integer for "without a bound".
inline constexpr int64_t kMaxTrips = 1 << 20;

/// The shape in which the body of a Loop takes its trip number or condition, a scalar: an input
/// that is declared with one axis (PyTorch's older exporter writes int64[1]) gets that axis, as in
/// onnxruntime.
inline Shape shape_of_trip(const Graph& graph, ValueId formal) {
  const ValueType& type = graph.value(formal).type;
  return type.is_tensor() && type.shape && type.shape->size() == 1 ? Shape{1} : Shape{};
}

}  // namespace halfnote
