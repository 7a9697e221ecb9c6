// Which nodes a gradient has to flow through, and which of them have no rule for it.
#pragma once

#include <span>
#include <vector>

#include "compiler/ir/builder.h"
#include "compiler/ir/graph.h"
#include "passes/unsupported.h"

namespace halfnote {

/// What a node reads, absent operands too; behind them what the op that it undoes was given
/// (OperatorRow::undoes), or the captures of its bodies.
std::vector<ValueId> operands_of(const Graph& graph, NodeId node);

/// Are the element types and ranks of all operands and results known?
bool has_known_types(const Graph& graph, NodeId node);

/// The node that this one would undo (OperatorRow::undoes) if both had the same parameters; invalid
/// where there is none.
NodeId undone_otherwise(const Graph& graph, NodeId node);

std::vector<ValueId> trainable_initializers(const Graph& graph);

/// Do the results follow from the shapes of the operands, whatever their values?
bool reads_shapes_only(const Node& node);

/// Can values of this type have a gradient? One that is unknown, or no tensor, may hold floats.
bool carries_floats(const ValueType& type);

/// What a path may go through.
enum class Reach : uint8_t {
  kFloats,    // what can have a gradient
  kAllTypes,  // integers and truth values too, wherever values follow from values
};

/// Values on a path from a source through `nodes`, by index.
std::vector<bool> reached_from(const Graph& graph, std::span<const NodeId> nodes,
                               std::span<const ValueId> sources, Reach reach = Reach::kFloats);

/// Those of `nodes` that lie between the reached values and these ends, last first.
std::vector<NodeId> nodes_between(const Graph& graph, std::span<const NodeId> nodes,
                                  const std::vector<bool>& reached, std::span<const ValueId> ends);

/// The ends, and what these nodes read, by index.
std::vector<bool> wanted_by(const Graph& graph, std::span<const NodeId> nodes,
                            std::span<const ValueId> ends);

/// Gradient ops of ours between the sources and `end` become their bodies in standard ops, so that
/// they can be differentiated once more.
void write_out_derivatives(Graph& graph, const InferNode& infer, std::span<const ValueId> sources,
                           ValueId end);

}  // namespace halfnote
