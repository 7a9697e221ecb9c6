#include "passes/device/products/channel_padding.h"

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

}  // namespace halfnote
