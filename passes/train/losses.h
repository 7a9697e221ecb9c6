// The losses that --loss attaches to a graph without one.
#pragma once

#include <string>

#include "compiler/ir/builder.h"
#include "passes/pass.h"

namespace halfnote {

/// Appends the loss `options.train.loss` of the value `from` behind the graph, with the graph input
/// it compares with (`labels` or `target`); returns the scalar loss. Classes, probabilities and
/// labels as in PyTorch; reduction is the mean (kl: the mean over the batch, "batchmean"). Throws
/// Error(kUsage) for an unknown loss or a setting that has no meaning, Error(kModel) for scores of
/// the wrong rank.
ValueId attach_named_loss(Graph& graph, ValueId from, PassContext& context);

}  // namespace halfnote
