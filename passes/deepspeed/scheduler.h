// The `scheduler` section of a DeepSpeed configuration.
#pragma once

#include "passes/deepspeed/json.h"
#include "passes/options.h"

namespace halfnote::deepspeed {

/// Sets the schedule, and the learning rate where the scheduler brings one; the optimizer is set
/// already. What has no meaning here is added to `notes`. Returns what the file calls the settings
/// of an optimizer that it gives: `schedule.total`, scheduler.params.total_num_steps. Throws
/// Error(kUsage).
std::map<std::string, std::string> read_scheduler(std::string_view file, const Json& object,
                                                  const std::string& prefix, Optimizer& optimizer,
                                                  std::vector<std::string>& notes);

}  // namespace halfnote::deepspeed
