#include "compiler/ir/text/notes.h"

#include <array>

#include "compiler/ir/text/literals.h"

namespace halfnote::text {
namespace {

constexpr std::string_view kTrainable = "trainable", kFrozen = "frozen";
constexpr std::string_view kNodeWords[] = {"role",   "precision", "reason",
                                           "origin", "scale",     "meta"};
constexpr std::string_view kValueWords[] = {kTrainable, kFrozen, "scale"};
constexpr std::string_view kGraphWords[] = {"name", "doc"};

/// Words that say all by themselves.
bool is_flag(std::string_view word) { return word == kTrainable || word == kFrozen; }

/// Collects `key=value` words.
class Note {
 public:
  void add(std::string_view key, std::string_view value) {
    text_ += text_.empty() ? "  # " : " ";
    text_ += key;
    text_ += "=";
    text_ += value;
  }
  void add_string(std::string_view key, std::string_view value) {
    if (!value.empty()) add(key, quoted(value));
  }
  void add_flag(std::string_view word) {
    text_ += text_.empty() ? "  # " : " ";
    text_ += word;
  }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

/// The powers of the loss scale of the results, up to the last that is not 0.
std::string scale_list(const Graph& graph, NodeId node) {
  std::string list;
  std::string pending;
  for (ValueId output : graph.outputs(node)) {
    const int power = output.valid() ? graph.value(output).scale_power : 0;
    pending += (list.empty() && pending.empty() ? "" : ",") + std::to_string(power);
    if (power == 0) continue;
    list += pending;
    pending.clear();
  }
  return list;
}

/// Does the comment speak our language? It does when it begins with `word=` or `trainable`. A word
/// that is nearly one of ours is an error rather than a lost note.
template <class Words>
bool is_note(const Lexer& lexer, const Words& words) {
  const std::string_view comment = lexer.last().comment;
  const size_t start = comment.find_first_not_of(" \t");
  if (start == comment.npos || !starts_word(comment[start])) return false;
  size_t end = start;
  while (end < comment.size() && continues_word(comment[end])) ++end;
  const std::string_view word = comment.substr(start, end - start);
  const bool assigns = end < comment.size() && comment[end] == '=';
  for (std::string_view known : words) {
    if (word == known && (assigns || is_flag(word))) return true;
  }
  if (!assigns) return false;
  const std::string_view near = closest(word, words);
  if (near.empty()) return false;
  const Lexer inside = lexer.inside(comment);
  throw inside.error("a comment begins with an unknown word", inside.peek().offset)
      .expected("\"" + std::string(near) + "=\" or other text", "\"" + std::string(word) + "=\"");
}

/// Calls `read(key, lexer)` for each word of the note, which must read the value behind `=`; false:
/// the key is unknown.
template <class Words, class Read>
void parse_note(const Lexer& outer, const Words& words, Read&& read) {
  if (!is_note(outer, words)) return;
  Lexer lexer = outer.inside(outer.last().comment);
  std::vector<std::string_view> seen;
  while (!lexer.at_end()) {
    const Token key = lexer.peek();
    bool known = false;
    for (std::string_view word : words) known |= key.is_word(word);
    if (!known) {
      std::string list;
      for (std::string_view word : words) list += (list.empty() ? "" : ", ") + std::string(word);
      lexer.fail_expected("one of " + list);
    }
    for (std::string_view word : seen) {
      if (word == key.text) lexer.fail("\"" + std::string(word) + "\" is given twice");
    }
    seen.push_back(key.text);
    lexer.take();
    if (!is_flag(key.text)) lexer.expect("=");
    read(key.text, lexer);
  }
}

std::string parse_word(Lexer& lexer, std::string_view what) {
  if (!lexer.peek().is(TokenKind::kWord)) lexer.fail_expected(what);
  return std::string(lexer.peek().text);
}

Role parse_role(Lexer& lexer) {
  const auto role = role_from_name(parse_word(lexer, "a role"));
  if (!role) lexer.fail_expected("forward, loss, backward, scaling or optimizer");
  lexer.take();
  return *role;
}

DType parse_precision(Lexer& lexer) {
  const auto dtype = dtype_from_name(parse_word(lexer, "an element type"));
  if (!dtype) lexer.fail_expected("an element type (f32, bf16, f16)");
  lexer.take();
  return *dtype;
}

int8_t parse_power(Lexer& lexer) { return static_cast<int8_t>(parse_integer(lexer, -128, 127)); }

void parse_scales(Lexer& lexer, Graph& graph, NodeId node) {
  size_t slot = 0;
  do {
    const size_t offset = lexer.peek().offset;
    const int8_t power = parse_power(lexer);
    const ValueId output = graph.output(node, slot++);
    if (output.valid()) {
      graph.value(output).scale_power = power;
    } else if (power != 0) {
      lexer.fail("\"scale\" names a result that the node does not have", offset);
    }
  } while (lexer.matches(","));
}

void parse_metadata(Lexer& lexer, Node& node) {
  lexer.expect("{");
  do {
    std::string key = parse_string(lexer);
    lexer.expect(":");
    node.metadata.emplace_back(std::move(key), parse_string(lexer));
  } while (lexer.matches(","));
  lexer.expect("}");
}

}  // namespace

std::string node_note(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  Note note;
  if (node.role != Role::kForward) note.add("role", role_name(node.role));
  if (node.precision.dtype != DType::kUndefined) {
    note.add("precision", short_name(node.precision.dtype));
  }
  note.add_string("reason", node.precision.reason);
  note.add_string("origin", node.origin);
  const std::string scales = scale_list(graph, id);
  if (!scales.empty()) note.add("scale", scales);
  if (!node.metadata.empty()) {
    std::string pairs;
    for (const auto& [key, value] : node.metadata) {
      pairs += (pairs.empty() ? "{" : ", ") + quoted(key) + ": " + quoted(value);
    }
    note.add("meta", pairs + "}");
  }
  return std::move(note).text();
}

std::string value_note(const Value& value) {
  Note note;
  if (value.trainable) note.add_flag(kTrainable);
  if (value.frozen) note.add_flag(kFrozen);
  if (value.scale_power != 0) note.add("scale", std::to_string(value.scale_power));
  return std::move(note).text();
}

std::string graph_note(std::string_view name, std::string_view doc) {
  Note note;
  note.add_string("name", name);
  note.add_string("doc", doc);
  return std::move(note).text();
}

void parse_node_note(const Lexer& lexer, Graph& graph, NodeId id) {
  Node& node = graph.node(id);
  parse_note(lexer, kNodeWords, [&](std::string_view key, Lexer& inside) {
    if (key == "role") node.role = parse_role(inside);
    if (key == "precision") node.precision.dtype = parse_precision(inside);
    if (key == "reason") node.precision.reason = parse_string(inside);
    if (key == "origin") node.origin = parse_string(inside);
    if (key == "scale") parse_scales(inside, graph, id);
    if (key == "meta") parse_metadata(inside, node);
  });
}

void parse_value_note(const Lexer& lexer, Value& value) {
  parse_note(lexer, kValueWords, [&](std::string_view key, Lexer& inside) {
    if (key == "scale") {
      value.scale_power = parse_power(inside);
    } else if (value.kind == ValueKind::kInitializer) {
      (key == kFrozen ? value.frozen : value.trainable) = true;
    } else {
      inside.fail("only an initializer is " + std::string(key), inside.last().offset);
    }
  });
}

void parse_graph_note(const Lexer& lexer, Graph& graph) {
  parse_note(lexer, kGraphWords, [&](std::string_view key, Lexer& inside) {
    std::string& field = key == "doc" ? graph.doc : graph.name;
    field = parse_string(inside);
  });
}

}  // namespace halfnote::text
