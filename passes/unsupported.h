// Everything a model asks for that halfnote lacks, collected over the whole model, so that one run
// tells all of it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

/// `1 node`, `2 nodes`.
std::string counted(size_t count, std::string_view what);

class UnsupportedOps {
 public:
  /// Notes a node of op-set `opset`, and why it cannot be taken.
  void add(const Graph& graph, NodeId node, int64_t opset, const std::string& why);

  /// Is the node noted, whatever the reason?
  bool contains(const Graph& graph, NodeId node) const;
  bool empty() const { return rows_.empty(); }
  /// Op types, whatever the reason.
  size_t op_count() const;
  /// Their number as text: `1 op`, `2 ops`.
  std::string ops_text() const { return counted(op_count(), "op"); }
  /// `Op (op-set 9; 2 nodes; why): a, b; …`: all ops in alphabetical order and the names of all
  /// their nodes. Of more than 50 names the middle is left out, with the number.
  std::string list() const { return list(Advice::kNone); }
  /// The same with the nearest supported form of each op that has one: `(…; why; instead:
  /// Softmax)`.
  std::string list_with_forms() const { return list(Advice::kForms); }

 private:
  enum class Advice : uint8_t { kNone, kForms };
  std::string list(Advice advice) const;

  struct Nodes {
    std::vector<std::string> names;  // each once: a step repeats the nodes of the graph
    std::set<std::string> seen;
  };
  std::map<std::tuple<std::string, int64_t, std::string>, Nodes> rows_;  // by op, op-set, why
};

/// What halfnote takes, and differentiates, in the place of an op (`domain.Op`, or `Op`): other
/// ops, or a name that is much alike; empty if nothing is near.
std::string nearest_form(std::string_view op);

}  // namespace halfnote
