// round_conv_gradients: the gradient of a convolution's weight is rounded to the type of its
// operands, for GPUs only: cuDNN has tensor cores for no other. It sums in f32 and rounds once.
//
//   dw: f32 = ConvGradWeight <out_dtype = f32> (dy: bf16, x: bf16)
//     ──▶   dw1: bf16 = ConvGradWeight (dy, x)   dw: f32 = Cast (dw1)
//
// Rounding: this one, which PyTorch's autocast has too. In fp16 what overflows is found by the
// finite check, as the loss scale wants it. Leaves alone: f32 operands, bodies.
#include "passes/device/round_conv_gradients.h"

#include "compiler/ir/builder.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"

namespace halfnote {
namespace {

/// The type to round to; kUndefined if the node shall stay.
DType narrow_type(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.op != "ConvGradWeight" || node.domain != kHalfnoteDomain || node.region != graph.main())
    return DType::kUndefined;
  const DType operands = graph.value(graph.input(id, 0)).type.dtype;
  const DType result = graph.value(graph.output(id)).type.dtype;
  return is_16bit_float(operands) && result == DType::kF32 ? operands : DType::kUndefined;
}

void round_result(Graph& graph, PassContext& context, NodeId id, DType dtype) {
  const ValueId result = graph.output(id);
  graph.node(id).attributes.set("out_dtype", static_cast<int64_t>(dtype));
  graph.value(result).type.dtype = dtype;
  Builder b(graph, graph.after(id), context.infer);
  b.set_role(graph.node(id).role);
  b.set_origin(graph.label(id));
  const Expr cast = b.cast(b.value(result), DType::kF32);
  graph.value(cast.id).scale_power = graph.value(result).scale_power;
  bool names_output = false;
  for (const Use& use : graph.uses(result)) names_output |= use.kind == UseKind::kRegionOutput;
  graph.replace_uses(result, cast.id);
  graph.set_input(b.last(), 0, result);
  if (!names_output) return;
  const std::string name = graph.value(result).name;
  graph.rename(result, graph.unique_name(name));
  graph.rename(cast.id, name);
}

}  // namespace

bool round_conv_gradients(Graph& graph, PassContext& context) {
  bool changed = false;
  for (const NodeId id : graph.nodes()) {
    const DType dtype = narrow_type(graph, id);
    if (dtype == DType::kUndefined) continue;
    round_result(graph, context, id, dtype);
    context.note(graph.label(id), "the gradient is rounded to " + std::string(short_name(dtype)) +
                                      ": cuDNN sums it in f32 and writes 16 bits");
    changed = true;
  }
  return changed;
}

}  // namespace halfnote
