#include "passes/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/text/printable.h"
#include "compiler/ops/operator.h"
#include "passes/nesting.h"
#include "passes/train/step.h"
#include "passes/unsupported.h"

namespace halfnote {
namespace {

/// The type a node computes in: the decision, or else that of its first float result.
std::string compute_type(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.precision.dtype != DType::kUndefined)
    return std::string(short_name(node.precision.dtype));
  for (ValueId output : graph.outputs(id)) {
    if (output.valid() && graph.value(output).type.is_tensor()) {
      return std::string(short_name(graph.value(output).type.dtype));
    }
  }
  return "-";
}

int64_t elements(const ValueType& type) {
  if (!type.has_concrete_shape()) return -1;
  return element_count(concrete(*type.shape));
}

/// The elements of a type with symbolic dims times `width`: `150528·N`.
std::string symbolic_bytes(const ValueType& type, int64_t width) {
  if (!type.is_tensor() || !type.shape) return "?";
  std::string symbols;
  for (const Dim& dim : *type.shape) {
    if (dim.known()) {
      width *= dim.value;
    } else {
      symbols += "·" + (dim.symbol.empty() ? "?" : dim.symbol);
    }
  }
  return std::to_string(width) + symbols;
}

/// With symbolic dims as 1: enough for a share.
Shape plain_shape(const Graph& graph, ValueId value) {
  Shape shape;
  if (!value.valid() || !graph.value(value).type.is_tensor()) return shape;
  for (const Dim& dim : graph.value(value).type.shape.value_or(SymbolicShape{})) {
    shape.push_back(dim.known() ? dim.value : 1);
  }
  return shape;
}

double flops_of(const Graph& graph, NodeId id) {
  const OperatorRow* row = find_operator(graph.node(id));
  if (row == nullptr || row->flops == nullptr) return 0;
  std::vector<Shape> inputs, outputs;
  for (ValueId input : graph.inputs(id)) inputs.push_back(plain_shape(graph, input));
  for (ValueId output : graph.outputs(id)) outputs.push_back(plain_shape(graph, output));
  return row->flops(graph.node(id).attributes, inputs, outputs);
}

bool reads_16bit(const Graph& graph, NodeId id) {
  const ValueId first = graph.input(id, 0);
  return first.valid() && is_16bit_float(graph.value(first).type.dtype);
}

/// The nodes that read a value, each once.
std::vector<std::string> readers_of(const Graph& graph, ValueId value) {
  std::vector<std::string> readers;
  for (const Use& use : graph.uses(value)) {
    if (use.kind != UseKind::kNodeInput) continue;
    const std::string name = reader_name(graph, use.node());
    if (std::find(readers.begin(), readers.end(), name) == readers.end()) readers.push_back(name);
  }
  return readers;
}

void add_graph(Report& report, const Graph& graph, const std::string& name) {
  for (NodeId id : graph.all_nodes()) {
    const Node& node = graph.node(id);
    const OperatorRow* row = find_operator(node);
    report.nodes.push_back(
        {name, node.name, op_name(node), std::string(role_name(node.role)),
         row == nullptr ? "unknown" : std::string(class_name(applied_class(*row, node))),
         compute_type(graph, id), node.precision.reason, node.origin});
    if (is_cast(node) && graph.input(id, 0).valid()) {
      const ValueType& from = graph.value(graph.input(id, 0)).type;
      const ValueType& to = graph.value(graph.output(id)).type;
      const int64_t count = elements(from);
      const auto width = static_cast<int64_t>(size_of(from.dtype) + size_of(to.dtype));
      report.casts.push_back(
          {name, graph.value(graph.input(id, 0)).name, std::string(short_name(from.dtype)),
           std::string(short_name(to.dtype)), readers_of(graph, graph.output(id)),
           count < 0 ? -1 : count * width, count < 0 ? symbolic_bytes(from, width) : ""});
    }
  }
}

void add_blocker(Report& report, const Node& node, double flops) {
  const std::string reason = node.precision.reason.empty() ? "no reason" : node.precision.reason;
  for (Report::Blocker& blocker : report.blockers) {
    if (blocker.reason != reason) continue;
    blocker.flops += flops;
    ++blocker.nodes;
    return;
  }
  report.blockers.push_back({reason, flops, 1, node.name});
}

double low_share(const Report& report) {
  return report.contraction_flops > 0 ? report.low_contraction_flops / report.contraction_flops : 0;
}

/// Notes about constants that 16 bits do not hold.
int64_t constant_notes(const Report& report, std::string_view pass) {
  return std::count_if(report.remarks.begin(), report.remarks.end(), [&](const Remark& remark) {
    return remark.pass == pass &&
           (pass == "mend-constants" || remark.text.starts_with("constant "));
  });
}

/// How often the bodies of a node run, as far as a type tells: the length of a Scan's last operand.
double trips_of(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.op != "Scan" || graph.inputs(id).empty()) return 1;
  const Shape shape = plain_shape(graph, graph.inputs(id).back());
  const std::vector<int64_t> axes = node.attributes.get_ints("scan_input_axes");
  const auto rank = static_cast<int64_t>(shape.size());
  const int64_t axis = axes.empty() ? 0 : axes.back() < 0 ? axes.back() + rank : axes.back();
  return axis < rank ? static_cast<double>(shape[static_cast<size_t>(axis)]) : 1;
}

void add_region(Report& report, const Graph& step, RegionId region, double times) {
  for (NodeId id : step.nodes(region)) {
    const double flops = times * flops_of(step, id);
    report.contraction_flops += flops;
    if (reads_16bit(step, id)) report.low_contraction_flops += flops;
    if (flops > 0 && !reads_16bit(step, id)) add_blocker(report, step.node(id), flops);
    for (RegionId inner : step.subgraphs(id)) {
      add_region(report, step, inner, times * trips_of(step, id));
    }
  }
}

void add_totals(Report& report, const Graph& step) {
  add_region(report, step, step.main(), 1);
  std::stable_sort(report.blockers.begin(), report.blockers.end(),
                   [](const auto& a, const auto& b) { return a.flops > b.flops; });
}

}  // namespace

std::string reader_name(const Graph& graph, NodeId reader) {
  const Node& node = graph.node(reader);
  const bool prepares = node.precision.dtype == DType::kUndefined &&
                        !node.precision.reason.empty() && !node.origin.empty();
  return prepares ? node.origin.str() : graph.label(reader);
}

Report make_report(const Model& model) {
  Report report;
  report.source = model.source;
  const auto policy = model.metadata.find("halfnote.policy");
  if (policy != model.metadata.end()) report.policy = policy->second;
  for (const TrainingStep& step : model.training) {
    add_graph(report, step.graph, step.name);
    if (step.name == kStepName || step.name == kAccumulateName) add_totals(report, step.graph);
    for (const State& state : step.graph.states()) {
      if (state.kind != StateKind::kWeight) continue;
      ++report.parameter_tensors;
      report.parameters += step.graph.value(state.current).tensor.size();
    }
  }
  add_graph(report, model.graph, "graph");
  if (!model.is_training()) add_totals(report, model.graph);
  return report;
}

Report make_report(const CompileResult& result) {
  Report report = make_report(result.model);
  report.remarks = result.remarks;
  report.passes = result.pipeline.records;
  return report;
}

std::string report_summary(const Report& report) {
  std::map<std::string, std::map<std::string, int>> types;
  for (const NodeReport& node : report.nodes) ++types[node.graph][node.dtype];
  std::string text = settings_text(report.policy);
  if (report.parameters > 0) {
    text += fmt::format("parameters     {} in {} tensors, FP32 master weights\n", report.parameters,
                        report.parameter_tensors);
  }
  for (const auto& [graph, counts] : types) {
    int total = 0;
    std::string list;
    for (const auto& [type, count] : counts) {
      total += count;
      list += fmt::format("{}{} {}", list.empty() ? "" : ", ", count, type);
    }
    text += fmt::format("{:<14} {} nodes: {}\n", printable(graph), total, list);
  }
  int64_t bytes = 0;
  bool symbolic = false;
  for (const CastReport& cast : report.casts) {
    symbolic |= cast.bytes < 0;
    bytes += std::max<int64_t>(cast.bytes, 0);
  }
  text += fmt::format("casts          {}, {}{} bytes a run over all graphs\n", report.casts.size(),
                      symbolic ? "at least " : "", bytes);
  text +=
      fmt::format("contractions   {:.1f} % of FLOPs on 16-bit operands\n", 100 * low_share(report));
  const int64_t kept = constant_notes(report, "assign-precision");
  const int64_t mended = constant_notes(report, "mend-constants");
  if (kept + mended > 0) {
    text += fmt::format("constants      {} kept in FP32 for them, {} taken away\n",
                        counted(static_cast<size_t>(kept), "node"),
                        counted(static_cast<size_t>(mended), "bound"));
  }
  return text;
}

std::string conversion_warning(const Report& report) {
  const bool wanted = report.policy.find("\"precision\":\"f16\"") != std::string::npos ||
                      report.policy.find("\"precision\":\"bf16\"") != std::string::npos;
  const double share = low_share(report);
  if (!wanted || share >= 0.5) return "";
  if (report.contraction_flops == 0) {
    return "warning: nothing was converted to 16 bit: the graph has no contraction (MatMul, Gemm, "
           "Conv) to gain from it\n";
  }
  std::string text = fmt::format(
      "warning: {} was converted to 16 bit: {:.1f} % of the contraction FLOPs. "
      "What kept the rest as it is:\n",
      share == 0 ? "nothing" : "little", 100 * share);
  constexpr size_t kMost = 8;
  for (size_t i = 0; i < std::min(report.blockers.size(), kMost); ++i) {
    const Report::Blocker& blocker = report.blockers[i];
    text +=
        fmt::format("  {:5.1f} %  {} ({} node{}: {}{})\n",
                    100 * blocker.flops / report.contraction_flops, blocker.reason, blocker.nodes,
                    blocker.nodes == 1 ? "" : "s", blocker.first, blocker.nodes == 1 ? "" : ", …");
  }
  if (report.blockers.size() > kMost) {
    text += fmt::format("  and {} further reasons\n", report.blockers.size() - kMost);
  }
  return text + "  halfnote inspect --nodes shows the reason of every node\n";
}

std::string report_json(const Report& report) {
  nlohmann::ordered_json json;
  json["source"] = report.source;
  // From the metadata of a file: what nests too deep cannot be printed.
  json["policy"] = json_nests_deeper(report.policy)
                       ? nlohmann::ordered_json()
                       : nlohmann::ordered_json::parse(report.policy, nullptr, false);
  if (json["policy"].is_discarded()) json["policy"] = nullptr;
  json["parameters"] = report.parameters;
  json["contraction_flops_share_16bit"] = low_share(report);
  json["blockers"] = nlohmann::ordered_json::array();
  for (const Report::Blocker& b : report.blockers) {
    json["blockers"].push_back({{"reason", b.reason},
                                {"flops_share", b.flops / report.contraction_flops},
                                {"nodes", b.nodes},
                                {"first", b.first}});
  }
  json["nodes"] = nlohmann::ordered_json::array();
  for (const NodeReport& n : report.nodes) {
    json["nodes"].push_back({{"graph", n.graph},
                             {"name", n.name},
                             {"op", n.op},
                             {"role", n.role},
                             {"class", n.precision_class},
                             {"dtype", n.dtype},
                             {"reason", n.reason},
                             {"origin", n.origin}});
  }
  json["casts"] = nlohmann::ordered_json::array();
  for (const CastReport& c : report.casts) {
    json["casts"].push_back({{"graph", c.graph},
                             {"value", c.value},
                             {"from", c.from},
                             {"to", c.to},
                             {"readers", c.readers},
                             {"bytes", c.bytes < 0 ? nlohmann::ordered_json(c.symbolic)
                                                   : nlohmann::ordered_json(c.bytes)}});
  }
  json["remarks"] = nlohmann::ordered_json::array();
  for (const Remark& r : report.remarks) {
    json["remarks"].push_back({{"level", r.level == Remark::Level::kWarning ? "warning" : "note"},
                               {"pass", r.pass},
                               {"where", r.where},
                               {"text", r.text}});
  }
  json["passes"] = nlohmann::ordered_json::array();
  for (const PassRecord& p : report.passes) {
    json["passes"].push_back({{"name", p.name},
                              {"changed", p.changed},
                              {"nodes_before", p.nodes_before},
                              {"nodes_after", p.nodes_after}});
  }
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string report_table(const Report& report) {
  std::string text;
  std::string graph;
  size_t op_width = 0;
  for (const NodeReport& node : report.nodes) {
    op_width = std::max(op_width, printable(node.op).size());
  }
  for (const NodeReport& node : report.nodes) {
    if (node.graph != graph)
      text += fmt::format("{}{}\n", text.empty() ? "" : "\n", printable(node.graph));
    graph = node.graph;
    text +=
        fmt::format("  {:<40} {:<{}} {:<5} {:<7} {}\n", printable(node.name), printable(node.op),
                    op_width, node.dtype, node.precision_class, printable(node.reason));
  }
  return text;
}

}  // namespace halfnote
