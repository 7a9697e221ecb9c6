// Function bodies of schemas. Two traps of the ONNX library are handled here: bodies do not know
// the default values of attributes, so these are set on the node first; and a body is written for
// certain op-set versions, which may be older than the model's as long as the operators in it have
// not changed.
#include <onnx/defs/function.h>
#include <onnx/defs/schema.h>

#include "base/error.h"
#include "compiler/onnx/proto/attribute.h"
#include "compiler/onnx/proto/tensor.h"
#include "compiler/onnx/proto/type.h"
#include "compiler/onnx/read/graph.h"
#include "compiler/onnx/schema.h"
#include "compiler/onnx/schema/lookup.h"

namespace halfnote {
namespace {

/// The node as a proto with names of its own, all defaults filled in.
onnx::NodeProto node_with_defaults(const Graph& graph, NodeId id, const Attributes& defaults) {
  const Node& node = graph.node(id);
  onnx::NodeProto proto;
  proto.set_op_type(node.op);
  proto.set_domain(node.domain);
  for (ValueId input : graph.inputs(id)) {
    proto.add_input(input.valid() ? graph.value(input).name : "");
  }
  for (ValueId output : graph.outputs(id)) {
    proto.add_output(output.valid() ? graph.value(output).name : "");
  }
  Attributes attributes = node.attributes;
  for (const auto& [name, attribute] : defaults) {
    if (!attributes.has(name)) attributes.set(name, attribute);
  }
  for (const auto& [name, attribute] : attributes) {
    proto::write_attribute(
        name, attribute,
        [](const Tensor& tensor, onnx::TensorProto& to) { proto::write_tensor(tensor, "", to); },
        [](RegionId, onnx::GraphProto&) {}, *proto.add_attribute());
  }
  return proto;
}

std::vector<onnx::TypeProto> input_types(const Graph& graph, NodeId id) {
  std::vector<onnx::TypeProto> types;
  for (ValueId input : graph.inputs(id)) {
    types.emplace_back();
    if (input.valid()) proto::write_type(graph.value(input).type, types.back());
  }
  return types;
}

/// Finds or builds the body; false if the schema has none for this op-set or these types.
bool find_body(const onnx::OpSchema& schema, const onnx::NodeProto& node,
               const std::vector<onnx::TypeProto>& types, int opset, onnx::FunctionProto& body) {
  if (schema.HasFunction()) {
    const onnx::FunctionProto* found = schema.GetFunction(opset);
    if (found != nullptr) {
      body = *found;
      return true;
    }
  }
  if (!schema.HasContextDependentFunction()) return false;
  const onnx::FunctionBodyBuildContextImpl context(node, types);
  return schema.BuildContextDependentFunction(context, body, opset);
}

/// Bodies do not define results that the node leaves out: these go, or, in between, become another
/// name of the first.
void drop_absent_outputs(const Graph& graph, NodeId id, onnx::FunctionProto& body) {
  const auto named = static_cast<int>(graph.outputs(id).size());
  while (body.output_size() > named) body.mutable_output()->RemoveLast();
  for (int i = 1; i < body.output_size(); ++i) {
    if (!graph.output(id, static_cast<size_t>(i)).valid()) body.set_output(i, body.output(0));
  }
}

/// A body without imports is in the op-set it was asked for.
void complete(const Node& node, const Attributes& defaults, int64_t opset, Function& function) {
  function.domain = node.domain;
  function.name = node.op;
  if (function.opsets.empty()) function.opsets[""] = opset;
  for (const auto& [name, attribute] : defaults) {
    std::erase(function.attributes, name);
    const auto given =
        std::find_if(function.default_attributes.begin(), function.default_attributes.end(),
                     [&name = name](const auto& entry) { return entry.first == name; });
    if (given == function.default_attributes.end()) {
      function.default_attributes.emplace_back(name, attribute);
    }
  }
}

}  // namespace

std::optional<Function> schema_function_body(const Graph& graph, NodeId id, int64_t opset) {
  const Node& node = graph.node(id);
  try {
    const onnx::OpSchema& schema = proto::require_schema(node, opset);
    const Attributes defaults = default_attributes(node.domain, node.op, opset);
    const onnx::NodeProto proto = node_with_defaults(graph, id, defaults);
    const auto version = static_cast<int>(node.domain.empty() ? opset : newest_opset(node.domain));
    onnx::FunctionProto body;
    if (!find_body(schema, proto, input_types(graph, id), version, body)) return std::nullopt;
    drop_absent_outputs(graph, id, body);
    proto::TensorSource literal;
    Function function = proto::read_function(body, literal);
    complete(node, defaults, opset, function);
    return function;
  } catch (Error& error) {
    throw error.within(proto::place_of(graph, id));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kModel, error.what()).at(proto::place_of(graph, id));
  }
}

}  // namespace halfnote
