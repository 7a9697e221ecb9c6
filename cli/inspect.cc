// halfnote inspect: what is in a model, what a compilation did to it, and why.
#include <fmt/format.h>

#include <array>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/text/printable.h"
#include "cli/arguments.h"
#include "cli/import_flags.h"
#include "cli/inspect/graph_diff.h"
#include "cli/inspect/graph_dot.h"
#include "cli/inspect/model_summary.h"
#include "cli/inspect/node_facts.h"
#include "cli/verbs.h"
#include "compiler/ir/text.h"
#include "compiler/onnx/import.h"
#include "passes/canonical/bind_dims.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/train/step.h"
#include "runtime/train/session.h"

namespace halfnote::cli {
namespace {

constexpr int64_t kElideAbove = 16;

struct InspectArguments {
  std::string file, format, graph, diff, why, device;
  std::vector<std::string> dims;
  bool nodes = false, casts = false;
  ImportFlags import;
};

/// The types of the source's values, as far as they can be inferred: an exporter need not write
/// them.
TypesByName source_types(const std::string& file, const ImportFlags& import) {
  CompileOptions options;
  options.limits = import.limits;
  options.inference_only = true;
  options.stop_after = "infer-shapes";
  try {
    Model source = import_model(file, import_options(import));
    source.metadata.erase("halfnote.stage");  // a diff of two artifacts is a fair question
    return types_of(compile_model(std::move(source), options).model.graph);
  } catch (const Error& error) {
    std::cerr << "note: the types in " << file << " cannot be inferred ("
              << printable(error.problem())
              << "); nodes without a written type count as not retyped\n";
    return {};
  }
}

/// The inference graph and the training steps, or the one that --graph names.
std::vector<GraphDiff> diffs_of(const Model& model, const InspectArguments& a) {
  const Model source = import_model(a.diff, import_options(a.import));
  const TypesByName types = source_types(a.diff, a.import);
  const Graph* step = model.is_training() ? &model.training.front().graph : nullptr;
  if (!a.graph.empty()) {
    return {diff_graph(source.graph, types, find_graph(model, a.graph), a.graph, step)};
  }
  std::vector<GraphDiff> diffs = {diff_graph(source.graph, types, model.graph, "graph", step)};
  for (const TrainingStep& training : model.training) {
    if (training.name == kEvaluateName) continue;
    diffs.push_back(diff_graph(source.graph, types, training.graph, training.name));
  }
  return diffs;
}

std::string diff_against(const Model& model, const InspectArguments& a) {
  const std::vector<GraphDiff> diffs = diffs_of(model, a);
  if (a.format == "json") return diff_json(diffs);
  if (a.format == "dot") {
    throw Error(ErrorCode::kUsage, "--diff has no form in dot")
        .expected("--format text or json", "dot");
  }
  std::string text;
  for (const GraphDiff& diff : diffs) text += (text.empty() ? "" : "\n") + diff_text(diff);
  return text;
}

/// Every graph with the dims bound, for the sizes in a report.
Model with_dims(Model model, const std::map<std::string, int64_t>& dims) {
  for_each_graph(model, [&](Graph& graph) {
    if (bind_symbols(graph, dims)) infer_graph(graph);
  });
  return model;
}

/// The report of all graphs, or of the one that --graph names.
Report report_of(const Model& model, const InspectArguments& a) {
  Report report = make_report(with_dims(model, parse_dims(a.dims)));
  if (a.graph.empty()) return report;
  find_graph(model, a.graph);
  std::erase_if(report.nodes, [&](const NodeReport& node) { return node.graph != a.graph; });
  std::erase_if(report.casts, [&](const CastReport& cast) { return cast.graph != a.graph; });
  return report;
}

std::string formatted(const Model& model, const InspectArguments& a) {
  if (a.format == "json") return report_json(report_of(model, a));
  if (a.format == "dot") {
    const Graph& graph = find_graph(model, a.graph);
    return graph_dot(graph, a.graph.empty() ? graph_names(model).front() : a.graph);
  }
  if (a.format == "text") {
    const PrintOptions options{kElideAbove};
    return a.graph.empty() ? print(model, options) : print(find_graph(model, a.graph), options);
  }
  static constexpr std::array<std::string_view, 3> kFormats = {"text", "json", "dot"};
  const std::string_view near = closest(a.format, kFormats);
  throw Error(ErrorCode::kUsage, "unknown --format")
      .expected("text, json or dot", fmt::format("\"{}\"", a.format))
      .hint(near.empty() ? std::string() : fmt::format("did you mean {}?", near));
}

/// A flag that nothing reads is taken for one that works.
void refuse_idle(const InspectArguments& a) {
  const bool text = a.format == "text" || a.format == "dot";
  const bool tables = a.nodes || a.casts || a.format == "json";
  const auto refuse = [](const char* flag, const char* wanted) {
    throw Error(ErrorCode::kUsage, std::string(flag) + " does nothing here")
        .expected(wanted, "none of them")
        .hint(std::string("take ") + flag + " away");
  };
  if (!a.graph.empty() && !text && !tables && a.diff.empty() && a.why.empty()) {
    refuse("--graph", "--format, --nodes, --casts, --why or --diff");
  }
  if (!a.device.empty() && a.why.empty()) refuse("--device", "--why");
  const bool summary = a.format.empty() && a.diff.empty() && a.why.empty();
  if (!a.dims.empty() && !tables && a.why.empty() && !summary) {
    refuse("--dim", "--nodes, --casts, --why or --format json");
  }
}

/// Each dim is one of an input, of the graph or of a step.
void check_dims(const Model& model, const std::map<std::string, int64_t>& dims) {
  for (const auto& [name, number] : dims) {
    bool known = false;
    for (const std::string& graph_name : graph_names(model)) {
      const Graph& graph = find_graph(model, graph_name);
      for (const ValueId input : graph.inputs()) {
        const ValueType& type = graph.value(input).type;
        for (const Dim& dim : type.shape ? *type.shape : SymbolicShape()) {
          known |= !dim.known() && dim.symbol == name;
        }
      }
    }
    if (!known) check_dim_names(model.graph, {{name, number}});
  }
}

int inspect(const InspectArguments& a) {
  const auto dims = parse_dims(a.dims);
  refuse_idle(a);
  if (!a.format.empty() && (a.nodes || a.casts || !a.why.empty())) {
    throw Error(ErrorCode::kUsage, "--format shows one thing at a time")
        .expected("--format alone, or with --diff or --graph", "--nodes, --casts or --why with it")
        .hint("--format json has every node, cast and reason");
  }
  const Model model = import_model(a.file, import_options(a.import));
  check_dims(model, dims);
  std::vector<std::string> parts;
  if (!a.diff.empty()) {
    parts.push_back(diff_against(model, a));
  } else if (!a.format.empty()) {
    parts.push_back(formatted(model, a));
  }
  if (!a.why.empty())
    parts.push_back(node_facts(model, a.why, a.graph, dims, a.device.empty() ? "cpu" : a.device));
  const Report report = report_of(model, a);
  if (a.nodes) parts.push_back(report_table(report));
  if (a.casts) parts.push_back(cast_table(report));
  if (parts.empty()) parts.push_back(model_summary(model) + report_summary(report));
  for (size_t i = 0; i < parts.size(); ++i) std::cout << (i == 0 ? "" : "\n") << parts[i];
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  auto a = std::make_shared<InspectArguments>();
  CLI::App* verb = app.add_subcommand("inspect", "show a model or artifact: types, casts, reasons");
  verb->add_option("file", a->file, "a model (.onnx, .onnxtxt) or an artifact")->required();
  verb->add_flag("--nodes", a->nodes, "every node with its type, class and the reason");
  verb->add_flag("--casts", a->casts, "every cast with the bytes it moves and its readers");
  verb->add_option("--why", a->why,
                   "all about one node (or the node that makes this value): decision, legality, "
                   "gradient, kernels with their refusals, readers of a cast");
  verb->add_option("--dim", a->dims, "bind a symbolic dim, for the sizes and for --why: NAME=N")
      ->take_all();
  verb->add_option("--device", a->device,
                   "for --why: whose kernels, cpu, cuda, cuda:N or cuda-emulated (default: cpu)");
  verb->add_option("--diff", a->diff,
                   "nodes added, removed, replaced and retyped since this source model");
  verb->add_option(
      "--format", a->format,
      "text (ONNX text, large constants elided), json (the report, or the diff), dot (Graphviz)");
  verb->add_option("--graph", a->graph, "the graph to show: a step (step, evaluate, …), or graph");
  add_import_flags(verb, a->import);
  verb->footer("Without options: a summary, with the share of contraction FLOPs in 16 bit.");
  verb->callback([a, &action] { action = [a] { return inspect(*a); }; });
}

}  // namespace halfnote::cli
