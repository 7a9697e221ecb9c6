// Function bodies: an `ai.halfnote` call as a function in standard ops, for export and for tests.
#pragma once

#include <string>

#include "compiler/ir/builder.h"
#include "compiler/ir/graph.h"
#include "compiler/ir/model.h"

namespace halfnote {

/// The function that a call of an `ai.halfnote` op stands for, specialised to the types and
/// attributes of the call. Its inputs are the call's in order (one that the call leaves out is an
/// input without type, which nothing reads), typed as the call's operands; constants are
/// initializers of its graph. The overload names the specialisation: equal overloads have equal
/// bodies. Throws Error(kUnsupported) for an op without a body, or where the body needs sizes that
/// are still symbolic.
Function build_body(const Graph& graph, NodeId node, const InferNode& infer);

/// A digest of what a function body computes: its ops, attributes, wiring and constants, whatever
/// its names and types are. A Constant node counts as an initializer.
uint64_t body_digest(const Graph& body);

}  // namespace halfnote
