// What `halfnote run` shows: the table at the start, the memory plan, the result.
#pragma once

#include <string>
#include <vector>

#include "cli/run_setup.h"
#include "runtime/train/terminal.h"

namespace halfnote::cli {

/// The policy's precision with its loss scale: `f16, loss scale dynamic from 65536 (halfnote)`.
std::string precision_text(const Model& model);

/// Device, precision, parameters, batch, steps, memory, data: what the run is about to do.
std::vector<TableRow> start_rows(const RunArguments& arguments, const Session& session,
                                 const BoundInputs& bound, const RunData& data,
                                 const Trainer& trainer, const TrainerOptions& options);

/// Peak memory by category.
std::vector<TableRow> memory_rows(const Session& session);

/// `measured`: bytes that the process took in the run, besides files.
std::vector<TableRow> result_rows(const TrainResult& result, const Session& session,
                                  size_t measured, const std::string& model_file);

/// The text of config.json.
std::string config_json(const RunArguments& arguments, const Session& session,
                        const BoundInputs& bound, const RunData& data,
                        const TrainerOptions& options);

}  // namespace halfnote::cli
