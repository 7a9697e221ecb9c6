// What a run needs to go on as if it had never stopped: the session's states, and where the run
// was. Both are in a checkpoint, the second as its `extra` JSON.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/train/checkpoint.h"
#include "runtime/train/data/batcher.h"
#include "runtime/train/session.h"

namespace halfnote {

/// What must be the same when a run goes on.
struct RunIdentity {
  std::string artifact;  // hash of the compiled file
  std::string data;      // what is read and how it is converted
  int64_t samples = 0;
  int64_t batch = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  std::string arithmetic;  // Session::arithmetic; another one is no error, but rounds differently
};

/// Where a run is. A step is one batch, forward and backward: with gradient accumulation several
/// steps make one update.
struct RunPosition {
  int64_t step = 0;
  int64_t pending = 0;              // batches summed since the last update
  DataPosition data;                // of the next sample
  int64_t skipped = 0;              // updates that were not finite
  int64_t stuck = 0;                // of these, in a row and without help by a smaller loss scale
  int64_t correct = 0, labels = 0;  // of this epoch's running accuracy
  int64_t evaluated = -1;           // the step of the last evaluation
  bool diverged = false;            // the loss of the last step was not finite
};

/// The hash of an artifact on disk, its external data included. Throws Error(kIo).
std::string artifact_hash(const std::filesystem::path& file);
/// The hash of the bytes that export would write.
std::string artifact_hash(const Model& model);

/// Everything to go on from here. The tensors share the session's memory: write it before the next
/// step.
Checkpoint make_checkpoint(const Session& session, const RunIdentity& identity,
                           const RunPosition& position);

/// A warning if the run goes on with other arithmetic than the checkpoint's; else empty.
std::string arithmetic_warning(const Checkpoint& checkpoint, const RunIdentity& identity);

/// Sets the session's states and pending batches, and gives the position. Nothing is changed unless
/// all of it fits. Throws Error(kCheckpoint) naming what differs.
RunPosition restore_checkpoint(Session& session, const Checkpoint& checkpoint,
                               const RunIdentity& identity, const std::string& path);

}  // namespace halfnote
