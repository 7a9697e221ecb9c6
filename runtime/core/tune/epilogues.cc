#include "runtime/core/tune/epilogues.h"

#include <string_view>

#include "base/system/environment.h"
#include "compiler/ir/model.h"
#include "compiler/ir/query.h"

namespace halfnote {
namespace {

Operand operand_of(const Graph& graph, ValueId value) {
  if (!value.valid()) return {};
  const ValueType& type = graph.value(value).type;
  return {type.dtype, *known_shape(graph, value), {}, graph.constant(value)};
}

KernelCall call_of(const Graph& graph, NodeId id, bool tf32) {
  const Node& node = graph.node(id);
  KernelCall call;
  call.domain = node.domain;
  call.op = node.op;
  call.attributes = &node.attributes;
  call.tf32 = tf32;
  for (const ValueId input : graph.inputs(id)) call.inputs.push_back(operand_of(graph, input));
  for (const ValueId output : graph.outputs(id)) call.outputs.push_back(operand_of(graph, output));
  return call;
}

bool is_made_of_product(const Node& node) {
  return node.domain == kHalfnoteDomain && node.op.str().starts_with("Gemm");
}

}  // namespace

bool library_has_products(const Graph& graph, const Device& device, bool tf32) {
  constexpr std::string_view kLibrary = "blas.";
  for (const NodeId id : graph.nodes()) {
    if (!is_made_of_product(graph.node(id))) continue;
    const KernelCall call = call_of(graph, id, tf32);
    const KernelChoice choice = device.kernels().choose(call, kLibrary);
    if (choice.kernel == nullptr) return false;
    const bool adds = call.op == "Gemm" && call.has_input(2) && call.inputs[2].shape.size() == 2;
    if (adds && !choice.kernel->can_share(2, 0)) return false;
  }
  return true;
}

Pays epilogues_pay(const Device& device, bool tf32) {
  if (word_of_environment("HALFNOTE_EPILOGUES", {"always", "never"}) != "always") return {};
  return [&device, tf32](const Graph& /*now*/, const Graph& instead) {
    return library_has_products(instead, device, tf32);
  };
}

}  // namespace halfnote
