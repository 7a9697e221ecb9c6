// Questions about a graph, for tests of passes (also a user's: testing/graph_matchers.h), reports
// and passes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/graph.h"

namespace halfnote {

// --- finding nodes and values --------------------------------------------------------------------

/// All conditions that are set must hold.
struct NodeQuery {
  std::string op =
      {};  // as `op_name` writes it: `Softmax` is ONNX's; with `domain`, the op alone will do
  std::optional<std::string> domain = {};
  std::string name = {};    // RE2, full match
  std::string reason = {};  // part of the precision's reason
  std::optional<Role> role = {};
  std::string origin = {};
};

/// The nodes of all regions that fit, in the order of `Graph::all_nodes`. Throws Error(kUsage) for
/// a bad pattern.
std::vector<NodeId> find_nodes(const Graph& graph, const NodeQuery& query);
/// The nodes of one op.
std::vector<NodeId> find_nodes(const Graph& graph, std::string_view op);
/// The first node with this name; invalid if there is none.
NodeId find_node(const Graph& graph, std::string_view name);

// --- following edges -----------------------------------------------------------------------------

/// Is it this op of ONNX's, as against one of another domain? False for an invalid id.
bool is_op(const Node& node, std::string_view op);
bool is_op(const Graph& graph, NodeId node, std::string_view op);
bool is_cast(const Node& node);
/// Is it a value (not an operand left out) of floats?
bool is_float_value(const Graph& graph, ValueId value);
/// Does the node (Shape, Size) read no number of its operand, but how many there are?
bool reads_shape_only(const Node& node);
/// Is it a tensor of f32?
bool is_f32_tensor(const Graph& graph, ValueId value);
/// The node that makes the value; invalid for inputs and initializers.
NodeId producer(const Graph& graph, ValueId value);
/// The value before all casts that lead to it.
ValueId before_casts(const Graph& graph, ValueId value);
/// The node that makes the value, casts skipped.
NodeId producer_through_casts(const Graph& graph, ValueId value);
/// The nodes that read the value or a cast of it, each once; the casts themselves are left out.
std::vector<NodeId> users_through_casts(const Graph& graph, ValueId value);
/// The casts of a value to `dtype`, directly.
std::vector<NodeId> casts_of(const Graph& graph, ValueId value, DType dtype);

/// The nodes of a shortest way on which `to` depends on `from`; nothing if it does not. Empty when
/// both are the same value. A node depends on what its subgraphs capture.
std::optional<std::vector<NodeId>> find_path(const Graph& graph, ValueId from, ValueId to);
inline bool exists_path(const Graph& graph, ValueId from, ValueId to) {
  return find_path(graph, from, to).has_value();
}
/// Does node `to` depend on a result of node `from`?
bool exists_path(const Graph& graph, NodeId from, NodeId to);

/// The node that alone reads the value, once; invalid where there is none, or others do.
NodeId only_reader(const Graph& graph, ValueId value);

// --- shapes --------------------------------------------------------------------------------------

/// Dims of a value as numbers; nothing if they are not known, or the value is none.
std::optional<Shape> known_shape(const Graph& graph, ValueId value);

// --- precision -----------------------------------------------------------------------------------

/// The type in which a node meets its numbers, by what stands in the graph and not by what was
/// decided: `stash_type` where the op has one (1, f32, where it is left out of a
/// LayerNormalization, GroupNormalization or RMSNormalization); else the widest float among the
/// operands, or among the results of a node without float operands. Undefined: no floats.
DType compute_dtype(const Graph& graph, NodeId node);
/// Is there a node of this op (as `op_name` writes it), and do all of them compute in `dtype`?
bool runs_in(const Graph& graph, std::string_view op, DType dtype);

// --- loss scale ----------------------------------------------------------------------------------

/// A value that carries the loss scale S in a power other than -1 (1/S itself), 0 and 1, or that
/// lost S twice.
struct ScaleFault {
  ValueId value;
  int power = 0;
  std::vector<NodeId> path;  // from the first node that met S to the value
  std::string text;          // one line for a message
};

/// Looks for a path that scales or unscales twice: in the powers the passes noted on values
/// (Value::scale_power), and on its own by following products and quotients with S. S is what has
/// the name `loss_scale`, and initializers marked with a power that are no accumulators; casts,
/// reciprocals and products of S with constants count as S too.
std::optional<ScaleFault> find_scale_fault(const Graph& graph,
                                           std::string_view loss_scale = "loss_scale");

}  // namespace halfnote
