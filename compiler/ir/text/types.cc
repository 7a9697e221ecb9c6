// Types. As in ONNX text, `float` is a scalar, `float[]` a tensor of unknown rank.
#include <limits>

#include "compiler/ir/text/literals.h"

namespace halfnote::text {
namespace {

constexpr std::string_view kUnknownType = "?";

void append_shape(std::string& out, const std::optional<SymbolicShape>& shape) {
  if (!shape) {
    out += "[]";
    return;
  }
  if (shape->empty()) return;
  const char* separator = "[";
  for (const Dim& dim : *shape) {
    out += separator;
    separator = ",";
    if (dim.known()) {
      out += std::to_string(dim.value);
    } else if (dim.symbol.empty()) {
      out += "?";
    } else {
      out += is_identifier(dim.symbol) ? dim.symbol.str() : quoted(dim.symbol);
    }
  }
  out += "]";
}

Dim parse_dim(Lexer& lexer) {
  if (lexer.matches("?")) return Dim();
  const Token& token = lexer.peek();
  if (token.is(TokenKind::kInteger)) {
    const size_t offset = token.offset;
    const int64_t dim = parse_integer(lexer, 0, std::numeric_limits<int64_t>::max());
    const int64_t limit = lexer.limits().dim;
    if (dim > limit) lexer.fail_over("size of a dim", static_cast<uint64_t>(limit), offset);
    return Dim(dim);
  }
  std::string symbol = parse_name(lexer, "a dim: a number, a name or \"?\"");
  return symbol.empty() ? Dim() : Dim::named(std::move(symbol));
}

std::optional<SymbolicShape> parse_shape(Lexer& lexer) {
  if (!lexer.matches("[")) return SymbolicShape{};
  if (lexer.matches("]")) return std::nullopt;
  SymbolicShape shape;
  do {
    const auto limit = static_cast<size_t>(lexer.limits().rank);
    if (shape.size() == limit) lexer.fail_over("rank of a type", limit, lexer.peek().offset);
    shape.push_back(parse_dim(lexer));
  } while (lexer.matches(","));
  lexer.expect("]");
  return shape;
}

DType parse_dtype(Lexer& lexer) {
  const Token& token = lexer.peek();
  if (token.is_word("undefined")) {
    lexer.take();
    return DType::kUndefined;
  }
  const auto dtype = token.is(TokenKind::kWord) ? dtype_from_name(token.text) : std::nullopt;
  if (!dtype || onnx_name(*dtype) != token.text) lexer.fail_expected("an element type");
  lexer.take();
  return *dtype;
}

ValueType parse_nested(Lexer& lexer, int depth);

std::shared_ptr<const ValueType> parse_element(Lexer& lexer, int depth) {
  if (lexer.matches(kUnknownType)) return nullptr;
  return std::make_shared<const ValueType>(parse_nested(lexer, depth));
}

ValueType parse_container(Lexer& lexer, std::string_view word, int depth) {
  ValueType type;
  lexer.expect("(");
  if (word == "sparse_tensor") {
    type.kind = TypeKind::kSparseTensor;
    type.dtype = parse_dtype(lexer);
    type.shape = parse_shape(lexer);
  } else if (word == "map") {
    type.kind = TypeKind::kMap;
    type.key = parse_dtype(lexer);
    lexer.expect(",");
    type.element = parse_element(lexer, depth);
  } else {
    type.kind = word == "seq" ? TypeKind::kSequence : TypeKind::kOptional;
    type.element = parse_element(lexer, depth);
  }
  lexer.expect(")");
  return type;
}

ValueType parse_nested(Lexer& lexer, int depth) {
  const Token token = lexer.peek();
  const int limit = lexer.limits().type_nesting;
  if (depth > limit) {
    lexer.fail_over("nesting of types", static_cast<uint64_t>(limit), token.offset);
  }
  if (lexer.matches(kUnknownType)) return {};
  if (!token.is(TokenKind::kWord) || !is_type_word(token.text)) lexer.fail_expected("a type");
  const bool container = token.text == "seq" || token.text == "map" || token.text == "optional" ||
                         token.text == "sparse_tensor";
  if (container) {
    lexer.take();
    return parse_container(lexer, token.text, depth + 1);
  }
  ValueType type;
  type.kind = TypeKind::kTensor;
  type.dtype = parse_dtype(lexer);
  type.shape = parse_shape(lexer);
  return type;
}

void append_element(std::string& out, const std::shared_ptr<const ValueType>& element) {
  if (element == nullptr) {
    out += kUnknownType;
  } else {
    append_type(out, *element);
  }
}

}  // namespace

void append_type(std::string& out, const ValueType& type) {
  switch (type.kind) {
    case TypeKind::kUnknown:
      out += kUnknownType;
      return;
    case TypeKind::kTensor:
      out += onnx_name(type.dtype);
      append_shape(out, type.shape);
      return;
    case TypeKind::kSparseTensor:
      out += "sparse_tensor(";
      out += onnx_name(type.dtype);
      append_shape(out, type.shape);
      break;
    case TypeKind::kSequence:
      out += "seq(";
      append_element(out, type.element);
      break;
    case TypeKind::kOptional:
      out += "optional(";
      append_element(out, type.element);
      break;
    case TypeKind::kMap:
      out += "map(";
      out += onnx_name(type.key);
      out += ", ";
      append_element(out, type.element);
      break;
  }
  out += ")";
}

ValueType parse_type(Lexer& lexer) { return parse_nested(lexer, 1); }

bool next_is_type(Lexer& lexer) {
  const Token& token = lexer.peek();
  if (!token.is(TokenKind::kWord)) return false;
  if (token.text == "opaque" && lexer.peek_second().is_mark("(")) {
    lexer.fail("opaque types are not supported", token.offset, ErrorCode::kUnsupported);
  }
  if (!is_type_word(token.text)) return false;
  const Token& second = lexer.peek_second();
  return second.is(TokenKind::kWord) || second.is(TokenKind::kString) || second.is_mark("[") ||
         second.is_mark("(");
}

}  // namespace halfnote::text
