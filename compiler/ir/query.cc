#include "compiler/ir/query.h"

#include <re2/re2.h>

#include <algorithm>
#include <deque>

#include "base/error.h"

namespace halfnote {
namespace {

/// Ops of ONNX whose attribute `stash_type` is f32 when it is absent.
constexpr std::string_view kStashOps[] = {"GroupNormalization", "LayerNormalization",
                                          "RMSNormalization"};

bool has_stash_type(const Node& node) {
  if (!node.domain.empty()) return false;
  return std::find(std::begin(kStashOps), std::end(kStashOps), node.op) != std::end(kStashOps);
}

int width(DType dtype) { return is_float(dtype) ? bits_of(dtype) : 0; }

DType widest(const Graph& graph, std::span<const ValueId> values) {
  DType found = DType::kUndefined;
  for (ValueId id : values) {
    if (!id.valid()) continue;
    const DType dtype = graph.value(id).type.dtype;
    if (width(dtype) > width(found)) found = dtype;
  }
  return found;
}

/// Breadth-first from one value over the nodes that depend on it; each node knows the one it was
/// reached from.
class PathSearch {
 public:
  explicit PathSearch(const Graph& graph)
      : graph_(graph), seen_(graph.node_capacity(), false), from_(graph.node_capacity()) {}

  void start(ValueId value) { follow(value, NodeId{}); }

  /// The next node, in the order of distance; invalid when all are visited.
  NodeId next() {
    if (open_.empty()) return NodeId{};
    const NodeId node = open_.front();
    open_.pop_front();
    for (ValueId output : graph_.outputs(node)) {
      if (output.valid()) follow(output, node);
    }
    for (RegionId region : graph_.subgraphs(node)) {
      for (ValueId input : graph_.inputs(region)) follow(input, node);
    }
    return node;
  }

  std::vector<NodeId> path_to(NodeId node) const {
    std::vector<NodeId> path;
    for (; node.valid(); node = from_[node.index]) path.push_back(node);
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  void follow(ValueId value, NodeId from) {
    for (const Use& use : graph_.uses(value)) {
      if (use.kind == UseKind::kStateNext) continue;
      NodeId reader = use.by_node() ? use.node() : graph_.region_owner(RegionId{use.owner});
      // A reader inside a subgraph: the node that owns it depends on the value too.
      for (NodeId before = from; reader.valid();) {
        reach(reader, before);
        before = reader;
        reader = graph_.region_owner(graph_.node(reader).region);
      }
    }
  }

  void reach(NodeId node, NodeId from) {
    if (seen_[node.index]) return;
    seen_[node.index] = true;
    from_[node.index] = from;
    open_.push_back(node);
  }

  const Graph& graph_;
  std::vector<bool> seen_;
  std::vector<NodeId> from_;
  std::deque<NodeId> open_;
};

}  // namespace

std::vector<NodeId> find_nodes(const Graph& graph, const NodeQuery& query) {
  RE2::Options options;
  options.set_log_errors(false);
  const RE2 pattern(query.name, options);
  if (!pattern.ok()) {
    throw Error(ErrorCode::kUsage, "not a pattern for node names")
        .expected("an RE2 regular expression", "\"" + query.name + "\": " + pattern.error());
  }
  std::vector<NodeId> found;
  for (NodeId id : graph.all_nodes()) {
    const Node& node = graph.node(id);
    if (query.domain && node.domain != *query.domain) continue;
    const bool fits = op_name(node) == query.op || (query.domain && node.op == query.op);
    if (!query.op.empty() && !fits) continue;
    if (!query.name.empty() && !RE2::FullMatch(node.name, pattern)) continue;
    if (node.precision.reason.find(query.reason) == std::string::npos) continue;
    if (query.role && node.role != *query.role) continue;
    if (!query.origin.empty() && node.origin != query.origin) continue;
    found.push_back(id);
  }
  return found;
}

std::vector<NodeId> find_nodes(const Graph& graph, std::string_view op) {
  NodeQuery query;
  query.op = op;
  return find_nodes(graph, query);
}

NodeId find_node(const Graph& graph, std::string_view name) {
  for (NodeId id : graph.all_nodes()) {
    if (graph.node(id).name == name) return id;
  }
  return NodeId{};
}

bool is_op(const Node& node, std::string_view op) { return node.domain.empty() && node.op == op; }

bool is_op(const Graph& graph, NodeId node, std::string_view op) {
  return node.valid() && is_op(graph.node(node), op);
}

bool is_cast(const Node& node) { return is_op(node, "Cast"); }

bool is_float_value(const Graph& graph, ValueId value) {
  return value.valid() && is_float(graph.value(value).type.dtype);
}

bool reads_shape_only(const Node& node) { return is_op(node, "Shape") || is_op(node, "Size"); }

bool is_f32_tensor(const Graph& graph, ValueId value) {
  return value.valid() && graph.value(value).type.is_tensor() &&
         graph.value(value).type.dtype == DType::kF32;
}

NodeId producer(const Graph& graph, ValueId value) {
  if (!value.valid() || graph.value(value).kind != ValueKind::kResult) return NodeId{};
  return graph.value(value).producer;
}

ValueId before_casts(const Graph& graph, ValueId value) {
  for (NodeId node = producer(graph, value); node.valid() && is_cast(graph.node(node));
       node = producer(graph, value)) {
    value = graph.input(node, 0);
  }
  return value;
}

NodeId producer_through_casts(const Graph& graph, ValueId value) {
  return producer(graph, before_casts(graph, value));
}

std::vector<NodeId> users_through_casts(const Graph& graph, ValueId value) {
  std::vector<NodeId> found;
  std::vector<ValueId> open = {value};
  for (size_t i = 0; i < open.size(); ++i) {
    for (NodeId user : graph.users(open[i])) {
      if (is_cast(graph.node(user))) {
        open.push_back(graph.output(user));
      } else if (std::find(found.begin(), found.end(), user) == found.end()) {
        found.push_back(user);
      }
    }
  }
  return found;
}

std::vector<NodeId> casts_of(const Graph& graph, ValueId value, DType dtype) {
  std::vector<NodeId> found;
  for (NodeId user : graph.users(value)) {
    const Node& node = graph.node(user);
    if (!is_cast(node)) continue;
    if (node.attributes.get_int("to", 0) == static_cast<int64_t>(dtype)) found.push_back(user);
  }
  return found;
}

std::optional<std::vector<NodeId>> find_path(const Graph& graph, ValueId from, ValueId to) {
  if (from == to) return std::vector<NodeId>{};
  const Value& target = graph.value(to);
  // What a region's input is, comes from the node that owns the region.
  const NodeId goal = target.kind == ValueKind::kRegionInput ? graph.region_owner(target.region)
                                                             : producer(graph, to);
  if (!goal.valid()) return std::nullopt;
  PathSearch search(graph);
  search.start(from);
  for (NodeId node = search.next(); node.valid(); node = search.next()) {
    if (node == goal) return search.path_to(node);
  }
  return std::nullopt;
}

bool exists_path(const Graph& graph, NodeId from, NodeId to) {
  PathSearch search(graph);
  for (ValueId output : graph.outputs(from)) {
    if (output.valid()) search.start(output);
  }
  for (NodeId node = search.next(); node.valid(); node = search.next()) {
    if (node == to) return true;
  }
  return false;
}

std::optional<Shape> known_shape(const Graph& graph, ValueId value) {
  if (!value.valid() || !graph.value(value).type.has_concrete_shape()) return std::nullopt;
  return concrete(*graph.value(value).type.shape);
}

DType compute_dtype(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (const Attribute* stash = node.attributes.find("stash_type")) {
    if (const auto* code = std::get_if<int64_t>(stash)) {
      return dtype_from_onnx(*code).value_or(DType::kUndefined);
    }
  }
  if (has_stash_type(node)) return DType::kF32;
  const DType operands = widest(graph, graph.inputs(id));
  return operands != DType::kUndefined ? operands : widest(graph, graph.outputs(id));
}

bool runs_in(const Graph& graph, std::string_view op, DType dtype) {
  const std::vector<NodeId> nodes = find_nodes(graph, op);
  return !nodes.empty() && std::all_of(nodes.begin(), nodes.end(), [&](NodeId node) {
    return compute_dtype(graph, node) == dtype;
  });
}

NodeId only_reader(const Graph& graph, ValueId value) {
  if (!value.valid() || graph.uses(value).size() != 1) return {};
  const Use& use = graph.uses(value)[0];
  return use.by_node() ? use.node() : NodeId{};
}

}  // namespace halfnote
