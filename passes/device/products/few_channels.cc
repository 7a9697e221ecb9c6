#include "passes/device/products/few_channels.h"

#include "compiler/ir/model.h"
#include "compiler/ir/query.h"
#include "passes/padding/remove_padding.h"

namespace halfnote {

ValueId without_channel_padding(const Graph& graph, ValueId value) {
  const NodeId pad = producer(graph, value);
  if (!pad.valid() || graph.node(pad).op != "Pad" || !is_padding(graph.node(pad))) return value;
  const ValueId source = graph.input(pad, 0);
  const auto own = known_shape(graph, source);
  auto padded = known_shape(graph, value);
  if (!own || !padded || own->size() != padded->size() || own->size() < 3) return value;
  (*padded)[1] = (*own)[1];
  return own == padded ? source : value;
}

NodeId padding_cut(const Graph& graph, ValueId gradient, const Shape& shape) {
  const NodeId cut = only_reader(graph, gradient);
  if (!cut.valid() || graph.node(cut).op != "Slice" || !is_padding(graph.node(cut))) return {};
  return known_shape(graph, graph.output(cut)) == shape ? cut : NodeId{};
}

bool rewrite_convolutions(Graph& graph, PassContext& context, std::string_view words,
                          const std::function<bool(NodeId)>& forward,
                          const std::function<bool(NodeId)>& gradient) {
  bool changed = false;
  for (const NodeId id : graph.nodes()) {
    const Node& node = graph.node(id);
    const bool is_forward = is_op(node, "Conv");
    if (!is_forward && !(node.domain == kHalfnoteDomain && node.op == "ConvGradWeight")) continue;
    const std::string label = graph.label(id);
    if (!(is_forward ? forward(id) : gradient(id))) continue;
    context.note(label, std::string(words));
    changed = true;
  }
  return changed;
}

}  // namespace halfnote
