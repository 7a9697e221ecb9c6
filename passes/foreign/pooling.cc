// Gradients of pooling and Resize. ONNX Runtime's MaxPoolGrad and AveragePoolGrad do not read X;
// ours do, so its forward node is looked up.
#include "compiler/ir/model.h"
#include "compiler/ops/rule_support.h"
#include "compiler/ops/window.h"
#include "passes/foreign/parts.h"

namespace halfnote::foreign {
namespace {

Attributes pool_attributes(const Attributes& forward, const SymbolicShape& x) {
  Attributes attributes = window_of(forward, x).attributes();
  for (const char* name : {"ceil_mode", "count_include_pad"}) {
    if (forward.get_int(name, 0) != 0) attributes.set(name, forward.get_int(name, 0));
  }
  return attributes;
}

/// The AveragePool whose gradient this is: ONNX Runtime calls its gradient `NAME_Grad/…`.
NodeId average_pool_of(LowerContext& c) {
  const Graph& graph = c.b.graph();
  const std::string& name = graph.node(c.node).name;
  const std::string origin = name.substr(0, name.find("_Grad/"));
  for (NodeId node : graph.nodes(graph.node(c.node).region)) {
    if (graph.node(node).op == "AveragePool" && graph.node(node).name == origin) return node;
  }
  return {};
}

}  // namespace

Results max_pool_grad(LowerContext& c) {
  Graph& graph = c.b.graph();
  const NodeId forward = producer_of(c, require_input(c, 1));
  if (!forward.valid() || graph.node(forward).op != "MaxPool") {
    refuse(c, "its Indices do not come from a MaxPool in the same graph");
  }
  const ValueId indices = c.inputs[1].id;
  graph.set_input(c.node, 1, ValueId{});
  if (!graph.has_uses(indices)) graph.drop_output(forward, 1);
  const Expr x = c.b.value(graph.input(forward, 0));
  return {c.b.op("MaxPoolGrad", {require_input(c, 0), x},
                 pool_attributes(graph.node(forward).attributes, x.shape()), kHalfnoteDomain)};
}

Results average_pool_grad(LowerContext& c) {
  Graph& graph = c.b.graph();
  const NodeId forward = average_pool_of(c);
  if (!forward.valid()) {
    refuse(c,
           "the AveragePool whose gradient it is has another name than its own tells "
           "(`NAME_Grad/…`)");
  }
  const Expr x = c.b.value(graph.input(forward, 0));
  return {c.b.op("AveragePoolGrad", {require_input(c, 0), c.b.shape_of(x)},
                 pool_attributes(graph.node(forward).attributes, x.shape()), kHalfnoteDomain)};
}

/// dY, X, roi?, scales?
Results resize_grad(LowerContext& c) {
  const Attributes attributes = chosen_attributes(
      c, {"antialias", "axes", "coordinate_transformation_mode", "cubic_coeff_a", "exclude_outside",
          "extrapolation_value", "keep_aspect_ratio_policy", "mode", "nearest_mode"});
  const std::vector<Expr> inputs = {require_input(c, 1), input_or_none(c, 2), input_or_none(c, 3)};
  return {
      gradient_of(c, "Resize", attributes, inputs, require_input(c, 0), {true, false, false})[0]};
}

}  // namespace halfnote::foreign
