#include "cli/inspect/model_summary.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "base/error.h"
#include "base/text/printable.h"
#include "cli/arguments.h"
#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"

namespace halfnote::cli {
namespace {

std::string opsets_text(const Model& model) {
  std::vector<std::string> parts;
  for (const auto& [domain, version] : model.opsets) {
    parts.push_back(fmt::format("{} {}", domain.empty() ? "ai.onnx" : domain, version));
  }
  return fmt::format("{}; IR version {}", fmt::join(parts, ", "), model.ir_version);
}

std::string kind_text(const Model& model) {
  const auto version = model.metadata.find("halfnote.version");
  if (version != model.metadata.end()) {
    return fmt::format("{} of halfnote {}", model.is_training() ? "training artifact" : "model",
                       version->second);
  }
  const std::string made =
      model.producer_name.empty()
          ? std::string()
          : fmt::format(" made by {} {}", model.producer_name, model.producer_version);
  return (model.is_training() ? "ONNX training model" : "ONNX model") + made;
}

std::string values_text(const Graph& graph, std::span<const ValueId> values) {
  std::vector<std::string> parts;
  for (const ValueId value : values) {
    parts.push_back(
        fmt::format("{} {}", to_string(graph.value(value).type), graph.value(value).name));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string initializers_text(const Graph& graph) {
  int64_t elements = 0, trainable = 0;
  size_t tensors = 0;
  uint64_t bytes = 0;
  for (const ValueId id : graph.initializers()) {
    const Value& value = graph.value(id);
    elements += value.tensor.size();
    bytes += value.tensor.byte_size();
    if (value.trainable) trainable += value.tensor.size();
    ++tensors;
  }
  std::string text = fmt::format("{} elements in {} tensors, {}", count_text(elements), tensors,
                                 bytes_text(bytes));
  if (trainable > 0) text += fmt::format("; {} trainable", count_text(trainable));
  return text;
}

/// How often each op stands in all graphs; `unknown` takes those without a row.
std::map<std::string, int> count_ops(const Model& model, std::map<std::string, int>& unknown) {
  std::map<std::string, int> counts;
  const auto add = [&](const Graph& graph) {
    for (const NodeId id : graph.all_nodes()) {
      const Node& node = graph.node(id);
      ++counts[op_name(node)];
      if (find_operator(node) == nullptr) ++unknown[op_name(node)];
    }
  };
  add(model.graph);
  for (const TrainingStep& step : model.training) add(step.graph);
  for (const Function& function : model.functions) {
    unknown.erase(function.domain.empty() ? function.name : function.domain + "." + function.name);
  }
  return counts;
}

std::string counts_text(const std::map<std::string, int>& counts) {
  std::vector<std::string> parts;
  for (const auto& [op, count] : counts) parts.push_back(fmt::format("{} {}", op, count));
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace

std::vector<std::string> graph_names(const Model& model) {
  std::vector<std::string> names;
  for (const TrainingStep& step : model.training) names.push_back(step.name);
  names.emplace_back("graph");
  return names;
}

const Graph& find_graph(const Model& model, const std::string& name) {
  if (name == "graph" || (name.empty() && !model.is_training())) return model.graph;
  for (const TrainingStep& step : model.training) {
    if (name.empty() || step.name == name) return step.graph;
  }
  const std::vector<std::string> names = graph_names(model);
  const std::string_view near = closest(name, names);
  throw Error(ErrorCode::kUsage, "the model has no such graph")
      .at({model.source, {}, {}})
      .expected(fmt::format("one of {}", fmt::join(names, ", ")), fmt::format("\"{}\"", name))
      .hint(near.empty() ? std::string() : fmt::format("did you mean {}?", near));
}

std::string model_summary(const Model& model) {
  std::map<std::string, int> unknown;
  const std::map<std::string, int> counts = count_ops(model, unknown);
  std::string text;
  const auto line = [&](const char* key, const std::string& value) {
    if (!value.empty()) text += fmt::format("{:<14} {}\n", printable(key), printable(value));
  };
  line("file", model.source);
  line("kind", kind_text(model));
  line("op-sets", opsets_text(model));
  line("inputs", values_text(model.graph, model.graph.inputs()));
  line("outputs", values_text(model.graph, model.graph.outputs()));
  for (const TrainingStep& step : model.training) {
    line((step.name + " in").c_str(), values_text(step.graph, step.graph.inputs()));
  }
  line("initializers", initializers_text(model.graph));
  line("operators", counts_text(counts));
  line("unknown", counts_text(unknown));
  return text;
}

/// The first nodes that read the result of a cast.
std::string readers_text(const std::vector<std::string>& readers) {
  constexpr size_t kMostNames = 3;
  if (readers.empty()) return "an output";
  std::string text;
  for (size_t i = 0; i < std::min(readers.size(), kMostNames); ++i) {
    text += (i == 0 ? "" : ", ") + std::string(printable(readers[i]));
  }
  return readers.size() <= kMostNames
             ? text
             : fmt::format("{} and {} more", text, readers.size() - kMostNames);
}

std::string cast_table(const Report& report) {
  std::string text, graph;
  int64_t total = 0, symbolic = 0;
  for (const CastReport& cast : report.casts) {
    if (cast.graph != graph)
      text += fmt::format("{}{}\n", text.empty() ? "" : "\n", printable(cast.graph));
    graph = cast.graph;
    const std::string bytes =
        cast.bytes < 0 ? cast.symbolic + " B" : bytes_text(static_cast<uint64_t>(cast.bytes));
    text += fmt::format("  {:<48} {:>5} -> {:<5} {:>12}  for {}\n", printable(cast.value),
                        cast.from, cast.to, bytes, readers_text(cast.readers));
    total += std::max<int64_t>(cast.bytes, 0);
    symbolic += cast.bytes < 0 ? 1 : 0;
  }
  text += fmt::format("{} casts, {} read and written a run", report.casts.size(),
                      bytes_text(static_cast<uint64_t>(total)));
  if (symbolic > 0) {
    text += fmt::format(" besides {} of symbolic size (bind the dims: --dim NAME=N)", symbolic);
  }
  return text + "\n";
}

}  // namespace halfnote::cli
