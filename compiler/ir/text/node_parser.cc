// Nodes and their attributes: `[name] results = domain.op:overload <attributes> (operands)`,
// attributes also behind the operands.
#include <limits>

#include "compiler/ir/text/graph_parser.h"
#include "compiler/ir/text/literals.h"
#include "compiler/ir/text/notes.h"

namespace halfnote::text {
namespace {

constexpr size_t kMaxOverload = 4096;

/// The values of a list of one kind, as an attribute.
template <class T, class Parse>
Attribute list_of(Lexer& lexer, Parse&& parse) {
  std::vector<T> values;
  if (lexer.peek().is_mark("]")) return values;
  do {
    values.push_back(parse());
  } while (lexer.matches(","));
  return values;
}

int64_t parse_any_integer(Lexer& lexer) {
  return parse_integer(lexer, std::numeric_limits<int64_t>::min(),
                       std::numeric_limits<int64_t>::max());
}

}  // namespace

void GraphParser::parse_node(Scope& scope) {
  const size_t offset = lexer_.peek().offset;
  NodeSpec spec;
  std::string overload;
  if (lexer_.matches("[")) {
    if (!lexer_.peek().is_mark("]")) spec.name = parse_name(lexer_, "the name of a node");
    lexer_.expect("]");
  }
  const std::vector<TypedName> results = parse_results();
  lexer_.expect("=");
  parse_op(spec, overload);
  if (lexer_.peek().is_mark("<")) spec.attributes = parse_attributes();
  spec.inputs = parse_operands();
  if (spec.attributes.empty() && lexer_.peek().is_mark("<")) spec.attributes = parse_attributes();
  lexer_.count_node(offset);
  std::vector<std::string> names;
  for (const TypedName& result : results) {
    // The graph reads "-" as an absent result: such a name is given afterwards.
    names.push_back(result.name.empty() ? "-" : result.name == "-" ? "minus" : result.name);
  }
  const NodeId node = graph_.create(std::move(spec), std::move(names), graph_.end(scope.region));
  graph_.node(node).overload = std::move(overload);
  for (size_t i = 0; i < results.size(); ++i) {
    const TypedName& result = results[i];
    if (result.name.empty()) continue;
    const ValueId id = graph_.output(node, i);
    if (result.name == "-") graph_.rename(id, graph_.unique_name("-"));
    define(scope, result.name, id, result.offset);
    const auto declared = scope.declared.find(result.name);
    const ValueType& other = declared == scope.declared.end() ? result.type : declared->second;
    check_type(result.type, other, result);
    graph_.value(id).type = result.type.kind == TypeKind::kUnknown ? other : result.type;
  }
  parse_node_note(lexer_, graph_, node);
}

void GraphParser::check_operands(size_t count, std::string_view what, size_t offset) const {
  const uint64_t limit = lexer_.limits().node_operands;
  if (count >= limit) lexer_.fail_over(what, limit, offset);
}

/// `[type] name, …` up to `=`. As in ONNX, an absent result is "", or nothing in front of a comma.
std::vector<GraphParser::TypedName> GraphParser::parse_results() {
  std::vector<TypedName> results;
  while (!lexer_.peek().is_mark("=")) {
    TypedName item;
    if (next_is_type(lexer_)) item.type = parse_type(lexer_);
    item.offset = lexer_.peek().offset;
    if (!lexer_.peek().is_mark(",")) item.name = parse_name(lexer_, "a result of a node");
    check_operands(results.size(), "number of outputs", item.offset);
    results.push_back(std::move(item));
    if (!lexer_.matches(",")) break;
  }
  return results;
}

/// `(name, …)`; absent ones as in `parse_results`.
std::vector<ValueId> GraphParser::parse_operands() {
  std::vector<ValueId> operands;
  lexer_.expect("(");
  while (!lexer_.peek().is_mark(")")) {
    const size_t offset = lexer_.peek().offset;
    std::string name;
    if (!lexer_.peek().is_mark(",")) name = parse_name(lexer_, "an operand");
    check_operands(operands.size(), "number of inputs", offset);
    operands.push_back(name.empty() ? ValueId{} : lookup(name, offset));
    if (!lexer_.matches(",")) break;
  }
  lexer_.expect(")");
  return operands;
}

void GraphParser::parse_op(NodeSpec& spec, std::string& overload) {
  const size_t offset = lexer_.peek().offset;
  spec.op = parse_name(lexer_, "an operator");
  while (lexer_.matches(".")) {
    spec.domain = spec.domain.empty() ? spec.op : SharedText(spec.domain + "." + spec.op);
    spec.op = parse_name(lexer_, "an operator");
  }
  if (spec.op.empty()) lexer_.fail("the name of an operator is empty", offset);
  if (!lexer_.matches(":")) return;
  overload = parse_name(lexer_, "an overload");
  if (overload.size() > kMaxOverload) lexer_.fail("the name of an overload is too long", offset);
}

// --- attributes ----------------------------------------------------------------------------------

Attributes GraphParser::parse_attributes() {
  Attributes attributes;
  lexer_.expect("<");
  do {
    const size_t offset = lexer_.peek().offset;
    auto [name, value] = parse_attribute();
    if (attributes.has(name)) {
      lexer_.fail("the attribute " + quoted(name) + " is given twice", offset);
    }
    const uint64_t limit = lexer_.limits().attributes;
    if (attributes.size() >= limit) lexer_.fail_over("number of attributes", limit, offset);
    attributes.set(name, std::move(value));
  } while (lexer_.matches(","));
  lexer_.expect(">");
  return attributes;
}

Attributes::Entry GraphParser::parse_attribute() {
  const size_t offset = lexer_.peek().offset;
  std::string name = parse_name(lexer_, "the name of an attribute");
  if (name.empty()) lexer_.fail("the name of an attribute is empty", offset);
  return {std::move(name), parse_attribute_value()};
}

Attribute GraphParser::parse_attribute_value() {
  AttributeType declared = AttributeType::kUndefined;
  if (lexer_.matches(":")) {
    const std::string_view word = lexer_.peek().text;
    for (size_t i = 1; i < kAttributeTypeNames.size(); ++i) {
      if (kAttributeTypeNames[i] == word) declared = static_cast<AttributeType>(i);
    }
    if (declared == AttributeType::kUndefined) lexer_.fail_expected("the type of an attribute");
    lexer_.take();
  }
  lexer_.expect("=");
  if (lexer_.matches("@")) return parse_reference(declared);
  if (lexer_.peek().is_mark("[")) return parse_list_value(declared);
  if (element_type(declared) != AttributeType::kUndefined) lexer_.fail_expected("\"[\" of a list");
  return parse_value(declared == AttributeType::kUndefined ? guess_type() : declared);
}

Attribute GraphParser::parse_reference(AttributeType declared) {
  AttributeReference reference;
  reference.name = parse_name(lexer_, "the name of an attribute of the function");
  reference.onnx_type = static_cast<int>(declared);
  return reference;
}

/// The type of what stands here, where it is not declared.
AttributeType GraphParser::guess_type() {
  const Token& token = lexer_.peek();
  if (token.is(TokenKind::kInteger)) return AttributeType::kInt;
  if (token.is(TokenKind::kDecimal)) return AttributeType::kFloat;
  if (token.is(TokenKind::kString)) return AttributeType::kString;
  if (!token.is(TokenKind::kWord)) lexer_.fail_expected("the value of an attribute");
  if (is_float_word(token.text)) return AttributeType::kFloat;
  // A type: of a tensor if a value follows, else itself. ONNX tells them apart behind the type,
  // `parse_value` does too.
  if (is_type_word(token.text)) return AttributeType::kTensor;
  return AttributeType::kGraph;
}

Attribute GraphParser::parse_value(AttributeType expected) {
  const size_t offset = lexer_.peek().offset;
  switch (expected) {
    case AttributeType::kInt:
      return parse_any_integer(lexer_);
    case AttributeType::kFloat:
      return parse_f32(lexer_);
    case AttributeType::kString:
      return parse_string(lexer_);
    case AttributeType::kGraph:
      return parse_subgraph();
    case AttributeType::kTypeProto:
      return parse_type(lexer_);
    case AttributeType::kTensor:
      break;
    default:
      lexer_.fail(
          "attributes of type " + std::string(attribute_type_name(expected)) + " are not supported",
          offset, ErrorCode::kUnsupported);
  }
  const ValueType type = parse_type(lexer_);
  const Token& next = lexer_.peek();
  const bool has_name = next.is(TokenKind::kWord) || next.is(TokenKind::kString);
  const bool has_value = has_name || next.is_mark("{") || next.is_mark("=") || next.is_mark("[") ||
                         next.is_mark("...");
  if (!has_value) return type;
  if (has_name) parse_name(lexer_, "the name of a tensor");  // says nothing
  lexer_.matches("=");
  return parse_elements(lexer_, type);
}

Attribute GraphParser::parse_list_value(AttributeType declared) {
  const size_t offset = lexer_.peek().offset;
  lexer_.expect("[");
  AttributeType element = element_type(declared);
  if (declared == AttributeType::kUndefined) {
    if (lexer_.peek().is_mark("]"))
      lexer_.fail("an empty list needs a type, as in \"axes: ints = []\"");
    element = guess_type();
  } else if (element == AttributeType::kUndefined) {
    throw lexer_.error("an attribute that is no list has a list as its value", offset)
        .expected(std::string(attribute_type_name(declared)), "\"[\"");
  }
  Attribute list;
  switch (element) {
    case AttributeType::kInt:
      list = list_of<int64_t>(lexer_, [&] { return parse_any_integer(lexer_); });
      break;
    case AttributeType::kFloat:
      list = list_of<float>(lexer_, [&] { return parse_f32(lexer_); });
      break;
    case AttributeType::kString:
      list = list_of<std::string>(lexer_, [&] { return parse_string(lexer_); });
      break;
    case AttributeType::kTensor:
      list = list_of<Tensor>(lexer_, [&] { return parse_tensor(); });
      break;
    case AttributeType::kGraph:
      list = list_of<RegionId>(lexer_, [&] { return parse_subgraph(); });
      break;
    default:
      lexer_.fail(
          "attributes of type " + std::string(attribute_type_name(declared)) + " are not supported",
          offset, ErrorCode::kUnsupported);
  }
  lexer_.expect("]");
  return list;
}

Tensor GraphParser::parse_tensor() {
  const Attribute value = parse_value(AttributeType::kTensor);
  if (const auto* tensor = std::get_if<Tensor>(&value)) return *tensor;
  lexer_.fail_expected("the elements of a tensor");
}

RegionId GraphParser::parse_subgraph() {
  const int limit = lexer_.limits().graph_nesting;
  if (depth_ >= limit) {
    lexer_.fail_over("nesting of graphs", static_cast<uint64_t>(limit), lexer_.peek().offset);
  }
  if (scope_ == nullptr) {
    lexer_.fail("a function attribute cannot have a graph as its default", lexer_.peek().offset,
                ErrorCode::kUnsupported);
  }
  ++depth_;
  Scope scope{graph_.add_region(scope_->region), nullptr, {}, {}};
  parse_region(scope);
  --depth_;
  return scope.region;
}

}  // namespace halfnote::text
