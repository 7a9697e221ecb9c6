// Where a run first makes an Inf or a NaN out of finite numbers: for the message of a training that
// is given up. Slow; used once.
#pragma once

#include <optional>
#include <string>

#include "compiler/ir/graph.h"
#include "runtime/core/executor.h"

namespace halfnote {

struct NonFinite {
  std::string node, op;  // empty for an input or a state that is not finite itself
  std::string value;
  bool nan = false;  // else Inf
  /// Where the value is what halfnote rounds to 16 bits: that type. `node` and `op` are then of the
  /// node that makes what does not fit, empty for an input or a state.
  DType rounded_to = DType::kUndefined;
};

/// Runs the program once and gives the first value that holds a NaN (an Inf) though no operand of
/// its node holds one. `graph` is the graph that the program was planned from. The states change as
/// in every run. Nothing if all stays finite.
std::optional<NonFinite> find_nonfinite(Executor& executor, const StateStore& store,
                                        const Graph& graph, std::span<const Tensor> inputs);

/// The first state in f32 that holds a NaN or Inf as it is now; empty if none does. Sums of
/// gradients may: the step that takes them is skipped then.
std::string find_nonfinite_state(const StateStore& store);

/// `node "conv1" (Conv) makes the first Inf, in "y"`, or `"x" is too large for f16`.
std::string to_string(const NonFinite& found);
/// What helps against it.
std::string advice(const NonFinite& found);

}  // namespace halfnote
