// The operators of ONNX Runtime's training graphs (domain com.microsoft, and a few that it has in
// ONNX's), written in ONNX's and our own.
//
//   dX = com.microsoft.ReluGrad(dY, Y)     ──▶   dX = ai.halfnote.ReluGrad(dY, Y)
//
// One row an op: a rule, or the reason why halfnote refuses it.
#pragma once

#include <span>
#include <string_view>

#include "compiler/ops/operator.h"

namespace halfnote {

struct ForeignOp {
  std::string_view domain;
  std::string_view name;
  LowerRule rule = nullptr;
  std::string_view refusal = {};  // why and what else to do, where there is no rule
};

/// All rows, ordered by domain and name.
std::span<const ForeignOp> foreign_ops();
/// The row of a node's op; null for an op that is not foreign.
const ForeignOp* find_foreign_op(const Node& node);
/// Replaces a node by what its row makes; results keep their names, new nodes the role and the
/// origin. Throws Error(kUnsupported) where the row refuses.
void lift_foreign_op(Graph& graph, NodeId node, const InferNode& infer);

}  // namespace halfnote
