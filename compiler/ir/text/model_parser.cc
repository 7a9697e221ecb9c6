// Models: header, graph, functions, training steps.
#include <limits>

#include "compiler/ir/text.h"
#include "compiler/ir/text/graph_parser.h"
#include "compiler/ir/text/literals.h"

namespace halfnote {
namespace text {
namespace {

int64_t parse_version(Lexer& lexer) {
  return parse_integer(lexer, 0, std::numeric_limits<int64_t>::max());
}

/// `["" : 23, "ai.halfnote" : 1]`
std::map<std::string, int64_t> parse_opsets(Lexer& lexer) {
  std::map<std::string, int64_t> opsets;
  lexer.expect("[");
  if (lexer.matches("]")) return opsets;
  do {
    const size_t offset = lexer.peek().offset;
    const std::string domain = parse_string(lexer);
    lexer.expect(":");
    if (!opsets.emplace(domain, parse_version(lexer)).second) {
      lexer.fail("the domain " + quoted(domain) + " is imported twice", offset);
    }
  } while (lexer.matches(","));
  lexer.expect("]");
  return opsets;
}

std::map<std::string, std::string> parse_metadata(Lexer& lexer) {
  std::map<std::string, std::string> metadata;
  lexer.expect("[");
  if (lexer.matches("]")) return metadata;
  do {
    const size_t offset = lexer.peek().offset;
    const std::string key = parse_string(lexer);
    lexer.expect(":");
    if (!metadata.emplace(key, parse_string(lexer)).second) {
      lexer.fail("the metadata " + quoted(key) + " is given twice", offset);
    }
  } while (lexer.matches(","));
  lexer.expect("]");
  return metadata;
}

/// `<key: value, …>`; `read(key)` reads a value, false: no such key.
template <class Read>
void parse_header(Lexer& lexer, std::string_view keys, Read&& read) {
  if (!lexer.matches("<")) return;
  do {
    const Token key = lexer.peek();
    if (!key.is(TokenKind::kWord)) lexer.fail_expected(keys);
    lexer.take();
    lexer.expect(":");
    if (read(key.text)) continue;
    throw lexer.error("unknown key", key.offset)
        .expected(std::string(keys), quoted(key.text.substr(0, 40)));
  } while (lexer.matches(","));
  lexer.expect(">");
}

void parse_model_header(Lexer& lexer, Model& model) {
  constexpr std::string_view kKeys =
      "ir_version, opset_import, producer_name, producer_version, domain, model_version, "
      "doc_string or metadata_props";
  parse_header(lexer, kKeys, [&](std::string_view key) {
    if (key == "ir_version") return model.ir_version = parse_version(lexer), true;
    if (key == "opset_import") return model.opsets = parse_opsets(lexer), true;
    if (key == "producer_name") return model.producer_name = parse_string(lexer), true;
    if (key == "producer_version") return model.producer_version = parse_string(lexer), true;
    if (key == "domain") return model.domain = parse_string(lexer), true;
    if (key == "model_version") return model.model_version = parse_version(lexer), true;
    if (key == "doc_string") return model.doc = parse_string(lexer), true;
    if (key == "metadata_props") return model.metadata = parse_metadata(lexer), true;
    return false;
  });
}

/// `<attribute, attribute: type = default, …>` of a function.
void parse_function_attributes(Lexer& lexer, Function& function, GraphParser& body) {
  if (!lexer.matches("<")) return;
  do {
    const size_t offset = lexer.peek().offset;
    std::string name = parse_name(lexer, "the name of an attribute");
    bool twice = false;
    for (const std::string& other : function.attributes) twice |= other == name;
    for (const auto& entry : function.default_attributes) twice |= entry.first == name;
    if (twice) lexer.fail("the attribute " + quoted(name) + " is given twice", offset);
    if (lexer.peek().is_mark(":") || lexer.peek().is_mark("=")) {
      function.default_attributes.emplace_back(std::move(name), body.parse_attribute_value());
    } else {
      function.attributes.push_back(std::move(name));
    }
  } while (lexer.matches(","));
  lexer.expect(">");
}

void parse_function(Lexer& lexer, Function& function) {
  parse_header(lexer, "opset_import, doc_string, domain or overload", [&](std::string_view key) {
    if (key == "opset_import") return function.opsets = parse_opsets(lexer), true;
    if (key == "doc_string") return parse_string(lexer), true;  // has no place in the IR
    if (key == "domain") return function.domain = parse_string(lexer), true;
    if (key == "overload") return function.overload = parse_string(lexer), true;
    return false;
  });
  function.name = parse_name(lexer, "the name of a function");
  GraphParser body(lexer, function.body, nullptr);
  parse_function_attributes(lexer, function, body);
  body.parse_function_body();
}

/// `[w = w_first, …]`
void parse_binding(Lexer& lexer, TrainingStep& step) {
  lexer.expect("[");
  if (lexer.matches("]")) return;
  do {
    std::string target = parse_name(lexer, "the name of an initializer");
    lexer.expect("=");
    step.initialization_binding.emplace_back(
        std::move(target), parse_name(lexer, "the name of an output of the initialization"));
  } while (lexer.matches(","));
  lexer.expect("]");
}

void parse_step(Lexer& lexer, const Graph& shared, TrainingStep& step) {
  const size_t offset = lexer.take().offset;  // training_info
  step.name = parse_name(lexer, "the name of a training step");
  lexer.expect("{");
  std::vector<std::string_view> seen;
  while (!lexer.matches("}")) {
    const Token key = lexer.peek();
    for (std::string_view word : seen) {
      if (word == key.text) lexer.fail("\"" + std::string(word) + "\" is given twice");
    }
    seen.push_back(key.text);
    const bool known = key.is_word("initialization") || key.is_word("initialization_binding") ||
                       key.is_word("algorithm");
    if (!known) {
      lexer.fail_expected("initialization, initialization_binding, algorithm or \"}\"");
    }
    lexer.take();
    lexer.expect(":");
    if (key.text == "initialization_binding") {
      parse_binding(lexer, step);
    } else if (key.text == "initialization") {
      GraphParser(lexer, step.initialization, nullptr).parse_graph();
    } else {
      GraphParser(lexer, step.graph, &shared).parse_graph();
    }
  }
  for (std::string_view word : seen) {
    if (word == "algorithm") return;
  }
  throw lexer.error("a training step has no algorithm", offset)
      .expected("\"algorithm: …\"", "none");
}

void check_size(std::string_view content, std::string_view file_name, uint64_t limit) {
  if (content.size() <= limit) return;
  throw Error(ErrorCode::kModel, "the model file is over the limit")
      .at({std::string(file_name), "", ""})
      .expected("at most " + std::to_string(limit) + " bytes", std::to_string(content.size()));
}

}  // namespace
}  // namespace text

Model parse_model(std::string_view content, std::string_view file_name,
                  const ImportLimits& limits) {
  text::check_size(content, file_name, limits.file_bytes);
  text::Lexer lexer(content, file_name, limits);
  Model model;
  model.source = file_name;
  text::parse_model_header(lexer, model);
  text::GraphParser(lexer, model.graph, nullptr).parse_graph();
  while (!lexer.at_end()) {
    const bool is_step = lexer.peek().is_word("training_info") &&
                         !lexer.peek_second().is_mark("(") && !lexer.peek_second().is_mark("<");
    if (is_step) {
      text::parse_step(lexer, model.graph, model.training.emplace_back());
    } else {
      text::parse_function(lexer, model.functions.emplace_back());
    }
  }
  return model;
}

Graph parse_graph(std::string_view content, std::string_view file_name,
                  const ImportLimits& limits) {
  text::check_size(content, file_name, limits.file_bytes);
  text::Lexer lexer(content, file_name, limits);
  Graph graph;
  text::GraphParser(lexer, graph, nullptr).parse_graph();
  if (!lexer.at_end()) lexer.fail_expected("the end of the text");
  return graph;
}

}  // namespace halfnote
