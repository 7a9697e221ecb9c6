// Everything a model asks for that halfnote lacks, collected over the whole model, so that one run
// tells all of it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "compiler/ir/graph.h"

namespace halfnote {

/// `1 node`, `2 nodes`.
std::string counted(size_t count, std::string_view what);

/// Nodes of one op that are refused for one reason.
struct RefusedNodes {
  std::string op;  // `Op`, or `domain.Op`
  int64_t opset = 0;
  std::string why;
  std::string instead;  // the nearest supported form; empty if nothing is near
  std::vector<std::string> nodes;
};

/// A node by the words of the model: where an op of it was written in simpler ones, that op.
struct NodeInModel {
  std::string domain, op, name;  // op: `Op`, or `domain.Op`
  bool is_part = false;
};
NodeInModel as_in_model(const Graph& graph, NodeId node);

class UnsupportedOps {
 public:
  /// Notes a node, why it cannot be taken, and what could stand there (empty: the nearest form of
  /// the op).
  void add(const Graph& graph, NodeId node, const std::string& why, std::string instead = {});
  /// Notes what `more` holds, but for nodes that one of `known` holds.
  void add_new(const UnsupportedOps& more, std::initializer_list<const UnsupportedOps*> known);
  /// The op-sets to tell, by domain ("" is ONNX's); without them those that `lift` gives.
  void set_opsets(std::map<std::string, int64_t> opsets) { opsets_ = std::move(opsets); }

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
  /// Does the list leave names out?
  bool shortened() const;
  /// The list as data, with all names.
  std::vector<RefusedNodes> refused() const;

 private:
  enum class Advice : uint8_t { kNone, kForms };
  std::string list(Advice advice) const;

  struct Nodes {
    std::string domain, instead;
    std::vector<std::string> names;  // each once: a step repeats the nodes of the graph
    std::set<std::string> seen;
  };
  bool holds(const std::string& op, const std::string& name) const;
  int64_t opset_of(const std::string& domain) const;

  std::map<std::pair<std::string, std::string>, Nodes> rows_;  // by op, why
  std::map<std::string, int64_t> opsets_;
};

/// The error with a whole list, which --json-errors prints without gaps: `WHAT: LIST; HINT`.
class UnsupportedError : public Error {
 public:
  UnsupportedError(std::string what, UnsupportedOps ops, std::string hint);

  /// The op-sets of the file, which passes have lifted since. Keeps the place, not the pass.
  void set_opsets(const std::map<std::string, int64_t>& opsets);
  std::vector<RefusedNodes> refused() const { return ops_.refused(); }

 private:
  void render();

  std::string head_;
  UnsupportedOps ops_;
  std::string advice_;
};

/// What halfnote takes, and differentiates, in the place of an op (`domain.Op`, or `Op`): other
/// ops, or a name that is much alike; empty if nothing is near.
std::string nearest_form(std::string_view op);

}  // namespace halfnote
