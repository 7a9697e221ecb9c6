// The compiler as one call: an imported model in, a training model (the artifact, before it is
// written) out.
#pragma once

#include "passes/manager.h"
#include "passes/pass.h"

namespace halfnote {

struct CompileResult {
  Model model;
  PipelineResult pipeline;
  std::vector<Remark> remarks;
};

/// Runs the compile pipeline and prepares the model for export: function bodies of all
/// `ai.halfnote` nodes, op-sets, and metadata with policy and version. `evaluate` runs constant
/// nodes; the runtime gives it.
CompileResult compile(Model model, const CompileOptions& options, EvaluateConstants evaluate);

/// Gives every `ai.halfnote` node its overload and the model the function bodies that they call.
/// Called by `compile`; a pass that runs later may call it again.
void attach_bodies(Model& model);

/// The policy as the one-line text that stands in the metadata (`halfnote.policy`), keys in fixed
/// order.
std::string describe(const CompileOptions& options);

/// Some lines of that text for people: precision, loss, optimizer, schedule. Empty for a text that
/// is none.
std::string settings_text(std::string_view description);

}  // namespace halfnote
