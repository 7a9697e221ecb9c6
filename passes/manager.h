// Runs a pipeline: the stages in order, each pass verified, timed, and named in the errors it
// throws.
#pragma once

#include <span>
#include <vector>

#include "passes/pass.h"

namespace halfnote {

/// The compile pipeline (pipeline.cc), in order.
std::span<const PassRow> compile_pipeline();

/// What happened, for `halfnote compile --time-passes`, reports and tests.
struct PipelineResult {
  Stage stage = Stage::kImported;
  std::vector<PassRecord> records;
};

/// Runs the rows on the model. After a pass that changed a graph the graph is verified; the flag
/// that the pass gave is checked against a hash of the model. Options may skip passes by name, stop
/// after one, and dump the text after some. Throws Error(kUsage) for an unknown pass name, with the
/// closest one.
PipelineResult run_pipeline(Model& model, PassContext& context, std::span<const PassRow> rows);

}  // namespace halfnote
