// The files of `halfnote run`: where its outputs go, and that none takes the place of another file.
#pragma once

#include <filesystem>

#include "cli/run_setup.h"

namespace halfnote::cli {

/// --export, or the default.
std::filesystem::path trained_model_file(const RunArguments& arguments,
                                         const std::filesystem::path& run_folder);
/// --profile, or the default; empty without one.
std::filesystem::path profile_file(const RunArguments& arguments,
                                   const std::filesystem::path& run_folder);
/// The trace beside a profile.
std::filesystem::path trace_file(std::filesystem::path profile);

/// Told before a training that would be for nothing: throws Error(kUsage) for a run folder with
/// what no run has written, and for an output that is a file the run reads or another that it
/// writes; Error(kIo) for one that cannot be written.
void check_run_files(const RunArguments& arguments, const Model& model,
                     const std::filesystem::path& run_folder);

}  // namespace halfnote::cli
