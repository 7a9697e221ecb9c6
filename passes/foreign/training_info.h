// Models with a `training_info` that others wrote: one step, run as it is.
#pragma once

#include "passes/pass.h"

namespace halfnote {

/// Has the model training steps that halfnote did not compile?
bool has_foreign_step(const Model& model);

/// Makes the one step of such a model ready for a session: evaluates the initialization into the
/// first values that its binding names (random nodes without a seed take one from
/// `options.train.seed` and their names), puts the loss first among the outputs, and brings all
/// graphs to canonical form. Throws Error(kUnsupported) for several steps, a step without a scalar
/// to report as the loss, and one that draws random numbers.
void adopt_foreign_step(Model& model, PassContext& context);

}  // namespace halfnote
