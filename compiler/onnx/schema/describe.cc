// The schemas as plain tables.
#include <onnx/defs/schema.h>

#include <algorithm>
#include <map>

#include "compiler/onnx/proto/attribute.h"
#include "compiler/onnx/proto/tensor.h"
#include "compiler/onnx/proto/type.h"
#include "compiler/onnx/schema.h"
#include "compiler/onnx/schema/lookup.h"

namespace halfnote {
namespace {

using Formal = onnx::OpSchema::FormalParameter;

std::optional<bool> differentiable(const Formal& formal) {
  switch (formal.GetDifferentiationCategory()) {
    case onnx::OpSchema::Differentiable:
      return true;
    case onnx::OpSchema::NonDifferentiable:
      return false;
    default:
      return std::nullopt;
  }
}

SchemaParameter describe(const Formal& formal) {
  SchemaParameter parameter;
  parameter.name = formal.GetName();
  parameter.type_variable = formal.GetTypeStr();
  parameter.option = static_cast<ParameterOption>(formal.GetOption());
  parameter.homogeneous = formal.GetIsHomogeneous();
  parameter.min_arity = formal.GetMinArity();
  parameter.differentiable = differentiable(formal);
  for (const auto* type_name : formal.GetTypes()) {
    const onnx::TypeProto& type = onnx::Utils::DataTypeUtils::ToTypeProto(type_name);
    if (!type.has_tensor_type()) continue;
    if (const auto dtype = dtype_from_onnx(type.tensor_type().elem_type())) {
      parameter.dtypes.push_back(*dtype);
    }
  }
  std::sort(parameter.dtypes.begin(), parameter.dtypes.end());
  parameter.tensor = !parameter.dtypes.empty();
  return parameter;
}

SchemaVersion describe(const onnx::OpSchema& schema) {
  SchemaVersion version;
  version.since = schema.SinceVersion();
  version.deprecated = schema.Deprecated();
  version.has_function = schema.HasFunction() || schema.HasContextDependentFunction();
  for (const Formal& formal : schema.inputs()) version.inputs.push_back(describe(formal));
  for (const Formal& formal : schema.outputs()) version.outputs.push_back(describe(formal));
  for (const auto& [name, attribute] : schema.attributes()) {
    version.attributes.push_back({name, attribute.type, attribute.required});
  }
  std::sort(version.attributes.begin(), version.attributes.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return version;
}

std::vector<SchemaOp> describe_all() {
  std::map<std::pair<std::string, std::string>, SchemaOp> ops;
  for (const onnx::OpSchema& schema : onnx::OpSchemaRegistry::get_all_schemas_with_history()) {
    SchemaOp& op = ops[{schema.domain(), schema.Name()}];
    op.domain = schema.domain();
    op.name = schema.Name();
    op.versions.push_back(describe(schema));
  }
  std::vector<SchemaOp> sorted;
  for (auto& [key, op] : ops) {
    std::sort(op.versions.begin(), op.versions.end(),
              [](const auto& a, const auto& b) { return a.since < b.since; });
    sorted.push_back(std::move(op));
  }
  return sorted;
}

}  // namespace

const SchemaVersion* SchemaOp::in(int64_t opset) const {
  const SchemaVersion* found = nullptr;
  for (const SchemaVersion& version : versions) {
    if (version.since <= opset) found = &version;
  }
  return found;
}

std::optional<SchemaVersion> find_schema_version(std::string_view op, int64_t opset) {
  const onnx::OpSchema* schema = proto::find_schema("", op, opset);
  if (schema == nullptr) return std::nullopt;
  return describe(*schema);
}

const std::vector<SchemaOp>& all_schema_ops() {
  static const std::vector<SchemaOp> ops = describe_all();
  return ops;
}

Attributes default_attributes(std::string_view domain, std::string_view op, int64_t opset) {
  Attributes defaults;
  const onnx::OpSchema* schema = proto::find_schema(domain, op, opset);
  if (schema == nullptr) return defaults;
  proto::TensorSource literal;
  for (const auto& [name, attribute] : schema->attributes()) {
    if (attribute.default_value.name().empty()) continue;
    defaults.set(name, proto::read_attribute(attribute.default_value, literal, {}));
  }
  return defaults;
}

}  // namespace halfnote
