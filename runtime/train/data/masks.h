// Inputs whose -Inf hides what it is added to.
#pragma once

#include "compiler/ir/graph.h"

namespace halfnote {

/// Is the input read by nothing but sums on their way into a softmax, as a mask of scores is? There
/// -Inf is a probability of 0; anywhere else it spoils the step.
bool is_mask_of_scores(const Graph& graph, ValueId input);

}  // namespace halfnote
