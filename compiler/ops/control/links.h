// How the operands and results of a node with bodies lie to the inputs and outputs of the bodies.
#pragma once

#include <algorithm>

#include "compiler/ir/graph.h"

namespace halfnote {

/// Input i of a body stands for operand i − `own_inputs` + `own_operands` of the node, output i for
/// result i − `own_outputs`. The first `carried` of these operands go round: the body's output for
/// one of them is its input in the next trip.
struct BodyLinks {
  size_t own_inputs = 0, own_operands = 0, own_outputs = 0, carried = 0;
};

/// Of If (whose branches have no inputs), Loop, Scan and SequenceMap.
inline BodyLinks links_of(const Graph& graph, NodeId node) {
  const Node& data = graph.node(node);
  const size_t operands = graph.inputs(node).size();
  if (data.op == "If") return {0, 1, 0, 0};
  if (data.op == "Loop") return {2, 2, 1, operands < 2 ? 0 : operands - 2};
  if (data.op != "Scan") return {};
  const auto scans =
      static_cast<size_t>(std::max<int64_t>(0, data.attributes.get_int("num_scan_inputs", 0)));
  return {0, 0, 0, scans > operands ? 0 : operands - scans};
}

}  // namespace halfnote
