// Batches in a reproducible order, prepared ahead by one thread.
//
// The order is that of Shuffle: a pure function of (seed, epoch), so that a position of two numbers
// is all a checkpoint needs, and a resumed run sees the batches that the unbroken one would have
// seen, with or without prefetching.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/tensor.h"
#include "runtime/train/data/inputs.h"

namespace halfnote {

/// What becomes of a last batch that is not full.
enum class Tail {
  kDrop,   // left out (training)
  kShort,  // delivered with fewer rows
  kPad,    // delivered full, its last sample repeated; `count` says how many rows are real
};

struct BatcherOptions {
  int64_t batch_size = 1;
  uint64_t seed = 0;
  bool shuffle = true;
  Tail tail = Tail::kDrop;
  int64_t epochs = 0;  // deliver this many, counted from epoch 0; 0: without end
  int prefetch = 2;    // batches made ahead by a thread; 0: made by the caller's thread
  /// How many batches are in memory at one time: the caller's too.
  int held() const { return prefetch + 1; }
};

/// The next sample to deliver: place `sample` in the order of epoch `epoch`.
struct DataPosition {
  int64_t epoch = 0;
  int64_t sample = 0;
  friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

struct Batch {
  std::vector<Tensor> inputs;  // one an input of the map
  int64_t rows = 0;            // of the inputs that are not whole
  int64_t count = 0;           // rows that are samples
  DataPosition start;          // of its first sample
  DataPosition next;           // where the following batch starts; what a checkpoint stores
};

/// Training: tail kDrop, epochs 0. Evaluation: shuffle false, tail kShort or kPad, epochs 1.
class Batcher {
 public:
  /// Throws Error(kData) when there is no sample, or not one full batch with kDrop; Error(kUsage)
  /// for a batch size below 1; Error(kCheckpoint) for a start outside the data.
  Batcher(InputMap map, const BatcherOptions& options, DataPosition start = {});
  /// Stops the thread, whatever it is doing.
  ~Batcher();
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  /// Puts the next batch into `batch` and takes its old tensors for a later one, so that a loop
  /// over one Batch allocates nothing. False at the end. Rethrows what went wrong while the batch
  /// was made, in its turn.
  bool next(Batch& batch);

  const InputMap& map() const;
  /// Where the batch after the last delivered one starts.
  DataPosition position() const;
  /// Batches of a whole epoch.
  int64_t batches_per_epoch() const;
  /// Seconds that `next` kept its caller waiting, in all.
  double wait_seconds() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace halfnote
