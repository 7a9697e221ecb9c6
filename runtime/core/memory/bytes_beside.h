// What a plan takes beside what its graph shows (passes/device/live_ranges.h), so that a limit on
// memory can be kept by a pass that knows the graph alone.
#pragma once

#include "passes/device/live_ranges.h"
#include "runtime/core/plan.h"

namespace halfnote {

/// For each node that has steps in `program`, which was planned from `graph`.
BytesBeside bytes_beside(const Graph& graph, const Program& program);

}  // namespace halfnote
