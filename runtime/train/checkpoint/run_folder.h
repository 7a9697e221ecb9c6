// The names of what a run writes into its folder, and how a folder of ours is told from any other:
// a folder that somebody else filled may have a config.json or a model.onnx that is all there is of
// a model.
#pragma once

#include <filesystem>
#include <string_view>

namespace halfnote {

inline constexpr std::string_view kRunConfig = "config.json";
inline constexpr std::string_view kRunMetrics = "metrics.jsonl";
inline constexpr std::string_view kRunCheckpoints = "checkpoints";
inline constexpr std::string_view kRunLatest = "LATEST";
inline constexpr std::string_view kRunLock = "lock";
inline constexpr std::string_view kRunPlan = "plan.json";
inline constexpr std::string_view kRunMemory = "memory.json";
inline constexpr std::string_view kRunModel = "model.onnx";
inline constexpr std::string_view kRunModelData = "model.onnx.data";
inline constexpr std::string_view kRunProfile = "profile.json";
inline constexpr std::string_view kRunTrace = "profile.trace.json";

/// Has a run written here? By its marks: config.json with the keys of ours, a manifest of a
/// checkpoint, or (of a run that ended before either) its lock, with nothing beside it but what
/// comes before them.
bool is_run_folder(const std::filesystem::path& folder);

/// Makes the folder if it is missing. With `new_number`, the number at the end of the name goes up
/// until a folder is made that was not there: runs that begin at the same time get one each. Throws
/// Error(kIo).
std::filesystem::path make_run_folder(const std::filesystem::path& folder, bool new_number);

/// Throws Error(kUsage), with what stands there, for a folder that is neither empty nor a run's.
void refuse_foreign_folder(const std::filesystem::path& folder);

}  // namespace halfnote
