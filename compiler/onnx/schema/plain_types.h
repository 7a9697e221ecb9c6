// Types of the results of the commonest ops without a detour through protobuf.
#pragma once

#include <optional>

#include "compiler/ir/graph.h"

namespace halfnote::proto {

/// What the schema's inference gives for the only result of an elementwise op of one tensor, of a
/// Constant, of a Cast, of Add, Sub, Mul and Div where one shape spreads over the other, and of
/// MatMul of equal leading dims or by one matrix. Nothing for any other node, and for one that the
/// schema might refuse.
std::optional<ValueType> plain_result_type(const Graph& graph, NodeId node, int64_t opset);

}  // namespace halfnote::proto
