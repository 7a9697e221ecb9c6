#include "cli/inspect/node_facts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <variant>

#include "base/error.h"
#include "base/text/printable.h"
#include "cli/inspect/model_summary.h"
#include "compiler/ir/query.h"
#include "compiler/ops/operator.h"
#include "kernels/device.h"
#include "kernels/layout.h"
#include "passes/report.h"
#include "runtime/core/control/control_step.h"

namespace halfnote::cli {
namespace {

using Dims = std::map<std::string, int64_t>;

constexpr std::string_view kCpu = "the cpu";

/// Where the node would run.
struct Place {
  const Dims& dims;
  const KernelTable& table;
  const RegionLayout& regions;
  std::string name;  // `the cpu`, `cuda`
};

struct AttributeText {
  std::string operator()(int64_t value) const { return std::to_string(value); }
  std::string operator()(float value) const { return fmt::format("{}", value); }
  std::string operator()(const std::string& value) const { return fmt::format("\"{}\"", value); }
  std::string operator()(const std::vector<int64_t>& values) const {
    return fmt::format("[{}]", fmt::join(values, ", "));
  }
  std::string operator()(const std::vector<float>& values) const {
    return fmt::format("[{}]", fmt::join(values, ", "));
  }
  std::string operator()(const std::vector<std::string>& values) const {
    return fmt::format("[{}]", fmt::join(values, ", "));
  }
  std::string operator()(RegionId) const { return "a subgraph"; }
  std::string operator()(const std::vector<RegionId>&) const { return "subgraphs"; }
  std::string operator()(const Tensor& tensor) const {
    return fmt::format("{}{}", short_name(tensor.dtype()), to_string(tensor.shape()));
  }
  template <class T>
  std::string operator()(const T&) const {
    return "…";
  }
};

std::string value_text(const Graph& graph, ValueId id) {
  if (!id.valid()) return "(absent)";
  const Value& value = graph.value(id);
  const char* kind = value.kind == ValueKind::kInitializer ? ", initializer"
                     : value.kind == ValueKind::kInput     ? ", input"
                                                           : "";
  return fmt::format("{} {}{}", value.name, to_string(value.type), kind);
}

void add_line(std::string& text, std::string_view key, std::string_view value) {
  if (!value.empty()) text += fmt::format("  {:<11} {}\n", key, printable(value));
}

std::string legality_text(const Legality& legality) {
  const auto since = [](int opset) {
    return opset == 0 ? std::string("never") : fmt::format("from op-set {}", opset);
  };
  return fmt::format("f16 {}, bf16 {}", since(legality.f16), since(legality.bf16));
}

void add_operator(std::string& text, const Node& node) {
  const OperatorRow* row = find_operator(node);
  if (row == nullptr) {
    add_line(text, "class", "unknown: halfnote has no such operator");
    return;
  }
  const PrecisionClass applied = applied_class(*row, node);
  add_line(
      text, "class",
      applied == class_of(*row, node)
          ? std::string(class_name(applied))
          : fmt::format("{} (an {} operator {})", class_name(applied), class_name(row->precision),
                        row->fp32_math_inside ? "whose math is f32 whatever it reads"
                                              : "that the lists in force put there"));
  add_line(text, "legal in", legality_text(row->legality));
  const char* form = row->lower != nullptr ? "yes: {}" : "none: {}";
  add_line(text, "gradient",
           row->gradient != nullptr ? std::string("yes")
                                    : fmt::format(fmt::runtime(form), row->no_gradient));
  const bool ours = node.op == "Cast" && node.precision.reason.starts_with("cast inserted");
  if (!ours) add_line(text, "note", row->note);
}

/// `bf16 and f32`: the float types that a node reads.
std::string operand_types(const Graph& graph, NodeId id) {
  std::vector<std::string_view> types;
  for (const ValueId input : graph.inputs(id)) {
    if (!input.valid() || !is_float(graph.value(input).type.dtype)) continue;
    const std::string_view name = short_name(graph.value(input).type.dtype);
    if (std::find(types.begin(), types.end(), name) == types.end()) types.push_back(name);
  }
  return fmt::format("{}", fmt::join(types, " and "));
}

std::string precision_text(const Graph& graph, NodeId id) {
  const Precision& decided = graph.node(id).precision;
  const std::string types = operand_types(graph, id);
  std::string text = decided.dtype == DType::kUndefined ? std::string("not decided")
                                                        : std::string(short_name(decided.dtype));
  if (!decided.reason.empty()) text += ": " + decided.reason;
  if (!types.empty()) text += fmt::format(" (its operands are {})", types);
  return text;
}

/// The reader itself, or the node that it prepares for.
NodeId wanting_node(const Graph& graph, NodeId reader) {
  const std::string name = reader_name(graph, reader);
  if (name == graph.label(reader)) return reader;
  for (const NodeId id : graph.all_nodes()) {
    if (graph.node(id).name == name) return id;
  }
  return reader;
}

/// A node that reads a cast, and why it takes that type.
std::string reader_text(const Graph& graph, const Use& use, DType dtype) {
  if (use.kind != UseKind::kNodeInput) {
    return use.kind == UseKind::kStateNext ? "a state" : "an output";
  }
  const NodeId id = wanting_node(graph, use.node());
  const Node& reader = graph.node(id);
  const std::string name = fmt::format("{} ({})", graph.label(id), op_name(reader));
  const OperatorRow* row = find_operator(reader);
  const DType decided = reader.precision.dtype;
  const bool own_operand = id == use.node();
  if (own_operand && row != nullptr && dtype == DType::kF32 && use.slot < 32 &&
      (row->fp32_inputs >> use.slot & 1u) != 0) {
    return fmt::format("{} wants f32: this operand keeps it whatever the node runs in", name);
  }
  if (decided == dtype) {
    return fmt::format("{} wants {}: {}", name, short_name(dtype), reader.precision.reason);
  }
  if (decided == DType::kUndefined && row != nullptr && dtype == DType::kF32 &&
      row->precision == PrecisionClass::kFp32) {
    return name + " wants f32: it is of class fp32";
  }
  if (decided == DType::kUndefined) return name + " takes any type";
  return fmt::format("{} runs in {}: {}", name, short_name(decided), reader.precision.reason);
}

void add_readers(std::string& text, const Graph& graph, NodeId id) {
  constexpr size_t kMostReaders = 8;
  if (!is_cast(graph.node(id))) return;
  const ValueId result = graph.output(id);
  const auto uses = graph.uses(result);
  for (size_t i = 0; i < std::min(uses.size(), kMostReaders); ++i) {
    add_line(text, "reader", reader_text(graph, uses[i], graph.value(result).type.dtype));
  }
  if (uses.size() > kMostReaders) {
    add_line(text, "reader", fmt::format("and {} more", uses.size() - kMostReaders));
  }
}

/// The operand with symbols bound; nothing while a dim is open.
std::optional<Operand> operand_of(const Graph& graph, ValueId id, const Dims& dims) {
  if (!id.valid()) return Operand{};
  const ValueType& type = graph.value(id).type;
  if (!type.is_tensor() || !type.shape) return std::nullopt;
  Shape shape;
  for (const Dim& dim : *type.shape) {
    const auto found = dim.known() ? dims.end() : dims.find(dim.symbol);
    if (!dim.known() && found == dims.end()) return std::nullopt;
    shape.push_back(dim.known() ? dim.value : found->second);
  }
  return Operand{type.dtype, std::move(shape), {}, graph.constant(id)};
}

std::optional<KernelCall> call_of(const Graph& graph, NodeId id, const Dims& dims) {
  const Node& node = graph.node(id);
  KernelCall call;
  call.domain = node.domain;
  call.op = node.op;
  call.attributes = &node.attributes;
  const auto add = [&](std::span<const ValueId> values, std::vector<Operand>& operands) {
    for (const ValueId value : values) {
      auto operand = operand_of(graph, value, dims);
      if (!operand) return false;
      operands.push_back(std::move(*operand));
    }
    return true;
  };
  if (!add(graph.inputs(id), call.inputs) || !add(graph.outputs(id), call.outputs)) {
    return std::nullopt;
  }
  return call;
}

void add_kernels(std::string& text, const Graph& graph, NodeId id, const Place& on) {
  const Node& node = graph.node(id);
  const auto rows = on.table.rows_of(node.domain, node.op);
  if (runs_bodies(node.domain, node.op)) {
    add_line(text, "kernels", "its bodies are planned as programs of their own");
    return;
  }
  if (rows.empty()) {
    add_line(text, "kernels", "none on " + on.name);
    return;
  }
  const auto call = call_of(graph, id, on.dims);
  if (!call) {
    std::vector<std::string_view> names;
    for (const KernelRow* row : rows) names.push_back(row->name);
    add_line(text, "kernels",
             fmt::format("on {}, best first: {} (bind the symbolic dims with --dim NAME=N to see "
                         "which of them runs it)",
                         on.name, fmt::join(names, ", ")));
    return;
  }
  const KernelChoice choice = on.table.choose(*call);
  for (const Refusal& refusal : choice.refusals) {
    add_line(text, "kernel", fmt::format("{} refuses: {}", refusal.kernel, refusal.reason));
  }
  if (choice.row == nullptr) return;
  add_line(text, "kernel", fmt::format("{} runs it on {}", choice.row->name, on.name));
  add_line(text, "",
           "as it stands here: run may fuse it with its neighbours, which --profile shows");
  for (const BlockedRow* blocked : blocked_rows_of(on.regions, *choice.row)) {
    if (!blocked->operands(*call).any()) continue;
    add_line(text, "kernel",
             fmt::format("{} instead of it where run keeps its values in {}", blocked->row.name,
                         on.name == kCpu ? "channel blocks" : "channels last"));
  }
  bool after = false;
  for (const KernelRow* row : rows) {
    if (after) add_line(text, "kernel", fmt::format("{} would be next", row->name));
    after |= row == choice.row;
  }
}

std::string facts_of(const Graph& graph, NodeId id, const std::string& where, const Place& on) {
  const Node& node = graph.node(id);
  std::string text = fmt::format("{}: {} ({})\n", printable(where), printable(node.name),
                                 printable(op_name(node)));
  add_line(text, "role", role_name(node.role));
  add_line(text, "made for", node.origin);
  for (const ValueId input : graph.inputs(id)) add_line(text, "input", value_text(graph, input));
  for (const ValueId output : graph.outputs(id))
    add_line(text, "output", value_text(graph, output));
  for (const auto& [name, value] : node.attributes) {
    add_line(text, "attribute", fmt::format("{} = {}", name, std::visit(AttributeText{}, value)));
  }
  add_line(text, "precision", precision_text(graph, id));
  add_readers(text, graph, id);
  add_operator(text, node);
  add_kernels(text, graph, id, on);
  return text;
}

bool is_meant(const Graph& graph, NodeId id, const std::string& name) {
  if (graph.node(id).name == name) return true;
  for (const ValueId output : graph.outputs(id)) {
    if (output.valid() && graph.value(output).name == name) return true;
  }
  return false;
}

Error no_such_node(const Model& model, const std::string& name, const std::string& only) {
  std::vector<std::string> names;
  for (const std::string& graph_name : graph_names(model)) {
    if (!only.empty() && graph_name != only) continue;
    const Graph& graph = find_graph(model, graph_name);
    for (const NodeId id : graph.all_nodes()) names.push_back(graph.node(id).name);
  }
  const std::string_view near = closest(name, names);
  return Error(ErrorCode::kUsage,
               fmt::format("no node{} is named \"{}\"", only.empty() ? "" : " of " + only, name))
      .at({model.source, {}, {}})
      .hint(near.empty() ? std::string("halfnote inspect FILE --nodes lists them")
                         : fmt::format("did you mean {}?", near));
}

}  // namespace

std::string node_facts(const Model& model, const std::string& name, const std::string& only,
                       const Dims& dims, const std::string& device) {
  const std::unique_ptr<Device> opened = open_device(device);
  const Place on{dims, opened ? opened->kernels() : cpu_kernels(),
                 opened ? opened->regions() : cpu_regions(), opened ? device : std::string(kCpu)};
  std::string text;
  if (!only.empty()) find_graph(model, only);
  for (const std::string& graph_name : graph_names(model)) {
    if (!only.empty() && graph_name != only) continue;
    const Graph& graph = find_graph(model, graph_name);
    for (const NodeId id : graph.all_nodes()) {
      if (!is_meant(graph, id, name)) continue;
      text += (text.empty() ? "" : "\n") + facts_of(graph, id, graph_name, on);
    }
  }
  if (text.empty()) throw no_such_node(model, name, only);
  return text;
}

}  // namespace halfnote::cli
