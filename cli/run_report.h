// What `halfnote run` shows: the table at the start, the memory plan, the result.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cli/run_setup.h"
#include "runtime/train/terminal.h"

namespace halfnote::cli {

/// The policy's precision with its loss scale: `f16, loss scale dynamic from 65536 (halfnote)`.
std::string precision_text(const Model& model);

/// The most memory that a run takes, in bytes, as it is known before the first step.
struct PredictedMemory {
  MemoryUse plan;
  size_t batches = 0;
  size_t program = 0;  // program, libraries, data that is loaded, the plan itself
  size_t before = 0;   // the most until now: reading a model of many small weights
  size_t device = 0;   // of a device's memory: state, arena, constants, batches; 0 on the CPU
  bool own = false;    // is that memory none of the process's?
  /// Of the process. Beside a device the host has the state and the constants once more, no arena.
  size_t training() const {
    if (device == 0) return plan.total() + batches + program;
    return plan.state + plan.constants + batches + program + (own ? 0 : device);
  }
  size_t total() const { return std::max(before, training()); }
};

/// The most that the process and the device ever had.
struct MeasuredMemory {
  size_t process = 0, device = 0;
};
/// Looks at the process once everything is planned, and nothing has run. `forgotten`: the most that
/// it had before the system's count was set back.
PredictedMemory predict_memory(const Session& session, const Trainer& trainer, size_t forgotten);

/// Device, precision, parameters, batch, steps, memory, data: what the run is about to do.
std::vector<TableRow> start_rows(const RunArguments& arguments, const Session& session,
                                 const BoundInputs& bound, const RunData& data,
                                 const Trainer& trainer, const TrainerOptions& options,
                                 const PredictedMemory& predicted);

/// Peak memory by category.
std::vector<TableRow> memory_rows(const Session& session, const PredictedMemory& predicted);

std::vector<TableRow> result_rows(const TrainResult& result, const PredictedMemory& predicted,
                                  const MeasuredMemory& measured, const std::string& model_file);

/// The text of memory.json.
std::string memory_json(const PredictedMemory& predicted, const MeasuredMemory& measured);

/// The --data of the sessions of a run so far, from its config.json, the last one at the end;
/// nothing without one that can be read.
std::optional<std::vector<std::string>> data_so_far(const std::filesystem::path& run_folder);

/// The text of config.json. `earlier`: other data that the run was trained on before.
std::string config_json(const RunArguments& arguments, const Session& session,
                        const BoundInputs& bound, const RunData& data,
                        const TrainerOptions& options, const std::vector<std::string>& earlier);

}  // namespace halfnote::cli
