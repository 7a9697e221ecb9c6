// Builds graphs from tokens. Internal to compiler/ir/text.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "compiler/ir/graph.h"
#include "compiler/ir/text/attribute_types.h"
#include "compiler/ir/text/lexer.h"

namespace halfnote::text {

class GraphParser {
 public:
  /// Fills `graph`, which is empty. `shared` (may be null) is the graph whose initializers `@name`
  /// refers to.
  GraphParser(Lexer& lexer, Graph& graph, const Graph* shared)
      : lexer_(lexer), graph_(graph), shared_(shared) {}

  /// `name (inputs) => (outputs) <initializers> { nodes }`
  void parse_graph();
  /// The same without name: the rest of a function behind its attributes.
  void parse_function_body();
  /// `name [: type] = value`, for a node in the main region; used for the defaults of function
  /// attributes too.
  Attributes::Entry parse_attribute();
  /// `[: type] = value` behind a name.
  Attribute parse_attribute_value();

 private:
  /// The names of one region; those of the regions around it are visible too.
  struct Scope {
    RegionId region;
    Scope* outer = nullptr;
    std::unordered_map<std::string, ValueId> values;
    std::unordered_map<std::string, ValueType> declared;  // by outputs and value infos
  };
  /// `[type] name`, as written.
  struct TypedName {
    ValueType type;
    std::string name;
    size_t offset = 0;
  };

  // graph_parser.cc
  void parse_region(Scope& scope);
  void parse_signature_and_body(Scope& scope);
  void parse_inputs(Scope& scope);
  std::vector<TypedName> parse_outputs(Scope& scope);
  void parse_value_list(Scope& scope);
  void parse_statements(Scope& scope);
  void parse_state(Scope& scope);
  TypedName parse_typed_name(std::string_view what);
  ValueId add_initializer(Scope& scope, const TypedName& item);
  Tensor parse_initial_value(const TypedName& item);
  void define(Scope& scope, const std::string& name, ValueId value, size_t offset);
  void declare(Scope& scope, const TypedName& item);
  void check_type(const ValueType& given, const ValueType& declared, const TypedName& item) const;
  ValueId lookup(const std::string& name, size_t offset) const;

  // node_parser.cc
  void parse_node(Scope& scope);
  std::vector<TypedName> parse_results();
  std::vector<ValueId> parse_operands();
  void check_operands(size_t count, std::string_view what, size_t offset) const;
  void parse_op(NodeSpec& spec, std::string& overload);
  Attributes parse_attributes();
  Attribute parse_value(AttributeType expected);
  Attribute parse_list_value(AttributeType declared);
  Attribute parse_reference(AttributeType declared);
  AttributeType guess_type();
  Tensor parse_tensor();
  RegionId parse_subgraph();

  Lexer& lexer_;
  Graph& graph_;
  const Graph* shared_;
  Scope* scope_ = nullptr;  // the innermost open region
  int depth_ = 0;           // of open graphs; the body of a function is none
};

}  // namespace halfnote::text
