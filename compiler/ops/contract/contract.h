// What an operator asks of its attributes and operands beyond what ONNX's inference looks at: words
// it knows, numbers in range, sizes that fit each other. What no contract forbids, the kernels can
// rely on.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// Holds a node, in op-set 23 and with inferred types, against the contract of its operator; other
/// operators than ONNX's own are left alone, and so are dims that are no numbers. Throws
/// Error(kModel) that names the attribute or operand.
void check_contract(const Graph& graph, NodeId node);

/// Mistakes that a schema sees as well, but for which we know where they come from and what helps;
/// asked before the schema. Throws Error(kModel).
void check_known_mistakes(const Graph& graph, NodeId node);

namespace contract {

/// Attributes: words out of a list, numbers out of a range, axes within the rank.
void check_attributes(const Graph& graph, NodeId node);
/// Operands: sizes against each other, and constant indices against the size they point into.
void check_operands(const Graph& graph, NodeId node);

}  // namespace contract
}  // namespace halfnote
