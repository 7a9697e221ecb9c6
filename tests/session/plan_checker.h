// An independent judge of a plan: by following what each buffer holds, not how the plan chose it.
#pragma once

#include <gtest/gtest.h>

#include "compiler/ir/graph.h"
#include "runtime/core/plan.h"

namespace halfnote::test {

/// Checks that every step finds its operands unharmed: that no step writes over bytes that hold a
/// value still to be read (but for its own operands where the kernel can share), that outputs and
/// new states are whole at the end, and that everything lies in its memory.
::testing::AssertionResult check_plan(const Graph& graph, const Program& program,
                                      const StateStore& store);

}  // namespace halfnote::test
