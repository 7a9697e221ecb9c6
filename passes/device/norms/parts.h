// What the passes that fuse normalizations with sums ask of a graph.
#pragma once

#include <string_view>

#include "passes/pass.h"

namespace halfnote {

/// Is it such a node of the main region?
bool is_main_op(const Graph& graph, NodeId id, std::string_view domain, std::string_view op);
/// The one node that reads the value; invalid if there are others, or it is a result.
NodeId only_user(const Graph& graph, ValueId value);
/// Have both one type and one known shape?
bool alike(const Graph& graph, ValueId a, ValueId b);
bool is_made_before(const Graph& graph, ValueId value, NodeId node);
/// `to` takes the place and the name of `from`, whose node goes.
void take_over(Graph& graph, ValueId from, ValueId to);
/// Made by elementwise nodes that will be one with the sum, if they may.
bool is_made_on_the_way(const Graph& graph, ValueId value);

/// Read by an elementwise node alone, which will be one with the node that makes it, if it may.
bool goes_into_chain(const Graph& graph, ValueId value);

}  // namespace halfnote
