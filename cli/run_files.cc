#include "cli/run_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/file.h"
#include "cli/arguments.h"
#include "runtime/train/checkpoint/run_folder.h"
#include "runtime/train/data/spec.h"

namespace halfnote::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHint = "name another file";

/// A file in a folder that the run itself will make needs no check: if the folder cannot be made,
/// that is told before the first step, too.
bool in_new_folder(const fs::path& file, const fs::path& run_folder) {
  std::error_code error;
  const bool is_new = !fs::exists(run_folder, error);
  return is_new && file.has_filename() && file.has_parent_path() &&
         place_of(file.parent_path()) == place_of(run_folder);
}

void check_output(const fs::path& file, const fs::path& run_folder, const char* what) {
  if (file.empty() || in_new_folder(file, run_folder)) return;
  try {
    check_writable(file);
  } catch (const Error& error) {
    throw Error(ErrorCode::kIo, fmt::format("{} cannot be written there", what))
        .at({file.string(), {}, {}})
        .expected("a file in a folder that can be written", error.problem());
  }
}

/// Checkpoints come and go: a file among them would go with one.
void refuse_among_checkpoints(const NamedFile& output, const fs::path& run_folder) {
  if (output.path.empty()) return;
  const fs::path checkpoints = place_of(run_folder / kRunCheckpoints);
  for (fs::path at = place_of(output.path); at.has_relative_path(); at = at.parent_path()) {
    if (at != checkpoints) continue;
    throw Error(ErrorCode::kUsage, output.name + " is among the checkpoints of the run")
        .at({output.path.string(), {}, {}})
        .hint(kHint);
  }
}

void add_data(std::vector<NamedFile>& files, const char* flag, const std::string& spec) {
  if (spec.empty()) return;
  for (const std::string& file : data_files(parse_data_spec(spec))) files.push_back({flag, file});
}

/// All that the run reads. Its own plan file is one that it writes again as it is.
std::vector<NamedFile> inputs(const RunArguments& arguments, const Model& model,
                              const fs::path& run_folder) {
  std::vector<NamedFile> files = {{"the artifact", arguments.artifact}};
  for (const std::string& data : model.data_files) {
    files.push_back({"the artifact's external data", data});
  }
  add_data(files, "--data", arguments.data);
  add_data(files, "--eval-data", arguments.eval_data);
  const bool own_plan =
      !arguments.plan.empty() && place_of(arguments.plan) == place_of(run_folder / kRunPlan);
  if (!own_plan) files.push_back({"--plan", arguments.plan});
  return files;
}

}  // namespace

fs::path trained_model_file(const RunArguments& arguments, const fs::path& run_folder) {
  return arguments.export_file.empty() ? run_folder / kRunModel : fs::path(arguments.export_file);
}

fs::path profile_file(const RunArguments& arguments, const fs::path& run_folder) {
  return arguments.profile == kDefaultProfile ? run_folder / kRunProfile
                                              : fs::path(arguments.profile);
}

fs::path trace_file(fs::path profile) {
  return profile.empty() ? profile : profile.replace_extension(".trace.json");
}

void check_run_files(const RunArguments& arguments, const Model& model,
                     const fs::path& run_folder) {
  refuse_foreign_folder(run_folder);
  constexpr std::array kOwn = {kRunConfig, kRunMetrics, kRunLatest, kRunLock, kRunMemory, kRunPlan};
  const fs::path model_file = trained_model_file(arguments, run_folder);
  const fs::path profile = profile_file(arguments, run_folder);
  const char* model_name = arguments.export_file.empty() ? "the trained model" : "--export";
  std::vector<NamedFile> files = inputs(arguments, model, run_folder);
  files.push_back({"the run folder", run_folder});
  const size_t first_written = files.size();
  for (const std::string_view name : kOwn) {
    files.push_back({fmt::format("the run's {}", name), run_folder / name});
  }
  files.push_back({model_name, model_file});
  files.push_back({"the trained model's external data", model_file.string() + ".data"});
  files.push_back({"--profile", profile});
  files.push_back({"the trace of --profile", trace_file(profile)});
  refuse_same_file(files, first_written, kHint);
  refuse_among_checkpoints({"--export", arguments.export_file}, run_folder);
  refuse_among_checkpoints({"--profile", profile}, run_folder);
  check_output(arguments.export_file, run_folder, "the trained model");
  if (arguments.profile == kDefaultProfile) return;
  check_output(profile, run_folder, "the profile");
  check_output(trace_file(profile), run_folder, "the trace of the profile");
}

}  // namespace halfnote::cli
