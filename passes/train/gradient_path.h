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

std::vector<ValueId> trainable_initializers(const Graph& graph);

/// Values on a path from a source through `nodes`, by index: those that can have a gradient. A
/// value of unknown type may be a float.
std::vector<bool> reached_from(const Graph& graph, std::span<const NodeId> nodes,
                               std::span<const ValueId> sources);

/// Those of `nodes` that lie between the reached values and these ends, last first.
std::vector<NodeId> nodes_between(const Graph& graph, std::span<const NodeId> nodes,
                                  const std::vector<bool>& reached, std::span<const ValueId> ends);

/// Gradient ops of ours between the sources and `end` become their bodies in standard ops, so that
/// they can be differentiated once more.
void write_out_derivatives(Graph& graph, const InferNode& infer, std::span<const ValueId> sources,
                           ValueId end);

/// Notes every one of the nodes, if it is not noted yet, whose op is known, has neither a gradient
/// nor a lowering nor a body, and is no control flow and no container, which may be flattened.
void add_without_gradient(const Graph& graph, std::span<const NodeId> nodes,
                          UnsupportedOps& missing);

/// Notes every node before `end` whose result has a size that follows from values: no step can be
/// planned with it. What follows from shapes alone is a number once they are known.
void add_sized_by_values(const Graph& graph, ValueId end, UnsupportedOps& problems);

}  // namespace halfnote
