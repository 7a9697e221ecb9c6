// Graphs and regions: inputs, outputs, initializers, states, and the names that are visible where.
#include "compiler/ir/text/graph_parser.h"

#include "compiler/ir/text/literals.h"
#include "compiler/ir/text/notes.h"

namespace halfnote::text {

void GraphParser::parse_graph() {
  Scope scope{graph_.main(), nullptr, {}, {}};
  depth_ = 1;
  parse_region(scope);
}

void GraphParser::parse_function_body() {
  Scope scope{graph_.main(), nullptr, {}, {}};
  parse_signature_and_body(scope);
}

void GraphParser::parse_region(Scope& scope) {
  graph_.region_name(scope.region) = parse_name(lexer_, "the name of a graph");
  parse_signature_and_body(scope);
}

void GraphParser::parse_signature_and_body(Scope& scope) {
  scope.outer = scope_;
  scope_ = &scope;
  if (lexer_.peek().is_mark("(")) parse_inputs(scope);
  lexer_.expect("=>");
  const std::vector<TypedName> outputs = parse_outputs(scope);
  if (lexer_.matches("<")) parse_value_list(scope);
  lexer_.expect("{");
  if (scope.region == graph_.main()) parse_graph_note(lexer_, graph_);
  parse_statements(scope);
  std::vector<ValueId> values;
  for (const TypedName& output : outputs) {
    const ValueId id = lookup(output.name, output.offset);
    Value& value = graph_.value(id);
    check_type(value.type, output.type, output);
    if (value.type.kind == TypeKind::kUnknown) value.type = output.type;
    values.push_back(id);
  }
  graph_.set_outputs(scope.region, std::move(values));
  scope_ = scope.outer;
}

GraphParser::TypedName GraphParser::parse_typed_name(std::string_view what) {
  TypedName item;
  if (next_is_type(lexer_)) item.type = parse_type(lexer_);
  item.offset = lexer_.peek().offset;
  item.name = parse_name(lexer_, what);
  if (item.name.empty()) lexer_.fail("a name is empty", item.offset);
  return item;
}

/// `([type] name [= value], …)`: an input with a value is an initializer.
void GraphParser::parse_inputs(Scope& scope) {
  lexer_.expect("(");
  if (lexer_.matches(")")) return;
  do {
    const TypedName item = parse_typed_name("the name of an input");
    ValueId id;
    if (lexer_.matches("=")) {
      id = add_initializer(scope, item);
    } else {
      id = graph_.add_input(scope.region, item.name, item.type);
      define(scope, item.name, id, item.offset);
    }
    parse_value_note(lexer_, graph_.value(id));
    if (!lexer_.peek().is_mark(",")) break;
    lexer_.take();
    parse_value_note(lexer_, graph_.value(id));
  } while (true);
  lexer_.expect(")");
}

std::vector<GraphParser::TypedName> GraphParser::parse_outputs(Scope& scope) {
  std::vector<TypedName> outputs;
  lexer_.expect("(");
  if (lexer_.matches(")")) return outputs;
  do {
    outputs.push_back(parse_typed_name("the name of an output"));
    declare(scope, outputs.back());
  } while (lexer_.matches(","));
  lexer_.expect(")");
  return outputs;
}

/// `<[type] name, type name = value, …>`: types of values and initializers.
void GraphParser::parse_value_list(Scope& scope) {
  if (lexer_.matches(">")) return;
  do {
    const TypedName item = parse_typed_name("the name of a value");
    if (!lexer_.matches("=")) {
      declare(scope, item);
      if (!lexer_.matches(",")) break;
      continue;
    }
    Value& value = graph_.value(add_initializer(scope, item));
    parse_value_note(lexer_, value);
    if (!lexer_.matches(",")) break;
    parse_value_note(lexer_, value);
  } while (true);
  lexer_.expect(">");
}

/// What stands behind `=`: elements in braces, or `@name` of the shared graph.
Tensor GraphParser::parse_initial_value(const TypedName& item) {
  if (!lexer_.matches("@")) {
    lexer_.count_initializer(item.offset);
    return parse_elements(lexer_, item.type);
  }
  const size_t offset = lexer_.peek().offset;
  const std::string name = parse_name(lexer_, "the name of an initializer of the model's graph");
  if (shared_ == nullptr) lexer_.fail("\"@\" is for the initializers of a training step", offset);
  const ValueId id = shared_->find(name);
  if (!id.valid() || shared_->value(id).kind != ValueKind::kInitializer) {
    lexer_.fail("the model's graph has no initializer " + quoted(name), offset);
  }
  const Value& original = shared_->value(id);
  if (item.type.kind != TypeKind::kUnknown && !(item.type == original.type)) {
    throw lexer_
        .error("the type of " + quoted(item.name) + " is not that of " + quoted(name), offset)
        .expected(to_string(original.type), to_string(item.type));
  }
  return original.tensor;
}

ValueId GraphParser::add_initializer(Scope& scope, const TypedName& item) {
  Tensor tensor = parse_initial_value(item);
  // ONNX before IR version 4 lists initializers among the inputs: there it is an initializer only.
  const auto known = scope.values.find(item.name);
  if (known != scope.values.end()) {
    const ValueId input = known->second;
    if (graph_.value(input).kind == ValueKind::kInitializer) {
      lexer_.fail("the name " + quoted(item.name) + " is defined twice", item.offset);
    }
    check_type(ValueType::tensor(tensor.dtype()), graph_.value(input).type, item);
    graph_.remove_value(input);
    scope.values.erase(known);
  }
  const ValueId id = graph_.add_initializer(scope.region, item.name, std::move(tensor));
  define(scope, item.name, id, item.offset);
  return id;
}

void GraphParser::define(Scope& scope, const std::string& name, ValueId value, size_t offset) {
  if (!scope.values.emplace(name, value).second) {
    lexer_.fail("the name " + quoted(name) + " is defined twice", offset);
  }
}

void GraphParser::declare(Scope& scope, const TypedName& item) {
  if (item.type.kind == TypeKind::kUnknown) return;
  const auto [entry, is_new] = scope.declared.emplace(item.name, item.type);
  if (!is_new) check_type(entry->second, item.type, item);
}

/// A shape may be told more or less exactly in several places, an element type may not differ.
void GraphParser::check_type(const ValueType& given, const ValueType& declared,
                             const TypedName& item) const {
  if (given.kind == TypeKind::kUnknown || declared.kind == TypeKind::kUnknown) return;
  if (given.kind == declared.kind && given.dtype == declared.dtype) return;
  throw lexer_.error("two types are given for " + quoted(item.name), item.offset)
      .expected(to_string(given), to_string(declared));
}

ValueId GraphParser::lookup(const std::string& name, size_t offset) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->outer) {
    const auto found = scope->values.find(name);
    if (found != scope->values.end()) return found->second;
  }
  std::vector<std::string_view> names;
  for (const Scope* scope = scope_; scope != nullptr && names.size() < 1000; scope = scope->outer) {
    for (const auto& entry : scope->values) {
      if (name.size() < 100 && entry.first.size() < 100) names.push_back(entry.first);
    }
  }
  Error error = lexer_.error("the value " + quoted(name) + " is not defined here", offset);
  // The candidates come from a hash table: sorted, so that the message is always the same.
  std::sort(names.begin(), names.end());
  const std::string_view near = closest(name, names);
  if (near.empty()) throw error;
  throw std::move(error).hint("is it " + quoted(near) + "?");
}

void GraphParser::parse_statements(Scope& scope) {
  while (!lexer_.matches("}")) {
    if (lexer_.at_end()) lexer_.fail_expected("a node or \"}\"");
    const bool is_state =
        lexer_.peek().is_word("state") &&
        (lexer_.peek_second().is(TokenKind::kWord) || lexer_.peek_second().is(TokenKind::kString));
    if (is_state) {
      parse_state(scope);
    } else {
      parse_node(scope);
    }
  }
}

/// `state weight w -> w_new`
void GraphParser::parse_state(Scope& scope) {
  const size_t offset = lexer_.take().offset;
  if (scope.region != graph_.main()) lexer_.fail("a subgraph has no states", offset);
  const auto kind = state_kind_from_name(lexer_.peek().text);
  if (!kind) {
    lexer_.fail_expected("weight, moment, statistic, scaler, counter, accumulator or random");
  }
  lexer_.take();
  const size_t at_current = lexer_.peek().offset;
  const std::string current_name = parse_name(lexer_, "the name of an initializer");
  const ValueId current = lookup(current_name, at_current);
  if (graph_.value(current).kind != ValueKind::kInitializer) {
    lexer_.fail(quoted(current_name) + " is no initializer", at_current);
  }
  if (graph_.state_of(current)) {
    lexer_.fail(quoted(current_name) + " is a state already", at_current);
  }
  lexer_.expect("->");
  const size_t at_next = lexer_.peek().offset;
  const ValueId next = lookup(parse_name(lexer_, "the name of the new value"), at_next);
  graph_.add_state(current, next, *kind);
}

}  // namespace halfnote::text
