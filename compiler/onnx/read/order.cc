// Stable topological sort: the node with the smallest index among those whose producers are done
// comes next.
#include "compiler/onnx/read/order.h"

#include <onnx/onnx_pb.h>

#include <queue>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"

namespace halfnote::proto {
namespace {

using Names = std::vector<std::string_view>;

/// Names that a subgraph reads but does not define.
void collect_captures(const onnx::GraphProto& graph, Names& names) {
  std::unordered_set<std::string_view> defined;
  for (const auto& input : graph.input()) defined.insert(input.name());
  for (const auto& tensor : graph.initializer()) defined.insert(tensor.name());
  for (const auto& tensor : graph.sparse_initializer()) defined.insert(tensor.values().name());
  for (const auto& node : graph.node()) {
    for (const auto& output : node.output()) defined.insert(output);
  }
  Names reads;
  for (const auto& node : graph.node()) add_read_names(node, reads);
  for (const auto& output : graph.output()) reads.push_back(output.name());
  for (std::string_view name : reads) {
    if (!defined.contains(name)) names.push_back(name);
  }
}

struct Dependencies {
  std::vector<std::vector<int>> users;      // of each node
  std::vector<std::vector<int>> producers;  // of each node
};

using Producers = std::unordered_map<std::string_view, int>;

Producers producers_of(NodeSpan nodes) {
  Producers producers;
  producers.reserve(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const auto& output : nodes[i]->output()) {
      if (!output.empty()) producers.emplace(output, static_cast<int>(i));
    }
  }
  return producers;
}

/// Calls `visit(producer, user)` for every read of one node's result by another.
template <class Visit>
void for_each_read(NodeSpan nodes, const Producers& producers, Visit&& visit) {
  Names names;
  for (size_t i = 0; i < nodes.size(); ++i) {
    names.clear();
    add_read_names(*nodes[i], names);
    for (std::string_view name : names) {
      const auto found = producers.find(name);
      if (found != producers.end()) visit(found->second, static_cast<int>(i));
    }
  }
}

Dependencies dependencies_of(NodeSpan nodes, const Producers& producers) {
  Dependencies result;
  result.users.resize(nodes.size());
  result.producers.resize(nodes.size());
  for_each_read(nodes, producers, [&](int producer, int user) {
    result.users[static_cast<size_t>(producer)].push_back(user);
    result.producers[static_cast<size_t>(user)].push_back(producer);
  });
  return result;
}

/// Walks from a node that waits to producers that wait too, until one comes up again.
[[noreturn]] void report_cycle(NodeSpan nodes, const Dependencies& dependencies,
                               const std::vector<int>& waiting) {
  int at = 0;
  while (waiting[static_cast<size_t>(at)] == 0) ++at;
  std::vector<int> path;
  std::unordered_map<int, size_t> place;
  while (!place.contains(at)) {
    place.emplace(at, path.size());
    path.push_back(at);
    for (int producer : dependencies.producers[static_cast<size_t>(at)]) {
      if (waiting[static_cast<size_t>(producer)] == 0) continue;
      at = producer;
      break;
    }
  }
  const std::vector<int> cycle(path.begin() + static_cast<ptrdiff_t>(place.at(at)), path.end());
  std::string names;
  for (size_t i = cycle.size(); i-- > 0;) {
    if (cycle.size() - i > 8) {
      names += "… <- ";
      break;
    }
    names += "\"" + display_name(*nodes[static_cast<size_t>(cycle[i])]) + "\" <- ";
  }
  names += "\"" + display_name(*nodes[static_cast<size_t>(cycle.back())]) + "\"";
  Error error(ErrorCode::kModel, "the graph has a cycle");
  error.at({.node = display_name(*nodes[static_cast<size_t>(at)]),
            .op = nodes[static_cast<size_t>(at)]->op_type()});
  throw std::move(error).expected("an acyclic graph", names);
}

}  // namespace

void add_read_names(const onnx::NodeProto& node, Names& names) {
  for (const auto& input : node.input()) {
    if (!input.empty()) names.push_back(input);
  }
  for (const auto& attribute : node.attribute()) {
    if (attribute.has_g()) collect_captures(attribute.g(), names);
    for (const auto& graph : attribute.graphs()) collect_captures(graph, names);
  }
  // The one op that refers to values by attributes: what it differentiates must stand before it.
  if (node.op_type() != "Gradient" || node.domain() != "ai.onnx.preview.training") return;
  for (const auto& attribute : node.attribute()) {
    if (!attribute.s().empty()) names.push_back(attribute.s());
    for (const std::string& name : attribute.strings()) names.push_back(name);
  }
}

std::string display_name(const onnx::NodeProto& node) {
  if (!node.name().empty()) return node.name();
  for (const auto& output : node.output()) {
    if (!output.empty()) return output;
  }
  return node.op_type();
}

std::vector<int> topological_order(NodeSpan nodes) {
  std::vector<int> order(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) order[i] = static_cast<int>(i);
  const Producers producers = producers_of(nodes);
  bool sorted = true;
  for_each_read(nodes, producers, [&](int producer, int user) { sorted &= producer < user; });
  if (sorted) return order;  // as nearly all files are

  const Dependencies dependencies = dependencies_of(nodes, producers);
  std::vector<int> waiting(nodes.size());
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (size_t i = 0; i < nodes.size(); ++i) {
    waiting[i] = static_cast<int>(dependencies.producers[i].size());
    if (waiting[i] == 0) ready.push(static_cast<int>(i));
  }
  order.clear();
  while (!ready.empty()) {
    const int next = ready.top();
    ready.pop();
    order.push_back(next);
    for (int user : dependencies.users[static_cast<size_t>(next)]) {
      if (--waiting[static_cast<size_t>(user)] == 0) ready.push(user);
    }
  }
  if (order.size() != nodes.size()) report_cycle(nodes, dependencies, waiting);
  return order;
}

}  // namespace halfnote::proto
