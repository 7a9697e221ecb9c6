#include "passes/precision/keep_f32.h"

#include <string>

namespace halfnote {
namespace {

/// Why a node has the type it has when nothing is to be decided: by the floats it reads and writes.
std::string why_untouched(const Graph& graph, NodeId id) {
  bool low = false, f32 = false, f64 = false;
  const auto look = [&](ValueId value) {
    const DType dtype = value.valid() ? graph.value(value).type.dtype : DType::kUndefined;
    low |= is_16bit_float(dtype);
    f32 |= dtype == DType::kF32;
    f64 |= dtype == DType::kF64;
  };
  for (ValueId input : graph.inputs(id)) look(input);
  for (ValueId output : graph.outputs(id)) look(output);
  if (low) return "the model's own: a 16-bit value at its border, or a rounding it asks for";
  if (f64) return "the model's own: f64 is left alone";
  return f32 ? "precision fp32: all is f32" : "computes no float";
}

}  // namespace

bool keep_f32(Graph& graph, PrecisionRules& rules) {
  bool changed = false;
  for (NodeId id : graph.all_nodes()) {
    Node& node = graph.node(id);
    const auto forced = rules.find(node);
    if (!node.precision.reason.empty()) continue;
    node.precision.reason = forced && !forced->low ? forced->rule : why_untouched(graph, id);
    changed = true;
  }
  return changed;
}

}  // namespace halfnote
