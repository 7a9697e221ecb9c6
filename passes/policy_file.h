// The policy file: TOML with the settings of a compilation (docs/policy.md). The command line wins
// over it.
#pragma once

#include <filesystem>
#include <string_view>

#include "passes/options.h"

namespace halfnote {

/// Reads a policy file into the options. Throws Error(kUsage) with file and line for a syntax
/// error, an unknown key (with the closest known one) or a value of the wrong type, Error(kIo) if
/// it cannot be read.
void load_policy(const std::filesystem::path& file, CompileOptions& options);
void parse_policy(std::string_view text, std::string_view file_name, CompileOptions& options);

/// `fp32`, `fp16`, `bf16`, Lightning's `16-mixed`, `bf16-mixed`, Keras' `mixed_float16`,
/// `mixed_bfloat16`, `float32`; throws Error(kUsage) for others.
DType parse_precision(std::string_view name);

}  // namespace halfnote
