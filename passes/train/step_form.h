// The forms of a training model's graphs that attach-loss and adopt-training make alike.
#pragma once

#include <set>
#include <string>

#include "base/error.h"
#include "passes/pass.h"

namespace halfnote {

/// Dropout becomes the identity, BatchNormalization uses its running statistics. Says how many
/// Dropouts there were that drop something.
size_t to_inference_form(Graph& graph);
/// The inference form of the model's graph; notes in the metadata what dropouts it lost.
void make_inference_form(Model& model);
/// Warns where a model that is to be trained has lost its dropouts in an earlier run.
void warn_of_lost_dropouts(const Model& model, PassContext& context);
/// Warns of nodes that draw random numbers in the inference form too.
void warn_of_noise(const Graph& graph, PassContext& context);
/// Takes the losses, and the inputs that only they read, out of the inference graph where another
/// output remains.
void drop_losses(Graph& graph, const std::set<std::string>& losses, PassContext& context);
/// Renames results whose names the train passes need (step.h). Inputs and weights are known by
/// theirs: throws Error(kModel) for one of such a name.
void free_reserved_names(Graph& graph, PassContext& context);
/// Throws Error(kModel) unless the value is a float with one element; where a flag named it, the
/// flag is to blame (kUsage).
void check_scalar(const Graph& graph, ValueId loss, ErrorCode code = ErrorCode::kModel);
/// Makes the loss output 0 of a step; throws Error(kModel) if it is no float scalar.
void put_loss_first(Graph& graph, ValueId loss);

}  // namespace halfnote
