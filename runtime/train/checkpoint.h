// Checkpoints: RUN/checkpoints/step-00000123/{state.safetensors,manifest.json}, and RUN/LATEST that
// names the newest.
//
// A save is atomic and durable: everything is written and flushed in a temporary folder, which is
// then renamed; whoever stops it at any moment, power included, leaves the previous checkpoints as
// they were. A load trusts nothing: every byte is covered by a hash of the manifest
// (checkpoint/manifest.h), which carries its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/train/checkpoint/disk.h"
#include "runtime/train/checkpoint/safetensors.h"

namespace halfnote {

struct Checkpoint {
  int64_t step = 0;
  std::vector<NamedTensor> tensors;
  std::string extra = "{}";  // a JSON object with whatever else the run needs to go on

  /// The tensor of this name; null if there is none.
  const Tensor* find(std::string_view name) const;
};

struct SaveOptions {
  int keep_last = 3;     // older ones are removed once the new one is durable; 0: keep all
  Disk* disk = nullptr;  // null: the real one
};

struct SavedCheckpoint {
  std::filesystem::path folder;
  std::vector<std::string> warnings;  // an older checkpoint that could not be removed
};

/// Saves into an existing run folder, whose RunLock the caller holds. A checkpoint of the same step
/// is replaced. Throws Error(kIo) for whatever the disk refuses, and then leaves no trace but what
/// the next save removes.
SavedCheckpoint save_checkpoint(const std::filesystem::path& run_folder,
                                const Checkpoint& checkpoint, const SaveOptions& options = {});

/// Removes what a save that was killed had begun to write or to remove, in a run folder whose
/// RunLock the caller holds: a run that is resumed at its end saves nothing that would. What cannot
/// be removed is a warning.
std::vector<std::string> tidy_checkpoints(const std::filesystem::path& run_folder,
                                          Disk* disk = nullptr);

struct FoundCheckpoint {
  std::filesystem::path folder;
  int64_t step = 0;
  std::vector<std::string> warnings;  // newer ones that are damaged, a wrong LATEST
};

/// The checkpoint saved last among those that are completely intact, whatever the folders' names
/// and LATEST say. Nothing if the run folder has none; throws Error(kCheckpoint) if it has some and
/// all are damaged. What was read of it to find that out goes to `content`, if given.
std::optional<FoundCheckpoint> find_latest(const std::filesystem::path& run_folder,
                                           Checkpoint* content = nullptr);

/// What `--resume PATH` means: a checkpoint's own folder, or a run folder (then its latest). Throws
/// Error(kCheckpoint) if there is none; Error(kUnsupported) with a conversion hint for a file of
/// another framework.
FoundCheckpoint locate_checkpoint(const std::filesystem::path& path);

/// Loads one, completely verified, its tensors sorted by name. Throws Error(kCheckpoint) naming
/// file and tensor.
Checkpoint load_checkpoint(const std::filesystem::path& folder);

}  // namespace halfnote
