#include "compiler/onnx/examples.h"

#include "compiler/ir/hash.h"

namespace halfnote::proto {
namespace {

constexpr size_t kMostBytes = 4096;  // of a constant that says a shape
constexpr int64_t kFewNumbers = 8;   // floats: one for each dim, as the scales of Resize

bool has_type(const Graph& graph, ValueId value) {
  return !value.valid() || graph.value(value).type.kind != TypeKind::kUnknown;
}

uint64_t hash_of_operand(const Graph& graph, ValueId value) {
  if (!value.valid()) return 0;
  uint64_t hash = content_hash(graph.value(value).type);
  if (Examples::counts_with_data(graph, value)) {
    hash = hash_mix(hash, content_hash(*graph.constant(value)));
  }
  return hash;
}

uint64_t hash_of_call(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  uint64_t hash = hash_mix(hash_text(node.op), hash_text(node.domain));
  hash = hash_mix(hash, hash_text(node.overload));
  hash = hash_mix(hash, content_hash(node.attributes));
  for (ValueId input : graph.inputs(id)) hash = hash_mix(hash, hash_of_operand(graph, input));
  hash = hash_mix(hash, graph.inputs(id).size());
  for (ValueId output : graph.outputs(id)) {
    hash = hash_mix(hash, output.valid() ? content_hash(graph.value(output).type) : 0);
  }
  return hash;
}

}  // namespace

bool Examples::suits(const Graph& graph) {
  for (NodeId id = graph.first(graph.main()); id.valid(); id = graph.next(id)) {
    if (!graph.subgraphs(id).empty()) return false;
    for (ValueId input : graph.inputs(id)) {
      if (!has_type(graph, input)) return false;
    }
    for (ValueId output : graph.outputs(id)) {
      if (!has_type(graph, output)) return false;
    }
  }
  return true;
}

bool Examples::counts_with_data(const Graph& graph, ValueId value) {
  const Tensor* constant = graph.constant(value);
  if (constant == nullptr || constant->byte_size() > kMostBytes) return false;
  return !is_float(constant->dtype()) || constant->size() <= kFewNumbers;
}

std::vector<NodeId> Examples::pick(const Graph& graph) {
  std::vector<NodeId> picked;
  for (NodeId id = graph.first(graph.main()); id.valid(); id = graph.next(id)) {
    if (seen_.insert(hash_of_call(graph, id)).second) picked.push_back(id);
  }
  return picked;
}

}  // namespace halfnote::proto
