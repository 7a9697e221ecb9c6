// Labels and indices that a graph reads from an input as they are: a device would find out that one
// is out of range when the step has changed the states, so they are looked at before it starts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "compiler/ir/graph.h"

namespace halfnote {

struct CheckedInput {
  size_t input = 0;      // of the graph
  std::string node, op;  // that reads it
  bool labels = false;   // of `size` classes; else indices into a dim of `size`
  int64_t size = 0;
  std::optional<int64_t> ignore_index;
};

/// Integer inputs of the graph that a loss, a Gather or a GatherElements reads through nodes that
/// only move numbers, where the number of classes or the dim is known.
std::vector<CheckedInput> find_checked_inputs(const Graph& graph);

/// Throws Error(kData), as the kernels of the CPU do, for a number out of range.
void check_input(const CheckedInput& checked, const Tensor& fed);

}  // namespace halfnote
