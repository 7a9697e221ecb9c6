// Steps that run bodies: If and Scan as kernels over programs of their own.
//
// A body is planned as any graph is, for the types of this call; its arena, the carried values and
// the slices of one trip lie in the workspace of the step, so that the memory of the whole program
// is known before it runs, and a run allocates nothing. On a device all of it is captured with the
// rest of the step, which asks the host nothing: both branches of an If run, and what the condition
// did not ask for is left behind; a Scan is all its trips, one behind the other.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "compiler/ir/graph.h"
#include "runtime/core/plan.h"

namespace halfnote {

/// Is this an op whose bodies a step can run (If, Scan)?
bool runs_bodies(std::string_view domain, std::string_view op);

/// What a step reads, in order: the node's inputs (absent ones too), then what its bodies capture
/// and is not known before the run.
std::vector<ValueId> step_operands(const Graph& graph, NodeId node, const StateStore& store);

struct ControlStep {
  std::unique_ptr<Kernel> kernel;  // its inputs are the step's operands
  double flops = 0;                // of all trips, and of the branches that run, at most
  bool reads_16bit = false;
  size_t constant_bytes = 0;  // of the constants in the bodies
  size_t nodes = 0;           // that a device runs for it: of all trips and branches
};

/// Plans a node with bodies. Throws Error(kUnsupported) for an op other than If and Scan, for a
/// shape that is open or changes from trip to trip, for more trips than a device captures, and for
/// a node of a body that no kernel takes.
ControlStep plan_control(const Graph& graph, NodeId node, const std::vector<ValueId>& operands,
                         const PlanOptions& options);

}  // namespace halfnote
