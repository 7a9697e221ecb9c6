#include "cli/inspect/graph_dot.h"

#include <fmt/format.h>

#include "base/text/printable.h"
#include "compiler/ir/query.h"

namespace halfnote::cli {
namespace {

/// A DOT string: quotes and backslashes escaped, what a name must not show as \xNN in clear text.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : printable(text)) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

/// Two lines in one label.
std::string label(const std::string& first, const std::string& second) {
  if (second.empty()) return quoted(first);
  std::string text = quoted(first);
  text.pop_back();
  return text + "\\n" + quoted(second).substr(1);
}

const char* color_of(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "palegreen";
    case DType::kF16:
      return "lightskyblue";
    case DType::kF32:
      return "navajowhite";
    case DType::kF64:
      return "lightsalmon";
    default:
      return "gray92";
  }
}

DType type_of(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.precision.dtype != DType::kUndefined) return node.precision.dtype;
  const DType computed = compute_dtype(graph, id);
  if (computed != DType::kUndefined) return computed;
  const ValueId output = graph.output(id);
  return output.valid() ? graph.value(output).type.dtype : DType::kUndefined;
}

class DotWriter {
 public:
  explicit DotWriter(const Graph& graph) : graph_(graph) {}

  std::string write(const std::string& title) {
    text_ = fmt::format(
        "digraph {} {{\n  rankdir=TB;\n  node [shape=box, style=filled, "
        "fontname=\"sans-serif\"];\n  edge [fontname=\"sans-serif\", fontsize=9];\n",
        quoted(title));
    write_region(graph_.main(), "  ");
    for (const NodeId node : graph_.all_nodes()) write_edges(node);
    size_t index = 0;
    for (const ValueId output : graph_.outputs()) {
      const std::string name = fmt::format("out{}", index++);
      text_ += fmt::format("  {} [shape=ellipse, fillcolor=white, label={}];\n", name,
                           quoted(graph_.value(output).name));
      write_edge(output, name);
    }
    return text_ + "}\n";
  }

 private:
  void write_region(RegionId region, const std::string& indent) {
    for (const ValueId input : graph_.inputs(region)) {
      text_ +=
          fmt::format("{}v{} [shape=ellipse, fillcolor=white, label={}];\n", indent, input.index,
                      label(graph_.value(input).name, to_string(graph_.value(input).type)));
    }
    for (const NodeId node : graph_.nodes(region)) {
      write_node(node, indent);
      for (const RegionId inner : graph_.subgraphs(node)) {
        text_ +=
            fmt::format("{}subgraph cluster_{} {{\n{}  label={};\n", indent, inner.index, indent,
                        quoted(graph_.node(node).name + " " + graph_.region_name(inner)));
        write_region(inner, indent + "  ");
        text_ += indent + "}\n";
      }
    }
  }

  void write_node(NodeId id, const std::string& indent) {
    const Node& node = graph_.node(id);
    const DType dtype = type_of(graph_, id);
    const char* shape = is_cast(node) ? ", shape=ellipse, fontsize=9" : "";
    text_ +=
        fmt::format("{}n{} [label={}, fillcolor={}, tooltip={}{}];\n", indent, id.index,
                    label(op_name(node), node.name), color_of(dtype),
                    quoted(fmt::format("{} {}", short_name(dtype), node.precision.reason)), shape);
  }

  void write_edges(NodeId id) {
    for (const ValueId input : graph_.inputs(id)) {
      if (input.valid()) write_edge(input, fmt::format("n{}", id.index));
    }
    for (const RegionId region : graph_.subgraphs(id)) {
      for (const ValueId output : graph_.outputs(region)) {
        write_edge(output, fmt::format("n{}", id.index));
      }
    }
  }

  void write_edge(ValueId from, const std::string& to) {
    const Value& value = graph_.value(from);
    if (value.kind == ValueKind::kInitializer) return;
    const std::string source = value.producer.valid() ? fmt::format("n{}", value.producer.index)
                                                      : fmt::format("v{}", from.index);
    const std::string type =
        value.type.is_tensor()
            ? fmt::format("{}{}", short_name(value.type.dtype),
                          value.type.shape ? to_string(*value.type.shape) : std::string())
            : to_string(value.type);
    text_ += fmt::format("  {} -> {} [label={}];\n", source, to, quoted(type));
  }

  const Graph& graph_;
  std::string text_;
};

}  // namespace

std::string graph_dot(const Graph& graph, const std::string& title) {
  return DotWriter(graph).write(title);
}

}  // namespace halfnote::cli
