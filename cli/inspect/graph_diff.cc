#include "cli/inspect/graph_diff.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/text/printable.h"
#include "compiler/ir/query.h"

namespace halfnote::cli {
namespace {

constexpr std::array<const char*, 4> kKindNames = {"retyped", "replaced", "added", "removed"};

std::string name_of(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (!node.name.empty()) return node.name;
  const ValueId output = graph.output(id);
  return output.valid() ? graph.value(output).name : std::string();
}

/// The nodes of a graph by name and by the values they make.
class NodeIndex {
 public:
  explicit NodeIndex(const Graph& graph) : graph_(graph) {
    for (const NodeId id : graph.all_nodes()) {
      if (!graph.node(id).name.empty()) by_name_.emplace(graph.node(id).name, id);
      for (const ValueId output : graph.outputs(id)) {
        if (output.valid()) by_value_.emplace(graph.value(output).name, id);
      }
    }
  }

  /// The node that is meant by this one of another graph; invalid if there is none.
  NodeId find(const Graph& other, NodeId id) const {
    const std::string& name = other.node(id).name;
    if (const auto found = by_name_.find(name); !name.empty() && found != by_name_.end()) {
      return found->second;
    }
    const ValueId output = other.output(id);
    if (!output.valid()) return {};
    const auto found = by_value_.find(other.value(output).name);
    const bool free =
        found != by_value_.end() && (name.empty() || graph_.node(found->second).name.empty());
    return free ? found->second : NodeId{};
  }
  NodeId maker_of(const std::string& value) const {
    const auto found = by_value_.find(value);
    return found == by_value_.end() ? NodeId{} : found->second;
  }

 private:
  const Graph& graph_;
  std::map<std::string, NodeId> by_name_, by_value_;
};

/// The type that the source gives the first result.
DType source_type(const Graph& source, NodeId id, const TypesByName& types) {
  const ValueId output = source.output(id);
  if (!output.valid()) return DType::kUndefined;
  const DType own = source.value(output).type.dtype;
  if (own != DType::kUndefined) return own;
  const auto found = types.find(source.value(output).name);
  return found == types.end() ? DType::kUndefined : found->second;
}

DType compiled_type(const Graph& graph, NodeId id) {
  const DType decided = graph.node(id).precision.dtype;
  if (decided != DType::kUndefined) return decided;
  const ValueId output = graph.output(id);
  return output.valid() ? graph.value(output).type.dtype : DType::kUndefined;
}

std::string added_reason(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (is_cast(node)) {
    const ValueId from = graph.input(id, 0), to = graph.output(id);
    return fmt::format("{} -> {} of {}", short_name(graph.value(from).type.dtype),
                       short_name(graph.value(to).type.dtype), graph.value(from).name);
  }
  std::string reason = std::string(role_name(node.role));
  if (!node.origin.empty()) reason += " of " + node.origin;
  if (!node.precision.reason.empty()) reason += "; " + node.precision.reason;
  return reason;
}

std::string removed_reason(const Graph& source, NodeId id, const Graph& graph,
                           const NodeIndex& index) {
  for (const ValueId output : source.outputs(id)) {
    if (!output.valid()) continue;
    const std::string& name = source.value(output).name;
    const ValueId now = graph.find(name);
    if (!now.valid()) continue;
    if (graph.value(now).kind == ValueKind::kInitializer) return "its result is a constant now";
    const NodeId maker = index.maker_of(name);
    if (!maker.valid()) continue;
    return fmt::format("its result is made by {} ({}) now", name_of(graph, maker),
                       op_name(graph.node(maker)));
  }
  return "folded, merged with an equal node, or the identity here";
}

std::map<std::string, std::string> casts_by_value(const Graph& graph) {
  std::map<std::string, std::string> casts;
  for (const NodeId id : graph.all_nodes()) {
    if (!is_cast(graph.node(id)) || !graph.input(id, 0).valid()) continue;
    const Value& from = graph.value(graph.input(id, 0));
    std::string& list = casts[from.name];
    if (list.empty()) list = fmt::format("{} ->", short_name(from.type.dtype));
    list += fmt::format(" {}", short_name(graph.value(graph.output(id)).type.dtype));
  }
  return casts;
}

}  // namespace

TypesByName types_of(const Graph& graph) {
  TypesByName types;
  for (uint32_t i = 0; i < graph.value_count(); ++i) {
    const Value& value = graph.value(ValueId{i});
    if (value.alive && value.type.is_tensor()) types.emplace(value.name, value.type.dtype);
  }
  return types;
}

GraphDiff diff_graph(const Graph& source, const TypesByName& types, const Graph& graph,
                     std::string name, const Graph* step) {
  GraphDiff diff;
  diff.graph = std::move(name);
  diff.casts = casts_by_value(graph);
  const NodeIndex before(source), after(graph);
  std::set<NodeId> kept;
  for (const NodeId id : graph.all_nodes()) {
    const Node& node = graph.node(id);
    const NodeId old = before.find(graph, id);
    const std::string op = op_name(node);
    if (!old.valid() || !kept.insert(old).second) {
      diff.changes.push_back(
          {NodeChange::Kind::kAdded, name_of(graph, id), op, {}, {}, added_reason(graph, id)});
      continue;
    }
    const std::string old_op = op_name(source.node(old));
    const DType was = source_type(source, old, types), is = compiled_type(graph, id);
    if (old_op != op) {
      diff.changes.push_back(
          {NodeChange::Kind::kReplaced, name_of(graph, id), op, old_op, op, node.precision.reason});
    } else if (was != DType::kUndefined && is != DType::kUndefined && was != is) {
      diff.changes.push_back({NodeChange::Kind::kRetyped, name_of(graph, id), op,
                              std::string(short_name(was)), std::string(short_name(is)),
                              node.precision.reason});
    } else {
      ++diff.unchanged;
    }
  }
  const std::optional<NodeIndex> training =
      step != nullptr ? std::optional<NodeIndex>(*step) : std::nullopt;
  for (const NodeId id : source.all_nodes()) {
    if (kept.contains(id)) continue;
    const bool in_step = training && training->find(source, id).valid();
    diff.changes.push_back({NodeChange::Kind::kRemoved,
                            name_of(source, id),
                            op_name(source.node(id)),
                            {},
                            {},
                            in_step ? "only training needs it: it is in the step"
                                    : removed_reason(source, id, graph, after)});
  }
  return diff;
}

std::string diff_text(const GraphDiff& diff) {
  std::array<int, 4> counts = {};
  for (const NodeChange& change : diff.changes) ++counts[static_cast<size_t>(change.kind)];
  std::string text = fmt::format("{}: {} unchanged", printable(diff.graph), diff.unchanged);
  for (size_t i = 0; i < counts.size(); ++i)
    text += fmt::format(", {} {}", counts[i], kKindNames[i]);
  text += "\n";
  for (const NodeChange& change : diff.changes) {
    const std::string step = change.from.empty() ? std::string()
                                                 : fmt::format("{} -> {}  ", printable(change.from),
                                                               printable(change.to));
    text +=
        fmt::format("  {:<8} {:<40} {:<28} {}{}\n", kKindNames[static_cast<size_t>(change.kind)],
                    printable(change.name), printable(change.op), step, printable(change.reason));
  }
  for (const auto& [value, types] : diff.casts) {
    text += fmt::format("  casts    {:<40} {}\n", printable(value), types);
  }
  return text;
}

std::string diff_json(const std::vector<GraphDiff>& diffs) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const GraphDiff& diff : diffs) {
    Json changes = Json::array();
    for (const NodeChange& change : diff.changes) {
      Json one = {{"kind", kKindNames[static_cast<size_t>(change.kind)]},
                  {"node", change.name},
                  {"op", change.op}};
      if (!change.from.empty()) one.update({{"from", change.from}, {"to", change.to}});
      one["reason"] = change.reason;
      changes.push_back(std::move(one));
    }
    list.push_back({{"graph", diff.graph},
                    {"unchanged", diff.unchanged},
                    {"changes", std::move(changes)},
                    {"casts", diff.casts}});
  }
  return list.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace halfnote::cli
