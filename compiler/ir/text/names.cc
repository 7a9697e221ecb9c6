// Names and strings. ONNX's strings know one escape, `\c` for the character c. We add `\xHH`, so
// that a text stays one line a node and shows nothing that a terminal would act on.
#include "base/dtype.h"
#include "compiler/ir/text/literals.h"

namespace halfnote::text {
namespace {

constexpr std::string_view kContainers[] = {"seq", "map", "optional", "sparse_tensor"};
constexpr char kHex[] = "0123456789abcdef";

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// Length of the well-formed UTF-8 sequence at the beginning; 0 if there is none.
size_t utf8_length(std::string_view s) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || s.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xed && byte(1) >= 0xa0;
  const bool too_large = lead == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

/// C1 controls (U+0080 to U+009F) and the marks that turn the direction of writing hide what a line
/// says.
bool is_hidden(std::string_view sequence) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(sequence[i]); };
  if (sequence.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (sequence.size() == 2) return byte(0) == 0xc2 && byte(1) < 0xa0;
  const bool general = sequence.size() == 3 && byte(0) == 0xe2;
  if (!general) return false;
  const bool turns = byte(1) == 0x80 &&
                     (byte(2) == 0x8e || byte(2) == 0x8f || (byte(2) >= 0xa8 && byte(2) <= 0xae));
  const bool isolates = byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9;
  return turns || isolates;
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
    const std::string_view sequence = raw.substr(i, length == 0 ? 1 : length);
    if (length == 0 || is_hidden(sequence)) {
      for (char c : sequence) {
        const auto byte = static_cast<unsigned char>(c);
        out += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      }
    } else {
      if (raw[i] == '"' || raw[i] == '\\') out += '\\';
      out += sequence;
    }
    i += sequence.size();
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
  if (name.size() > kMaxName) {
    throw lexer.error("a name is too long", offset)
        .expected("at most " + std::to_string(kMaxName) + " bytes", std::to_string(name.size()));
  }
  return name;
}

}  // namespace halfnote::text
