// clean_casts: removes the casts that change nothing.
//
//   b = Cast <f32> (a: bf16)   c = Cast <bf16> (b)      ──▶      c = a
//   b = Cast <bf16> (scalar f32)                        ──▶      scalar in bf16, rounded here
//
// Exact: a wider type holds every value of the narrower one, and a constant is rounded as the node
// would round it. Leaves alone: f32 -> 16 bit -> f32, which rounds, whoever wrote it; casts of
// weights and states, which change from step to step; casts of tables that came with the model
// (frozen weights, buffers), which the trained model is to have as they were: a run rounds them
// once, before its first step. In bodies of control flow too: a value that a
// body captures is the same inside.
#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"
#include "passes/pass_through.h"
#include "passes/passes.h"

namespace halfnote {
namespace {

/// Does `wide` hold every value of `narrow`?
bool holds(DType wide, DType narrow) {
  if (wide == narrow) return true;
  if (is_16bit_float(narrow)) return wide == DType::kF32 || wide == DType::kF64;
  return narrow == DType::kF32 && wide == DType::kF64;
}

bool skip_round_trip(Graph& graph, NodeId node) {
  const ValueId result = graph.output(node);
  const ValueId middle = graph.input(node, 0);
  const NodeId above = graph.value(middle).producer;
  if (!is_op(graph, above, "Cast") || is_region_output(graph, result)) return false;
  const ValueId source = graph.input(above, 0);
  const DType from = graph.value(source).type.dtype;
  if (from == DType::kUndefined || graph.value(result).type.dtype != from ||
      !holds(graph.value(middle).type.dtype, from))
    return false;
  graph.replace_uses(result, source);
  graph.remove(node);
  return true;
}

bool fold_constant(Graph& graph, NodeId node) {
  const ValueId result = graph.output(node), constant = graph.input(node, 0);
  const Tensor* tensor = graph.constant(constant);
  if (tensor == nullptr || (!tensor->shape().empty() && !graph.value(constant).made)) return false;
  if (!is_float(tensor->dtype()) || is_region_output(graph, result)) return false;
  const DType to = graph.value(result).type.dtype;
  if (!is_16bit_float(to) && to != DType::kF32 && to != DType::kF64) return false;
  const std::string name = graph.value(result).name;
  const Tensor rounded = tensor->cast_to(to);
  graph.rename(result, graph.unique_name(name + ".cast"));
  graph.replace_uses(result, graph.add_initializer(name, rounded));
  graph.remove(node);
  return true;
}

}  // namespace

bool clean_casts(Graph& graph, PassContext&) {
  bool changed = false;
  for (NodeId node : graph.all_nodes()) {
    if (!is_op(graph, node, "Cast")) continue;
    changed |= skip_round_trip(graph, node) || fold_constant(graph, node);
  }
  return changed;
}

}  // namespace halfnote
