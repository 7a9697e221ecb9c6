// Types of node results: one node at a time (used by every builder), or a whole graph (the pass).
#pragma once

#include "compiler/ir/builder.h"
#include "compiler/ir/graph.h"

namespace halfnote {

/// Sets the types of the node's results, by the row of an `ai.halfnote` op or the schema of an ONNX
/// op (op-set 23). Throws Error(kModel) where operands do not fit, Error(kUnsupported) for an op
/// nobody knows.
void infer_node(Graph& graph, NodeId node);

/// The types that infer_node() may change: of the results of a node, and of the inputs and results
/// in its bodies.
std::vector<ValueType> types_within(const Graph& graph, NodeId node);

/// `infer_node` for every node, in order. Returns true when a type changed.
bool infer_graph(Graph& graph);

}  // namespace halfnote
