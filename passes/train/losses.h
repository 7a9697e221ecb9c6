// The losses that --loss attaches to a graph without one.
#pragma once

#include <string>

#include "compiler/ir/builder.h"
#include "passes/pass.h"

namespace halfnote {

/// What a value rounds to 16 bits, where it does only that: the border cast of an output that the
/// source has in 16 bits. A loss is computed in f32, from what lies before such a cast.
ValueId before_rounding(const Graph& graph, ValueId value);

/// Throws SettingError for an unknown loss, or a setting of it that has no meaning.
void check_loss(const TrainOptions& train);

/// Appends the loss `options.train.loss` of the value `output` behind the graph, with the graph
/// input it compares with (`labels`, or `target` in the type of the output); returns the scalar
/// loss. Classes, probabilities and labels as in PyTorch, the classes on axis
/// `options.train.class_axis`; reduction is the mean (kl: the mean over the batch, "batchmean").
/// Throws Error(kUsage) for an unknown loss or a setting that has no meaning, Error(kModel) for
/// scores of the wrong rank.
ValueId attach_named_loss(Graph& graph, ValueId output, PassContext& context);

}  // namespace halfnote
