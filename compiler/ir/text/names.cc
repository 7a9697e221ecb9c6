// Names and strings. ONNX's strings know one escape, `\c` for the character c. We add `\xHH`, so
// that a text stays one line a node and shows nothing that a terminal would act on.
#include "base/dtype.h"
#include "base/text/printable.h"
#include "compiler/ir/text/literals.h"

namespace halfnote::text {
namespace {

constexpr std::string_view kContainers[] = {"seq", "map", "optional", "sparse_tensor"};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool starts_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

bool continues_word(char c) { return starts_word(c) || (c >= '0' && c <= '9'); }

bool is_identifier(std::string_view name) {
  if (name.empty() || !starts_word(name[0])) return false;
  for (char c : name) {
    if (!continues_word(c)) return false;
  }
  return true;
}

bool is_type_word(std::string_view word) {
  for (std::string_view container : kContainers) {
    if (word == container) return true;
  }
  const auto dtype = dtype_from_name(word);
  return word == "undefined" || (dtype && onnx_name(*dtype) == word);
}

std::string quoted(std::string_view raw) {
  std::string out = "\"";
  for (size_t i = 0; i < raw.size();) {
    const size_t length = utf8_length(raw.substr(i));
    const std::string_view character = raw.substr(i, length == 0 ? 1 : length);
    if (raw[i] == '"' || raw[i] == '\\') out += '\\';
    out += printable(character);
    i += character.size();
  }
  return out + '"';
}

std::string name_text(std::string_view name) {
  if (is_identifier(name) && !is_type_word(name) && !is_float_word(name)) return std::string(name);
  return quoted(name);
}

std::string parse_string(Lexer& lexer) {
  if (!lexer.peek().is(TokenKind::kString)) lexer.fail_expected("a string in quotes");
  const std::string_view raw = lexer.take().text;
  std::string result;
  result.reserve(raw.size());
  for (size_t i = 1; i + 1 < raw.size(); ++i) {
    if (raw[i] != '\\') {
      result += raw[i];
      continue;
    }
    ++i;
    const int high = raw[i] == 'x' && i + 3 < raw.size() ? hex_digit(raw[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(raw[i + 2]) : -1;
    if (low < 0) {
      result += raw[i];
      continue;
    }
    result += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return result;
}

std::string parse_name(Lexer& lexer, std::string_view what) {
  const size_t offset = lexer.peek().offset;
  std::string name;
  if (lexer.peek().is(TokenKind::kString)) {
    name = parse_string(lexer);
  } else if (lexer.peek().is(TokenKind::kWord)) {
    name = lexer.take().text;
  } else {
    lexer.fail_expected(what);
  }
  const uint64_t limit = lexer.limits().name_bytes;
  if (name.size() > limit) lexer.fail_over("length of a name", limit, offset);
  return name;
}

}  // namespace halfnote::text
