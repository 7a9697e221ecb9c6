// Prints graphs and models. The layout is ONNX's printer's, with one line a node and one line an
// initializer.
#include <type_traits>

#include "compiler/ir/text.h"
#include "compiler/ir/text/attribute_types.h"
#include "compiler/ir/text/literals.h"
#include "compiler/ir/text/notes.h"

namespace halfnote {
namespace {

using text::name_text;
using text::quoted;

constexpr int kIndent = 3;

/// `ai.halfnote.`: the domain as it stands in front of an op, in quotes where its parts are no
/// identifiers.
std::string domain_text(const std::string& domain) {
  if (domain.empty()) return "";
  for (size_t from = 0; from <= domain.size();) {
    const size_t dot = std::min(domain.find('.', from), domain.size());
    if (!text::is_identifier(std::string_view(domain).substr(from, dot - from))) {
      return quoted(domain) + ".";
    }
    from = dot + 1;
  }
  return domain + ".";
}

std::string word_text(const std::string& word) {
  return text::is_identifier(word) ? word : quoted(word);
}

bool holds_graph(const Attributes& attributes) {
  for (const auto& [name, attribute] : attributes) {
    if (std::holds_alternative<RegionId>(attribute) ||
        std::holds_alternative<std::vector<RegionId>>(attribute)) {
      return true;
    }
  }
  return false;
}

bool is_empty(const Graph& graph) {
  return graph.name.empty() && graph.doc.empty() && graph.node_count() == 0 &&
         graph.inputs().empty() && graph.outputs().empty() && graph.initializers().empty();
}

class Printer {
 public:
  explicit Printer(const PrintOptions& options) : options_(options) {}

  std::string take() && { return std::move(out_); }

  void print_model(const Model& model) {
    print_header(model);
    print_graph(model.graph, model.graph.main(), nullptr);
    out_ += "\n";
    for (const Function& function : model.functions) print_function(function);
    for (const TrainingStep& step : model.training) print_step(model, step);
  }

  /// A region with all in it; `shared` is the graph whose initializers may be referred to.
  void print_graph(const Graph& graph, RegionId region, const Graph* shared) {
    out_ += name_text(graph.region_name(region));
    out_ += " ";
    print_inputs(graph, region);
    out_ += " => ";
    print_outputs(graph, region);
    const bool is_main = region == graph.main();
    print_body(graph, region, shared, text::graph_note("", is_main ? graph.doc : ""));
  }

 private:
  // --- lines -------------------------------------------------------------------------------------

  void new_line() {
    out_ += "\n";
    out_.append(static_cast<size_t>(depth_ * kIndent), ' ');
  }

  /// Prints `items` with `print_item`, separated by commas.
  template <class Items, class PrintItem>
  void print_list(const Items& items, const char* open, const char* close, PrintItem&& print_item) {
    out_ += open;
    const char* separator = "";
    for (const auto& item : items) {
      out_ += separator;
      print_item(item);
      separator = ", ";
    }
    out_ += close;
  }

  // --- graphs ------------------------------------------------------------------------------------

  void print_typed(const Graph& graph, ValueId id) {
    const Value& value = graph.value(id);
    if (value.type.kind != TypeKind::kUnknown) {
      text::append_type(out_, value.type);
      out_ += " ";
    }
    out_ += name_text(value.name);
  }

  /// On one line, unless an input has a note.
  void print_inputs(const Graph& graph, RegionId region) {
    bool noted = false;
    for (ValueId input : graph.inputs(region)) noted |= graph.value(input).scale_power != 0;
    if (!noted) {
      print_list(graph.inputs(region), "(", ")", [&](ValueId id) { print_typed(graph, id); });
      return;
    }
    out_ += "(";
    ++depth_;
    print_noted(graph, graph.inputs(region), [&](ValueId id) { print_typed(graph, id); });
    --depth_;
    new_line();
    out_ += ")";
  }

  void print_outputs(const Graph& graph, RegionId region) {
    print_list(graph.outputs(region), "(", ")", [&](ValueId id) { print_typed(graph, id); });
  }

  /// One value a line: the item, a comma but behind the last, its note.
  template <class Values, class PrintItem>
  void print_noted(const Graph& graph, const Values& values, PrintItem&& print_item) {
    for (size_t i = 0; i < values.size(); ++i) {
      new_line();
      print_item(values[i]);
      if (i + 1 < values.size()) out_ += ",";
      out_ += text::value_note(graph.value(values[i]));
    }
  }

  void print_initializer(const Value& value, const Graph* shared) {
    text::append_tensor_type(out_, value.tensor);
    out_ += " " + name_text(value.name) + " = ";
    const ValueId twin = shared == nullptr ? ValueId{} : shared->find(value.name);
    if (twin.valid() && shared->value(twin).kind == ValueKind::kInitializer &&
        identical(shared->value(twin).tensor, value.tensor)) {
      out_ += "@" + name_text(value.name);
      return;
    }
    text::append_elements(out_, value.tensor, options_.elide_above);
  }

  /// From the initializers to the closing brace; `note` stands behind the opening one.
  void print_body(const Graph& graph, RegionId region, const Graph* shared,
                  const std::string& note) {
    const std::vector<ValueId> initializers = graph.initializers(region);
    if (!initializers.empty()) {
      out_ += " <";
      ++depth_;
      print_noted(graph, initializers,
                  [&](ValueId id) { print_initializer(graph.value(id), shared); });
      --depth_;
      new_line();
      out_ += ">";
    }
    out_ += " {" + note;
    ++depth_;
    for (NodeId node = graph.first(region); node.valid(); node = graph.next(node)) {
      new_line();
      print_node(graph, node);
    }
    if (region == graph.main()) print_states(graph);
    --depth_;
    new_line();
    out_ += "}";
  }

  void print_states(const Graph& graph) {
    for (const State& state : graph.states()) {
      new_line();
      out_ += "state ";
      out_ += state_kind_name(state.kind);
      out_ += " " + name_text(graph.value(state.current).name) + " -> " +
              name_text(graph.value(state.next).name);
    }
  }

  // --- nodes -------------------------------------------------------------------------------------

  void print_node(const Graph& graph, NodeId id) {
    const Node& node = graph.node(id);
    if (!node.name.empty()) out_ += "[" + name_text(node.name) + "] ";
    print_list(graph.outputs(id), "", "", [&](ValueId output) {
      if (output.valid()) {
        print_typed(graph, output);
      } else {
        out_ += "\"\"";
      }
    });
    out_ += graph.outputs(id).empty() ? "= " : " = ";
    out_ += domain_text(node.domain) + word_text(node.op);
    if (!node.overload.empty()) out_ += ":" + word_text(node.overload);
    const bool tall = holds_graph(node.attributes);
    if (!tall) print_attributes(graph, node.attributes);
    print_list(graph.inputs(id), " (", ")", [&](ValueId input) {
      out_ += input.valid() ? name_text(graph.value(input).name) : "\"\"";
    });
    if (tall) print_tall_attributes(graph, node.attributes);
    out_ += text::node_note(graph, id);
  }

  void print_attributes(const Graph& graph, const Attributes& attributes) {
    if (attributes.empty()) return;
    print_list(attributes, " <", ">", [&](const auto& entry) { print_attribute(graph, entry); });
  }

  /// Where one of them is a graph, each has its own line.
  void print_tall_attributes(const Graph& graph, const Attributes& attributes) {
    out_ += " <";
    ++depth_;
    const char* separator = "";
    for (const auto& entry : attributes) {
      out_ += separator;
      new_line();
      print_attribute(graph, entry);
      separator = ",";
    }
    --depth_;
    new_line();
    out_ += ">";
  }

  void print_attribute(const Graph& graph, const std::pair<std::string, Attribute>& entry) {
    const auto& [name, attribute] = entry;
    out_ += word_text(name);
    if (const auto* reference = std::get_if<AttributeReference>(&attribute)) {
      const std::string_view type = text::attribute_type_name(reference->onnx_type);
      if (!type.empty()) out_ += ": " + std::string(type);
      out_ += " = @" + word_text(reference->name);
      return;
    }
    out_ += ": ";
    out_ += text::attribute_type_name(text::attribute_type(attribute));
    out_ += " = ";
    std::visit([&](const auto& value) { print_value(graph, value); }, attribute);
  }

  void print_value(const Graph&, int64_t value) { out_ += std::to_string(value); }
  void print_value(const Graph&, float value) { text::append_number(out_, value); }
  void print_value(const Graph&, const std::string& value) { out_ += quoted(value); }
  void print_value(const Graph&, const ValueType& value) { text::append_type(out_, value); }
  void print_value(const Graph&, const AttributeReference&) {}  // has no value: printed above
  void print_value(const Graph& graph, RegionId value) { print_graph(graph, value, nullptr); }
  void print_value(const Graph&, const Tensor& value) {
    text::append_tensor_type(out_, value);
    out_ += " ";
    text::append_elements(out_, value, options_.elide_above);
  }
  template <class T>
  void print_value(const Graph& graph, const std::vector<T>& values) {
    print_list(values, "[", "]", [&](const T& value) { print_value(graph, value); });
  }

  // --- models ------------------------------------------------------------------------------------

  void print_opsets(const std::map<std::string, int64_t>& opsets) {
    print_list(opsets, "[", "]", [&](const auto& entry) {
      out_ += quoted(entry.first) + " : " + std::to_string(entry.second);
    });
  }

  void print_header(const Model& model) {
    const auto field = [&](const char* key, const std::string& value) {
      if (!value.empty()) out_ += std::string(",\n   ") + key + ": " + quoted(value);
    };
    out_ += "<\n   ir_version: " + std::to_string(model.ir_version) + ",\n   opset_import: ";
    print_opsets(model.opsets);
    field("producer_name", model.producer_name);
    field("producer_version", model.producer_version);
    field("domain", model.domain);
    if (model.model_version != 0) {
      out_ += ",\n   model_version: " + std::to_string(model.model_version);
    }
    field("doc_string", model.doc);
    if (!model.metadata.empty()) {
      out_ += ",\n   metadata_props: ";
      print_list(model.metadata, "[", "]", [&](const auto& entry) {
        out_ += quoted(entry.first) + ": " + quoted(entry.second);
      });
    }
    out_ += "\n>\n";
  }

  void print_function(const Function& function) {
    const Graph& body = function.body;
    out_ += "<\n   domain: " + quoted(function.domain) + ",\n";
    if (!function.overload.empty()) out_ += "   overload: " + quoted(function.overload) + ",\n";
    out_ += "   opset_import: ";
    print_opsets(function.opsets);
    out_ += "\n>\n" + name_text(function.name) + " ";
    if (!function.attributes.empty() || !function.default_attributes.empty()) {
      print_list(function.attributes, "<", "", [&](const auto& name) { out_ += word_text(name); });
      const char* separator = function.attributes.empty() ? "" : ", ";
      for (const auto& entry : function.default_attributes) {
        out_ += separator;
        print_attribute(body, entry);
        separator = ", ";
      }
      out_ += "> ";
    }
    print_inputs(body, body.main());
    out_ += " => ";
    print_outputs(body, body.main());
    print_body(body, body.main(), nullptr, text::graph_note(body.name, body.doc));
    out_ += "\n";
  }

  void print_step(const Model& model, const TrainingStep& step) {
    out_ += "training_info " + name_text(step.name) + " {";
    ++depth_;
    if (!is_empty(step.initialization)) {
      new_line();
      out_ += "initialization: ";
      print_graph(step.initialization, step.initialization.main(), nullptr);
    }
    if (!step.initialization_binding.empty()) {
      new_line();
      out_ += "initialization_binding: ";
      print_list(step.initialization_binding, "[", "]", [&](const auto& entry) {
        out_ += name_text(entry.first) + " = " + name_text(entry.second);
      });
    }
    new_line();
    out_ += "algorithm: ";
    print_graph(step.graph, step.graph.main(), &model.graph);
    --depth_;
    new_line();
    out_ += "}\n";
  }

  const PrintOptions& options_;
  std::string out_;
  int depth_ = 0;
};

}  // namespace

std::string print(const Model& model, const PrintOptions& options) {
  Printer printer(options);
  printer.print_model(model);
  return std::move(printer).take();
}

std::string print(const Graph& graph, const PrintOptions& options) {
  Printer printer(options);
  printer.print_graph(graph, graph.main(), nullptr);
  return std::move(printer).take() + "\n";
}

}  // namespace halfnote
