// A pass of the device pipeline (runtime/core/device_ready.cc).
#pragma once

#include "passes/device/live_ranges.h"
#include "passes/pass.h"

namespace halfnote {

/// States what the activations of the graph may take at once, for the pass; 0: no limit. `beside`
/// is what a plan was seen to take beside them. Takes away what marks copies.
void limit_activations(Model& model, int64_t bytes, const BytesBeside& beside = {});

/// What is stated so; 0 where nothing is.
int64_t activation_limit(const Model& model);

/// Computes activations again where the backward pass reads them, until the limit is kept;
/// rematerialize.cc says how. Without a limit it does nothing.
bool rematerialize(Model& model, PassContext& context);

/// What a node that the pass made is a copy of; invalid for all others, and where the original is
/// gone, since only the copy is read: then it stands for it.
NodeId original_of(const Graph& graph, NodeId node);

}  // namespace halfnote
