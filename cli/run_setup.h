// From the arguments of `halfnote run` to what the trainer takes: the session, its data, its
// folder.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/import_flags.h"
#include "runtime/train/trainer.h"

namespace CLI {
class App;
}

namespace halfnote::cli {

struct RunArguments {
  std::string artifact, data, eval_data;
  int64_t epochs = 0, steps = 0;
  int64_t batch = 0;  // 0: not given
  std::vector<std::string> dims, maps, whole, batch_axes;
  std::vector<std::string> normalize, bytes;
  std::string resize = "none";
  int64_t limit_samples = 0;
  uint64_t seed = 0;
  bool seed_given = false;
  int threads = 0;
  std::string device = "cpu", kernels;
  std::string run_dir, export_file;
  bool no_shuffle = false, resume = false, plan_memory = false, quiet = false;
  std::string save_every = "1e", eval_every = "1e";
  int keep = 3;
  int64_t log_every = 1;
  std::string progress = "auto";
  std::vector<std::string> dump;  // passes of the device pipeline
  std::string dump_folder = ".";
  std::string memory;   // --memory: a share (0.6) or bytes (3GB); empty: no limit
  std::string profile;  // its JSON file; kDefaultProfile: in the run folder; empty: none
  bool tune = false;
  bool tf32 = false;
  std::string plan;  // a plan file of kernels
  ImportFlags import;
};

/// What --profile without a file stands for.
inline constexpr const char* kDefaultProfile = "RUN/profile.json";

/// Throws Error(kDevice) for a device that this build lacks, Error(kUsage) for a word that is none.
void check_device(const std::string& device);

/// Throws Error(kUsage) for a flag that stands on the command line although the others leave it
/// nothing to do.
void refuse_idle_flags(const CLI::App& verb, const RunArguments& arguments);

/// Throws Error(kUsage) where no kernel's name of the device starts so.
void check_kernels(const std::string& kernels, const std::string& device);
/// `0.6`: a share of what the activations take, up to 1; `3GB`, `500MiB`: bytes; empty: no limit.
/// Throws Error(kUsage).
SessionOptions::Memory parse_memory(const std::string& text);

struct BoundInputs;

struct RunData {
  InputMap train;
  std::optional<InputMap> evaluation;
};

/// Reads the data sets: the training split, and for evaluation --eval-data or the test split of the
/// same set. Throws Error(kData), Error(kIo), Error(kUsage).
RunData load_run_data(const RunArguments& arguments, std::span<const ModelInput> inputs);

/// --run-dir, or runs/NAME-N: the first number that is free, or with --resume the last that is not.
std::filesystem::path choose_run_folder(const RunArguments& arguments);

/// The kernels of --plan, or of the plan file of a run that is resumed; with --tune none yet; null
/// where the table alone decides. Throws Error(kData), Error(kUsage), Error(kIo).
std::unique_ptr<KernelChoices> load_choices(const RunArguments& arguments,
                                            const std::filesystem::path& run_folder);

/// Does a training_info of others draw first values without a seed of its own? `model`: as read.
bool draws_values(const Model& model);
/// Says so where nothing in the run depends on --seed: neither the order of samples nor dropout.
void warn_of_idle_seed(const Model& model, const RunArguments& arguments, const BoundInputs& bound);

TrainerOptions trainer_options(const RunArguments& arguments, int64_t batch);

}  // namespace halfnote::cli
