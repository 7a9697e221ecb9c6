// ONNX's operator schemas, without protobuf: types of results, legality of nodes, and the tables
// for tests and for `halfnote ops`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/builder.h"
#include "compiler/ir/model.h"

namespace halfnote {

/// Does ONNX define the op in this version of its domain's op-set (and has not deprecated it)?
bool has_schema(std::string_view domain, std::string_view op, int64_t opset = kOpsetVersion);

/// Sets the types of a node's results by its schema, merged with the types they have: what both
/// know must agree (a pass that changes operands clears the types of the results first). Shape
/// arithmetic (Shape, Gather, Concat, … of integers) is followed symbolically. Open dims of results
/// in the main region get a symbol of their own, so that equal symbols mean equal sizes. Bodies of
/// If, Loop and Scan are inferred first; `nested` infers their nodes (empty: this function). Throws
/// Error(kModel) where operands do not fit, Error(kUnsupported) for an op without a schema.
void infer_with_schema(Graph& graph, NodeId node, int64_t opset = kOpsetVersion,
                       const InferNode& nested = {});

/// Checks number of operands, attributes and their types, and the element types of all operands and
/// results against the schema. Throws Error(kModel) that names the parameter. Unknown types are not
/// judged.
void check_node(const Graph& graph, NodeId node, int64_t opset = kOpsetVersion);

/// Is it a type that op-sets after 23 brought? Nodes from there keep it, and the kernels know it,
/// but no schema of op-set 23 does.
inline bool is_newer_type(DType dtype) { return dtype > DType::kF4E2M1; }

/// Attributes of an op that have a default, with it.
Attributes default_attributes(std::string_view domain, std::string_view op,
                              int64_t opset = kOpsetVersion);

/// The function body that the schema gives for this node, if it has one; defaults of attributes are
/// filled in. The body is in the op-sets of Function::opsets.
std::optional<Function> schema_function_body(const Graph& graph, NodeId node, int64_t opset);

enum class ParameterOption : uint8_t { kSingle, kOptional, kVariadic };

/// One formal input or output.
struct SchemaParameter {
  std::string name;
  std::string type_variable;  // `T`, or the type itself where it is fixed: `tensor(int64)`
  std::vector<DType> dtypes;  // element types that tensors may have here, ascending
  bool tensor = true;         // may a plain tensor stand here?
  ParameterOption option = ParameterOption::kSingle;
  bool homogeneous = true;             // of a variadic one
  int min_arity = 1;                   // of a variadic one
  std::optional<bool> differentiable;  // nothing: ONNX does not say
};

struct SchemaAttribute {
  std::string name;
  int onnx_type = 0;  // AttributeProto.AttributeType
  bool required = false;
};

/// One version of an op.
struct SchemaVersion {
  int64_t since = 1;
  bool deprecated = false;
  bool has_function = false;  // ONNX gives a body in other ops
  std::vector<SchemaParameter> inputs, outputs;
  std::vector<SchemaAttribute> attributes;  // by name
};

struct SchemaOp {
  std::string domain, name;
  std::vector<SchemaVersion> versions;  // ascending; the last is the newest

  /// The version that is valid in an op-set; null if the op is younger.
  const SchemaVersion* in(int64_t opset) const;
};

/// The version of one of ONNX's own ops that is valid in an op-set; nothing if there is none there.
/// Describes just this one: `all_schema_ops` takes megabytes.
std::optional<SchemaVersion> find_schema_version(std::string_view op, int64_t opset);

/// All ops of all domains that the library defines, by domain and name.
const std::vector<SchemaOp>& all_schema_ops();

/// The newest op-set of a domain; 0 for domains that ONNX does not define.
int64_t newest_opset(std::string_view domain);

}  // namespace halfnote
