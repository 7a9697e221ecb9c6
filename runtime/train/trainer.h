// The training loop: steps, metrics, evaluation, checkpoints, and a stop at any step.
//
//   Trainer trainer(session, InputMap(data, inputs), std::nullopt, options);
//   trainer.plan();                        // everything that can fail early
//   trainer.open();                        // the run folder; with resume, the state of the run
//   TrainResult result = trainer.run(progress);
//
// A run that was stopped and resumed is bit-identical to one that was not, whatever the precision
// and wherever it stopped.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "runtime/train/checkpoint/run_lock.h"
#include "runtime/train/evaluator.h"
#include "runtime/train/metrics.h"
#include "runtime/train/progress.h"
#include "runtime/train/resume.h"

namespace halfnote {

/// When something is done: every so many steps, every so many epochs, or (0, 0) only at the end.
struct Every {
  int64_t steps = 0;
  int64_t epochs = 0;
};

struct TrainerOptions {
  std::filesystem::path run_folder;  // made if missing
  bool new_number = false;           // it is NAME-N, to be made: the next N if another run has it
  std::string artifact;              // its hash (resume.h)
  int64_t batch = 1;
  uint64_t seed = 0;    // of the order of the data
  bool shuffle = true;  // else every epoch takes the data in its own order
  int64_t epochs = 0;   // exactly one of the two is above 0: passes over the data …
  int64_t steps = 0;    // … or steps, each one batch
  Every evaluate = {0, 1};
  bool evaluate_at_end = true;
  Every save = {0, 1};
  int keep = 3;           // checkpoints; 0: all
  int64_t log_every = 1;  // steps between lines of metrics.jsonl
  bool resume = false;    // go on from the newest intact checkpoint of the run folder
  int prefetch = 2;
  std::function<bool()> stop;  // asked after every step
};

struct TrainResult {
  int64_t steps = 0;      // of the whole run, earlier sessions included
  int64_t new_steps = 0;  // of this session
  int64_t applied = 0, skipped = 0;
  std::optional<double> loss, accuracy;  // of the last step; running over its epoch
  std::optional<EvaluationResult> evaluation;
  double step_seconds = 0;  // median, without the first step; 0 if there was one at most
  double seconds = 0;
  bool stopped = false;  // by options.stop, before the end
  std::filesystem::path checkpoint;
};

class Trainer {
 public:
  /// The session must outlive the trainer. Throws Error(kUsage) for options that make no run
  /// and for a run folder that holds what no run has written, Error(kModel) for an artifact that
  /// updates nothing.
  Trainer(Session& session, InputMap data, std::optional<InputMap> evaluation,
          TrainerOptions options);

  /// Plans the step and all signatures of the evaluation, and checks the labels.
  void plan();
  /// Makes and locks the run folder; with `resume` restores the newest intact checkpoint and gives
  /// it, or begins again in the folder of a run that ended before its first one. Throws
  /// Error(kUsage) for a folder that holds another run, Error(kCheckpoint) when there is nothing to
  /// resume from or it does not fit.
  std::optional<FoundCheckpoint> open();
  /// Trains to the end, or until `stop`. Throws Error(kNumerics) naming the step when training
  /// diverges; the last checkpoint stays as it was. Data that ends the run, Error(kData), ends it
  /// after a checkpoint of the last finished step.
  TrainResult run(Progress& progress);

  /// What batches take beside the session's memory; after plan().
  size_t batch_bytes() const;
  int64_t steps_per_epoch() const { return data_.data().size() / options_.batch; }
  int64_t total_steps() const;
  const std::filesystem::path& run_folder() const { return options_.run_folder; }
  const RunPosition& position() const { return position_; }

 private:
  BatcherOptions batcher_options() const {
    return {options_.batch, options_.seed, options_.shuffle, Tail::kDrop, 0, options_.prefetch};
  }
  /// A batch on its way, until the result of its step is there.
  struct Running {
    Batch batch;
    std::chrono::steady_clock::time_point start;
  };

  void check_all_labels() const;
  void train(Progress& progress);
  bool may_start() const;
  Running& running_of(int64_t step) {
    return running_[static_cast<size_t>(step % session_.most_in_flight())];
  }
  void start(Batcher& batcher, Progress& progress);
  void finish(Progress& progress);
  void judge(const StepResult& result, const Running& running);
  void name_sample(const Error& error, const Batch& batch) const;
  /// The error that ends the run, after a line in the metrics.
  Error diverged(const StepResult& result, std::string what);
  void check_numerics(const StepResult& result, double scale_before, int64_t hits_before,
                      const Batch& batch);
  /// Ends the run at an overflow at the minimum of the loss scale, if the policy says so.
  /// `lost`: a loss of the update was not finite.
  void check_floor(const StepResult& result, const Batch& batch, bool lost);
  /// Of the whole run; a step that others wrote has no counter, and skips nothing.
  int64_t applied_updates() const;
  [[noreturn]] void refuse_skipped_run();
  void refuse_diverged_end();
  void refuse_lost_state();
  void refuse_idle_run();
  Error after_saving(const Error& error, Progress& progress);
  void count_accuracy(const StepResult& result, const Batch& batch);
  void log_step(const StepResult& result, Progress& progress);
  void report(const StepResult& result, Progress& progress);
  /// After the step of this number, which ended at this place in the data.
  static bool due(const Every& every, int64_t step, const DataPosition& data);
  bool wants_stop() const { return options_.stop && options_.stop(); }
  void evaluate(Progress& progress);
  void save(Progress& progress);
  void housekeeping(Progress& progress);
  std::optional<std::string> reason_from_the_start() const;
  RunIdentity identity() const;
  bool is_scaled() const;
  double loss_scale() const;

  Session& session_;
  InputMap data_;
  TrainerOptions options_;
  std::unique_ptr<Evaluator> evaluator_;
  std::optional<Classification> kind_;
  size_t labels_ = 0;
  std::vector<CountedLabels> counted_;
  bool guarded_ = false;  // the artifact checks its gradients and skips updates that are not finite
  std::string broken_;    // a weight that was not finite before the first step
  bool lost_at_first_ = false;   // the loss of the first step was not finite
  int64_t lost_ = 0;             // steps of this session with a loss of NaN
  bool lost_in_update_ = false;  // a loss since the last update was not finite
  bool all_lost_ = true;         // so it was in all skipped updates that no smaller scale helped
  bool in_step_ = false;         // a step began and has not ended
  std::unique_ptr<RunLock> lock_;
  std::optional<MetricsWriter> metrics_;

  std::array<Running, DeviceRun::kMostRuns> running_;
  int64_t started_ = 0;      // steps, counted as those of position_
  DataPosition started_to_;  // and where the next one begins
  int64_t hits_ = 0;         // overflows at the smallest loss scale, before the step at hand
  double scale_ = 1;         // the loss scale before it
  double data_wait_ = 0;     // seconds, of all batches
  std::chrono::steady_clock::time_point finished_;  // when the last one did
  RunPosition position_;
  StepResult last_;
  TrainResult result_;
  double paused_ = 0;                // seconds of evaluation and checkpoints
  int64_t saved_ = -1;               // the step of the last checkpoint
  std::deque<double> step_seconds_;  // the latest
};

}  // namespace halfnote
