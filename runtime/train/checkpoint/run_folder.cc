#include "runtime/train/checkpoint/run_folder.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/system/folder.h"
#include "base/system/temporary_files.h"
#include "passes/nesting.h"
#include "runtime/train/checkpoint/manifest.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;

/// What there may be before config.json is written.
constexpr std::array kFirst = {kRunLock, kRunMetrics, kRunPlan, kRunCheckpoints, kRunLatest};
constexpr size_t kConfigLimit = size_t{16} << 20;
constexpr size_t kLockLimit = 64;

/// The content of a small regular file; empty for anything else.
std::string text_of(const fs::path& path, size_t limit) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return {};
  try {
    return read_text(path, limit);
  } catch (const Error&) {  // what cannot be read is no mark
    return {};
  }
}

bool has_config(const fs::path& folder) {
  const std::string text = text_of(folder / kRunConfig, kConfigLimit);
  if (text.empty() || json_nests_deeper(text)) return false;
  const auto json = nlohmann::json::parse(text, nullptr, false);
  return json.is_object() && json.contains("halfnote") && json.contains("artifact_hash");
}

/// A damaged manifest is one, too.
bool has_checkpoint(const fs::path& folder) {
  const fs::path checkpoints = folder / kRunCheckpoints;
  const std::vector<std::string> names = names_in(checkpoints);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return names_manifest_format(text_of(checkpoints / name / "manifest.json", kManifestLimit));
  });
}

/// What a run writes first (run_lock.cc); for a moment it is empty.
bool has_lock(const fs::path& folder) {
  std::error_code error;
  const fs::path lock = folder / kRunLock;
  if (!fs::is_regular_file(lock, error)) return false;
  if (fs::file_size(lock, error) == 0) return true;
  return text_of(lock, kLockLimit).starts_with("process ");
}

bool is_first(const std::string& name) {
  return is_temporary_name(name) || name == std::string(kRunLatest) + ".tmp" ||
         std::find(kFirst.begin(), kFirst.end(), name) != kFirst.end();
}

bool all_names(const fs::path& folder, bool (*fit)(const std::string&)) {
  const std::vector<std::string> names = names_in(folder);
  return std::all_of(names.begin(), names.end(), fit);
}

}  // namespace

bool is_run_folder(const fs::path& folder) {
  return has_config(folder) || has_checkpoint(folder) ||
         (has_lock(folder) && all_names(folder, is_first));
}

fs::path make_run_folder(const fs::path& folder, bool new_number) {
  fs::path made = folder;
  std::error_code error;
  if (!new_number) {
    fs::create_directories(made, error);
  } else {
    fs::create_directories(made.parent_path(), error);
    const std::string name = made.string();
    const size_t number = name.rfind('-') + 1;
    // Not to be made means that another run was first.
    for (int64_t n = std::stoll(name.substr(number)); !error && !fs::create_directory(made, error);)
      made = name.substr(0, number) + std::to_string(++n);
  }
  if (!error) return made;
  throw Error(ErrorCode::kIo, "cannot make the run folder (" + error.message() + ")")
      .at({made.string(), {}, {}});
}

void refuse_foreign_folder(const fs::path& folder) {
  if (names_in(folder).empty() || is_run_folder(folder)) return;
  throw Error(ErrorCode::kUsage, "the run folder holds what is not of a run")
      .at({folder.string(), {}, {}})
      .expected("a new or empty folder, or one of an earlier run", folder_listing(folder))
      .hint("choose another one with --run-dir");
}

}  // namespace halfnote
