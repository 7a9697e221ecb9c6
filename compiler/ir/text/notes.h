// The parsed comments of the text: `# role=backward precision=bf16 reason="allow list: Conv"`.
// Internal to compiler/ir/text.
#pragma once

#include "compiler/ir/graph.h"
#include "compiler/ir/text/lexer.h"

namespace halfnote::text {

/// `  # role=… …` for a node, with its leading spaces; empty where all is default.
std::string node_note(const Graph& graph, NodeId node);
/// `  # trainable scale=1` for an input or initializer.
std::string value_note(const Value& value);
/// `  # doc="…"` behind the brace of a graph; `name` as well if it is given.
std::string graph_note(std::string_view name, std::string_view doc);

/// Read the comment of the token that was taken last, if it begins with one of our words.
void parse_node_note(const Lexer& lexer, Graph& graph, NodeId node);
void parse_value_note(const Lexer& lexer, Value& value);
void parse_graph_note(const Lexer& lexer, Graph& graph);

}  // namespace halfnote::text
