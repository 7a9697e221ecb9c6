// The parts of the pass flatten-control (flatten_control.cc): bodies copied into the region of
// their node, and containers whose elements are known.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/ir/walk.h"
#include "passes/pass.h"

namespace halfnote {

/// Nodes that a Loop or Scan may become when it is written out, with all that is written out in its
/// body.
inline constexpr int64_t kMaxUnrolledNodes = 4096;
/// Nodes that may be copied in a whole graph: what comes later stays a Loop or Scan.
inline constexpr int64_t kMaxCopiedNodes = 4 * kMaxUnrolledNodes;

/// What is known of containers: the elements of each sequence, and of optional values (one or
/// none).
using KnownElements = std::map<ValueId, std::vector<ValueId>>;

/// Gives the uses and the name of `output`, a result of `node`, to `value`; a value that is not the
/// node's own (no name below the node's) is passed on by an Identity.
void give_result(Graph& graph, NodeId node, ValueId output, ValueId value, PassContext& context);

/// Writes the branch that runs in place of an If whose condition is known. Says whether it is one.
bool take_branch(Graph& graph, NodeId node, PassContext& context);

/// Writes a Loop whose trips are counted as a Scan over their numbers (flatten_loop.cc). `front` is
/// what all names in its body begin with, which their copies need not repeat. Gives the Scan;
/// invalid where the Loop stays.
NodeId loop_to_scan(Graph& graph, NodeId node, const std::string& front, PassContext& context);

/// The parts of `x` of these sizes along `axis`: results of a Split, or `x` itself.
std::vector<Expr> split_parts(Builder& b, Expr x, int64_t axis, const std::vector<int64_t>& sizes);
/// `parts` along a new axis.
Expr stack_parts(Builder& b, const std::vector<Expr>& parts, int64_t axis);
/// A builder before `node` whose nodes bear the node's name as prefix.
Builder builder_at(Graph& graph, NodeId node, PassContext& context);

/// Sequences and optional values (flatten_containers.cc).
class Containers {
 public:
  Containers(Graph& graph, PassContext& context) : graph_(graph), context_(context) {}

  /// Notes what a container node makes, or gives the tensors that it takes out. Says whether its
  /// results were replaced, and the node is gone.
  bool visit(NodeId node);
  /// The elements of a sequence; null where they are not known.
  const std::vector<ValueId>* elements(ValueId sequence) const;
  /// Removes the container nodes that nobody reads any more.
  bool sweep();

 private:
  using Rule = bool (Containers::*)(NodeId);
  struct Row {
    std::string_view op;
    Rule rule;
  };
  static const Row kRules[];

  bool construct(NodeId node);
  bool insert(NodeId node);
  bool erase(NodeId node);
  bool split(NodeId node);
  bool pass_on(NodeId node);
  bool make_optional(NodeId node);
  bool at(NodeId node);
  bool length(NodeId node);
  bool concat(NodeId node);
  bool get_element(NodeId node);
  bool has_element(NodeId node);

  bool keep(NodeId node, std::vector<ValueId> elements);
  bool replace(NodeId node, ValueId value);
  bool position(NodeId node, size_t slot, int64_t size, int64_t last, int64_t& found) const;
  void refuse_position(NodeId node, int64_t given, int64_t size, int64_t last) const;

  Graph& graph_;
  PassContext& context_;
  KnownElements known_;
  std::vector<NodeId> makers_;
};

}  // namespace halfnote
