// The registry of the ONNX library, asked by domain, name and op-set.
#include "compiler/onnx/schema/lookup.h"

#include <onnx/defs/schema.h>

#include "base/error.h"
#include "compiler/onnx/schema.h"

namespace halfnote {

int64_t newest_opset(std::string_view domain) {
  static const auto ranges = onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map();
  const auto found = ranges.find(std::string(domain));
  return found == ranges.end() ? 0 : found->second.second;
}

bool has_schema(std::string_view domain, std::string_view op, int64_t opset) {
  return proto::find_schema(domain, op, opset) != nullptr;
}

namespace proto {

const onnx::OpSchema* find_schema(std::string_view domain, std::string_view op, int64_t opset) {
  const int64_t version = domain.empty() ? opset : newest_opset(domain);
  if (version == 0) return nullptr;
  const onnx::OpSchema* schema = onnx::OpSchemaRegistry::Schema(
      std::string(op), static_cast<int>(version), std::string(domain));
  return schema == nullptr || schema->Deprecated() ? nullptr : schema;
}

const onnx::OpSchema& require_schema(const Node& node, int64_t opset) {
  if (const auto* schema = find_schema(node.domain, node.op, opset)) return *schema;
  const std::string domain = node.domain.empty() ? "ONNX" : "domain \"" + node.domain + "\"";
  throw Error(ErrorCode::kUnsupported, "operator " + op_name(node) + " is not known")
      .expected("an operator of " + domain + " in op-set " + std::to_string(opset), node.op);
}

Place place_of(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  Place place{.node = node.name, .op = op_name(node)};
  for (ValueId output : graph.outputs(id)) {
    if (place.node.empty() && output.valid()) place.node = graph.value(output).name;
  }
  return place;
}

}  // namespace proto
}  // namespace halfnote
