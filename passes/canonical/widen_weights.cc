// widen_weights: master weights in f32, whatever type the file has them in.
//
//   w: f16 weight   y = MatMul (x: f16, w)
//     ──▶
//   w: f32 weight   w1 = Cast <f16> (w)   y = MatMul (x, w1)
//
// Exact: f32 holds every f16 and bf16. An update of a 16-bit weight would be lost wherever it is
// below the weight's rounding. Running statistics of a BatchNormalization become f32 without a
// cast, which op-set 15 and newer allow. Leaves alone: f32 and f64 weights, 16-bit constants that
// are not trained, models that have their training steps.
#include "passes/passes.h"

namespace halfnote {
namespace {

bool is_statistic(const Graph& graph, ValueId id) {
  bool read = false;
  for (const Use& use : graph.uses(id)) {
    if (!use.by_node() || use.slot < 3 || graph.node(use.node()).op != "BatchNormalization")
      return false;
    read = true;
  }
  return read;
}

void widen(Graph& graph, ValueId id) {
  Value& value = graph.value(id);
  value.tensor = value.tensor.cast_to(DType::kF32);
  value.type.dtype = DType::kF32;
}

/// The weight in its old type, for all that read it.
void add_cast(Graph& graph, ValueId id, DType narrow, PassContext& context) {
  const auto nodes = graph.nodes();
  Builder b(graph, nodes.empty() ? graph.end() : graph.before(nodes.front()), context.infer);
  b.set_origin(graph.value(id).name);
  const Expr rounded = b.cast(b.value(id), narrow);
  const NodeId made = b.last();
  graph.replace_uses_if(id, rounded.id, [&](const Use& use) { return use.node() != made; });
}

}  // namespace

bool widen_weights(Model& model, PassContext& context) {
  if (context.options.inference_only || model.is_training()) return false;
  Graph& graph = model.graph;
  int count = 0;
  for (ValueId id : graph.initializers()) {
    const DType narrow = graph.value(id).type.dtype;
    if (!is_16bit_float(narrow)) continue;
    if (graph.value(id).trainable) {
      widen(graph, id);
      add_cast(graph, id, narrow, context);
    } else if (is_statistic(graph, id)) {
      widen(graph, id);
    } else {
      continue;
    }
    ++count;
  }
  if (count == 0) return false;
  context.note(model.source, std::to_string(count) + " 16-bit weights are kept in f32 and cast");
  return true;
}

}  // namespace halfnote
