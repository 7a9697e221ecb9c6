// A DeepSpeed configuration (JSON) as the settings of a compilation (docs/policy.md).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "passes/options.h"

namespace halfnote {

/// Takes over fp16, bf16, the three batch sizes (of one process), gradient_clipping, optimizer and
/// scheduler. Returns what the file asks for that means nothing here (logging, one-process
/// settings), a line each. Throws Error(kUsage) for an unknown key (with the closest one), a value
/// of the wrong type, batch sizes that contradict each other, or a setting that would train
/// otherwise than it says; Error(kIo) if the file cannot be read.
std::vector<std::string> load_deepspeed(const std::filesystem::path& file, CompileOptions& options);
std::vector<std::string> parse_deepspeed(std::string_view text, std::string_view file_name,
                                         CompileOptions& options);

}  // namespace halfnote
