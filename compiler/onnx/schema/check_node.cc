// A node against its schema: arity, attributes, and one consistent choice of type for each type
// variable.
#include <onnx/defs/schema.h>

#include <map>

#include "base/error.h"
#include "compiler/onnx/proto/attribute.h"
#include "compiler/onnx/proto/type.h"
#include "compiler/onnx/schema.h"
#include "compiler/onnx/schema/lookup.h"

namespace halfnote {
namespace {

using Schema = onnx::OpSchema;
using Formal = Schema::FormalParameter;

/// `f32, f16 or i64`: what a parameter may be, as short names; containers as ONNX spells them.
std::string allowed_types(const Formal& formal) {
  std::vector<std::string> names;
  for (const auto* name : formal.GetTypes()) names.push_back(*name);
  std::sort(names.begin(), names.end());
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Does the type say everything that a schema wants to know?
bool is_complete(const ValueType& type) {
  switch (type.kind) {
    case TypeKind::kUnknown:
      return false;
    case TypeKind::kTensor:
    case TypeKind::kSparseTensor:
      return type.dtype != DType::kUndefined;
    case TypeKind::kMap:
      return type.key != DType::kUndefined && type.element != nullptr && is_complete(*type.element);
    case TypeKind::kSequence:
    case TypeKind::kOptional:
      break;
  }
  return type.element != nullptr && is_complete(*type.element);
}

/// ONNX's one pointer for the type, such as that of `tensor(float)`.
onnx::DataType interned(const ValueType& type) {
  onnx::TypeProto proto;
  proto::write_type(type, proto);
  try {
    return onnx::Utils::DataTypeUtils::ToType(proto);
  } catch (const std::exception&) {
    throw Error(ErrorCode::kModel, "a type that ONNX does not have").expected("", to_string(type));
  }
}

class NodeChecker {
 public:
  NodeChecker(const Graph& graph, NodeId id, const Schema& schema)
      : graph_(graph), id_(id), node_(graph.node(id)), schema_(schema) {}

  void run() {
    check_count("inputs", graph_.inputs(id_), schema_.inputs(), schema_.min_input(),
                schema_.max_input());
    check_count("outputs", graph_.outputs(id_), schema_.outputs(), schema_.min_output(),
                schema_.max_output());
    check_attributes();
    check_types("input", graph_.inputs(id_), schema_.inputs());
    check_types("output", graph_.outputs(id_), schema_.outputs());
  }

 private:
  static const Formal& formal_of(const std::vector<Formal>& formals, size_t index) {
    return formals[std::min(index, formals.size() - 1)];
  }

  void check_count(const char* what, std::span<const ValueId> values,
                   const std::vector<Formal>& formals, int least, int most) const {
    const auto count = static_cast<int>(values.size());
    if (count < least || count > most) {
      const bool open = most == std::numeric_limits<int>::max();
      throw Error(ErrorCode::kModel, std::string("wrong number of ") + what)
          .expected("at least " + std::to_string(least) +
                        (open ? "" : ", at most " + std::to_string(most)),
                    std::to_string(count));
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const Formal& formal = formal_of(formals, i);
      if (values[i].valid() || formal.GetOption() != Schema::Single) continue;
      if (std::string_view(what) == "outputs") continue;  // a result that nobody wants
      throw Error(ErrorCode::kModel, "input \"" + formal.GetName() + "\" is missing");
    }
  }

  void check_attributes() const {
    const auto& known = schema_.attributes();
    for (const auto& [name, attribute] : node_.attributes) {
      const auto found = known.find(name);
      if (found == known.end()) {
        std::vector<std::string> names;
        for (const auto& [key, value] : known) names.push_back(key);
        std::sort(names.begin(), names.end());
        const std::string_view near = closest(name, names);
        throw Error(ErrorCode::kModel, "the operator has no attribute \"" + name + "\"")
            .hint(near.empty() ? "" : "did you mean \"" + std::string(near) + "\"?");
      }
      const int want = found->second.type;
      const int got = proto::attribute_type(attribute);
      const bool dense =
          want == onnx::AttributeProto::SPARSE_TENSOR && got == onnx::AttributeProto::TENSOR;
      if (want == got || dense) continue;
      throw Error(ErrorCode::kModel, "attribute \"" + name + "\" has the wrong type")
          .expected(std::string(proto::attribute_type_name(want)),
                    std::string(proto::attribute_type_name(got)));
    }
    for (const auto& [name, attribute] : known) {
      if (!attribute.required || node_.attributes.has(name)) continue;
      throw Error(ErrorCode::kModel, "attribute \"" + name + "\" is missing")
          .expected(std::string(proto::attribute_type_name(attribute.type)), "nothing");
    }
  }

  void check_types(const char* what, std::span<const ValueId> values,
                   const std::vector<Formal>& formals) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (!values[i].valid()) continue;
      const ValueType& type = graph_.value(values[i]).type;
      const bool untyped =
          type.kind == TypeKind::kUnknown || (type.is_tensor() && type.dtype == DType::kUndefined);
      if (untyped) continue;
      check_type(what, formal_of(formals, i), graph_.value(values[i]));
    }
  }

  void check_type(const char* what, const Formal& formal, const Value& value) {
    const onnx::DataType name = interned(value.type);
    if (!formal.GetTypes().contains(name)) {
      throw Error(ErrorCode::kModel, std::string(what) + " \"" + formal.GetName() +
                                         "\" has a type that the operator does not take")
          .expected(allowed_types(formal), *name)
          .hint("this is \"" + value.name + "\": Cast it, or export the model in another type");
    }
    const bool free = formal.GetOption() == Schema::Variadic && !formal.GetIsHomogeneous();
    if (free || !schema_.typeConstraintMap().contains(formal.GetTypeStr())) return;
    const auto [bound, first] =
        bindings_.emplace(formal.GetTypeStr(), Binding{&formal, name, &value});
    if (first || bound->second.type == name) return;
    throw Error(ErrorCode::kModel, std::string(what) + " \"" + formal.GetName() +
                                       "\" must have the type of \"" +
                                       bound->second.formal->GetName() + "\"")
        .expected(*bound->second.type, *name)
        .hint("Cast \"" + value.name + "\" to the type of \"" + bound->second.value->name + "\"" +
              (is_float(value.type.dtype) && is_float(bound->second.value->type.dtype)
                   ? ", or export the model in one float type, without autocast and .half()"
                   : ""));
  }

  const Graph& graph_;
  NodeId id_;
  const Node& node_;
  const Schema& schema_;
  struct Binding {
    const Formal* formal;
    onnx::DataType type;
    const Value* value;
  };
  std::map<std::string, Binding> bindings_;
};

}  // namespace

void check_node(const Graph& graph, NodeId node, int64_t opset) {
  try {
    NodeChecker(graph, node, proto::require_schema(graph.node(node), opset)).run();
  } catch (Error& error) {
    throw error.within(proto::place_of(graph, node));
  }
}

}  // namespace halfnote
