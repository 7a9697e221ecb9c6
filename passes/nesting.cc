#include "passes/nesting.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

namespace halfnote {
namespace {

/// The place behind the quoted text that begins at `at`; the end of the text if it is open.
size_t behind_quoted(std::string_view text, size_t at, std::string_view quote, bool escapes) {
  for (at += quote.size(); at < text.size(); ++at) {
    if (escapes && text[at] == '\\') {
      ++at;
    } else if (text.substr(at).starts_with(quote)) {
      return at + quote.size();
    }
  }
  return text.size();
}

/// The same for TOML's four kinds of strings. The closing mark of a string of several lines may
/// have up to two quotes of the content before it.
size_t behind_toml_string(std::string_view text, size_t at) {
  const char mark = text[at];
  const bool escapes = mark == '"';
  const std::string_view three = mark == '"' ? "\"\"\"" : "'''";
  if (!text.substr(at).starts_with(three)) return behind_quoted(text, at, {&mark, 1}, escapes);
  size_t end = behind_quoted(text, at, three, escapes);
  for (int i = 0; i < 2 && end < text.size() && text[end] == mark; ++i) ++end;
  return end;
}

/// Looks at keys only. A parse with a callback would walk what is made already whenever an object
/// ends, which takes minutes for the weights of a large model.
struct KeyWatch : nlohmann::json_sax<nlohmann::json> {
  struct Object {
    std::string key;  // the one that is being read
    std::unordered_set<std::string> seen;
  };
  std::vector<Object> open;
  std::string repeated;

  bool key(string_t& name) override {
    if (!repeated.empty()) return true;
    open.back().key = name;
    if (open.back().seen.insert(name).second) return true;
    for (const Object& object : open) repeated += (repeated.empty() ? "" : ".") + object.key;
    return true;
  }
  bool start_object(size_t) override {
    open.emplace_back();
    return true;
  }
  bool end_object() override {
    open.pop_back();
    return true;
  }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }
};

}  // namespace

bool json_nests_deeper(std::string_view text, int levels) {
  int depth = 0;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"') {
      at = behind_quoted(text, at, "\"", true);
      continue;
    }
    if ((c == '{' || c == '[') && ++depth > levels) return true;
    if (c == '}' || c == ']') --depth;
    ++at;
  }
  return false;
}

std::string repeated_json_key(std::string_view text) {
  KeyWatch watch;
  return nlohmann::json::sax_parse(text, &watch) ? watch.repeated : std::string();
}

std::string json_problem(std::string_view what) {
  if (what.starts_with("[json.")) what.remove_prefix(std::min(what.find("] ") + 2, what.size()));
  constexpr std::string_view kError = "parse error at ";
  if (what.starts_with(kError)) what.remove_prefix(kError.size());
  // `line 1, column 2: syntax error while parsing object key - unexpected …`
  const size_t syntax = what.find("syntax error while parsing "), dash = what.find(" - ");
  if (syntax == std::string_view::npos || dash == std::string_view::npos) return std::string(what);
  return std::string(what.substr(0, syntax)) + std::string(what.substr(dash + 3));
}

bool toml_key_longer(std::string_view text, int parts) {
  int dots = 0;  // since the last mark that ends a key
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"' || c == '\'') {
      at = behind_toml_string(text, at);
      continue;
    }
    if (c == '#') {
      at = std::min(text.find('\n', at), text.size());
      continue;
    }
    if (c == '.' && ++dots >= parts) return true;
    if (std::string_view("=,{}[]\n").find(c) != std::string_view::npos) dots = 0;
    ++at;
  }
  return false;
}

}  // namespace halfnote
