// What must hold of an artifact that no compiler wrote, before the session reads it: a file says
// what it likes, and neither its types nor its shapes may lead a program past its memory.
#pragma once

#include <string_view>

#include "compiler/ir/model.h"
#include "runtime/core/plan.h"
#include "runtime/core/state_store.h"

namespace halfnote {

/// Throws Error(kModel) unless the artifact is compiled to its end and what it says of itself fits
/// together: its graphs, its states and their new values, the powers of the loss scale, which it
/// completes.
void check_artifact(Model& model);

/// Throws Error(kModel) unless the states that the session reads are one number each, and whatever
/// has the name of a state has its type, in every step and in the inference graph: all of them read
/// the one place of that state.
void check_states(const Model& model, const StateStore& store);

/// Throws Error(kModel) unless a step gives the loss first (`apply` has none), and what else the
/// session reads of its outputs is one number each.
void check_outputs(const Model& model, std::string_view step, const Program& program);

}  // namespace halfnote
