// A training session: an artifact, its state, and the programs that move it. The public way to
// train from C++:
//
//   CompileResult compiled = compile_file("model.onnx", options);
//   Session session(std::move(compiled.model), {});
//   StepResult result = session.step({images, labels});
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "passes/compile.h"
#include "passes/train/step.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/executor.h"
#include "runtime/core/nonfinite.h"
#include "runtime/train/labels/checked_inputs.h"
#include "runtime/train/labels/count_correct.h"

namespace halfnote {

/// Imports a model and compiles it, folding constants on the CPU kernels. What is odd in the file
/// stands in the remarks (pass `import`). Links to external data may lead into `allowed_folders`.
CompileResult compile_file(const std::filesystem::path& file, const CompileOptions& options,
                           const std::vector<std::filesystem::path>& allowed_folders = {});
/// The same for a model in memory.
CompileResult compile_model(Model model, const CompileOptions& options);

/// Makes a model with a `training_info` that others wrote ready for a Session: its initialization
/// is evaluated (`seed`: of random nodes that have none), its graphs are brought to canonical form.
/// Other models are given back as they are. Throws Error(kUnsupported) with the reason for a step
/// that cannot be run.
Model adopt_training_info(Model model, int64_t seed);

/// More threads than any machine has cores; far more, and the system refuses to make them.
inline constexpr int kMaxThreads = 1024;

struct SessionOptions {
  int threads = 0;                      // 0: all cores
  std::string kernels;                  // only kernels whose name starts with this (`reference`)
  std::map<std::string, int64_t> dims;  // bound besides what the shapes say
  bool plan_only = false;               // arenas are planned, but not made before a step
  /// Dumps of the passes that make a graph ready for the device; a folder a step in `dump_folder`.
  DeviceReadyOptions passes = {};
  Profiler* profiler = nullptr;  // takes the times of all programs; it must outlive the session
  /// Limits the arena of the training step by computing forward results again (the pass
  /// rematerialize): a share of what it takes without, or bytes. Neither: no limit.
  struct Memory {
    double share = 0;
    int64_t bytes = 0;
    bool limited() const { return share > 0 || bytes > 0; }
  } memory = {};
  /// Kernels of a plan file, made for these threads; they must outlive the session.
  KernelChoices* choices = nullptr;
  bool tune = false;  // planning measures the calls that `choices` lacks, and adds them
  /// `cpu`, `cuda`, `cuda:N` or `cuda-emulated`. Never another than that.
  std::string device = "cpu";
  /// f32 products and convolutions on a GPU's tensor cores: their operands are rounded to TF32 (10
  /// bits of mantissa), their sums are not. For GPUs only.
  bool tf32 = false;
  /// For measurements with a batch that lies on the device: inputs that are where those of a step
  /// before were have the same bytes, and are not brought again.
  bool keep_inputs = false;
  bool keep_types = false;  // programs remember the types of operands, as they do for a profiler
  /// Only what a Trainer reads of the results of a training step is kept, and given by output():
  /// the loss and, on the CPU, the scores that it finds correct labels in.
  bool only_trains = false;
};

/// What one call of Session::step did.
struct StepResult {
  double loss = 0;
  bool applied = false;  // the weights moved
  /// Of the update just tried; one that is not finite is skipped. Also true where the artifact does
  /// not check (fp32, if it was not asked to): look at the loss there.
  bool finite = true;
  bool updated = true;    // an update was tried (false inside an accumulation window)
  double loss_scale = 1;  // after the step
  std::optional<double> learning_rate, grad_norm;
  // After the step, too: overflows at the smallest loss scale, micro-batches since the last update,
  // and updates, where the artifact counts them.
  int64_t floor_hits = 0, pending = 0;
  std::optional<int64_t> applied_steps;
  std::optional<Correct> correct;  // counted by a device; on the CPU the scores are at hand
};

/// Whose memory tensors that a session gives lie in.
enum class TensorsAs : uint8_t {
  kCopies,
  kViews,  // the session's: they change with the next step or evaluation, and end with it
};

/// What an evaluation gives.
enum class Evaluates : uint8_t {
  kOutputs,          // all outputs of the evaluation step
  kCounts,           // the loss and the counts of a classification; scores that nothing else counts
  kCountsAndScores,  // the loss, the counts and the scores
};

/// What one call of Session::evaluate_batch found.
struct EvaluatedBatch {
  double loss = 0;
  /// Of all labels. Nothing if the model is no classification, or its scores are no floats: the
  /// host may count those.
  std::optional<ScoreCounts> counts;
};

/// Output `index` of the last run.
Tensor output_of(const Executor& executor, size_t index, TensorsAs as);

/// In which types a trained model is given.
enum class TrainedForm : uint8_t {
  kAsTrained,  // the artifact's inference graph, with its casts, padding and functions
  kF32,        // ONNX's own operators in f32: what any runtime serves
};

/// Memory that everything prepared so far takes, in bytes.
struct MemoryUse {
  size_t state = 0, constants = 0;
  size_t arena = 0;  // one for all programs
  /// Of several programs in one arena: outputs that were copied as another one ran.
  size_t outputs = 0;
  size_t brought = 0;  // batches that lie on a device, beside the total
  size_t mapped = 0;   // of the constants: what lies in the artifact's map, to be read from there
  size_t total() const { return state + arena + constants + outputs; }
};

/// What a limit on memory made of a step.
struct Recomputation {
  size_t limit = 0;       // bytes of the arena that were asked for
  size_t before = 0;      // bytes of the arena without it
  size_t after = 0;       // and with it
  std::string what = {};  // the note of the pass: how many nodes, what they cost
};

enum class OnFloor : uint8_t { kHold, kRaise, kDiagnose };

class Session {
 public:
  Session(Model model, const SessionOptions& options);

  const Model& model() const { return model_; }
  /// What the passes that made the graphs ready for the device had to say.
  std::span<const Remark> device_remarks() const { return remarks_; }
  StateStore& state() { return *state_; }
  const StateStore& state() const { return *state_; }
  /// Names and types of the inputs of the training step (symbolic dims stay).
  std::vector<std::pair<std::string, ValueType>> inputs() const;
  /// Labels and indices of the training step that are fed as they are.
  std::span<const CheckedInput> checked_inputs() const { return checked_; }
  /// Micro-batches per update.
  int64_t accumulation() const { return accumulation_; }
  /// What a run does at an overflow when the loss scale is at its minimum.
  OnFloor on_floor() const { return on_floor_; }
  /// Such overflows so far.
  int64_t floor_hits() const { return counter(kFloorHits); }
  /// Micro-batches summed since the last update.
  int64_t pending() const { return pending_; }
  void set_pending(int64_t count) { pending_ = count; }
  int64_t attempted_steps() const { return counter(kAttemptedStep); }
  int64_t applied_steps() const { return counter(kAppliedStep); }
  /// After a step that threw: are the states those from before it, to be saved?
  bool left_states() const;

  /// Plans everything for inputs of these shapes, before the first step.
  void prepare(std::span<const Shape> shapes);
  /// The same for the evaluation step, for one signature of several (a last batch that is not
  /// full).
  void prepare_evaluation(std::span<const Shape> shapes, Evaluates what = Evaluates::kOutputs);
  /// One micro-batch; applies the update when the accumulation window is full. Allocates nothing
  /// once the shapes are prepared.
  StepResult step(std::span<const Tensor> inputs);
  /// The same in two parts, so that a device has its next step before the last one has ended:
  /// starts a micro-batch, and gives the result of the oldest one that was started. On the CPU a
  /// step has ended when start() returns. What else is asked of the session (states, outputs) is
  /// that after the last step that was started. `inputs` may change between the two.
  void start(std::span<const Tensor> inputs);
  StepResult finish();
  int in_flight() const { return in_flight_; }
  int most_in_flight() const { return device_ ? DeviceRun::kMostRuns : 1; }
  StepResult step(std::initializer_list<Tensor> inputs) {
    return step(std::span(inputs.begin(), inputs.size()));
  }
  /// The outputs of the evaluation step (loss first), nothing changes.
  std::vector<Tensor> evaluate(std::span<const Tensor> inputs, TensorsAs as = TensorsAs::kCopies);
  std::vector<Tensor> evaluate(std::initializer_list<Tensor> inputs) {
    return evaluate(std::span(inputs.begin(), inputs.size()));
  }
  /// The loss of an evaluation and its counts, made where its scores are: these stay there, and
  /// what nobody asked for is not computed.
  EvaluatedBatch evaluate_batch(std::span<const Tensor> inputs, Evaluates what);
  /// A view of the scores of the last evaluation; throws Error(kUsage) where it gives none.
  Tensor evaluated_scores() const;
  /// A named output of the last training step (`grad/w`, `logits`); throws Error(kUsage) for a name
  /// that it lacks, and before the first step.
  Tensor output(std::string_view name, TensorsAs as = TensorsAs::kCopies) const;
  /// Nobody will read the outputs of the steps so far: else they are copied when an evaluation
  /// follows a step, or a step an evaluation.
  void drop_outputs();
  /// No step or evaluation follows soon: the arena goes back to the system, with the outputs so
  /// far; the next step takes it again. On a device it stays.
  void release_arena();
  /// Where a step on this batch first makes an Inf or NaN (the states stay as they are); nothing if
  /// it does not, or only the sums of several micro-batches do.
  std::optional<NonFinite> diagnose(std::span<const Tensor> inputs);
  /// The program of a step as it was last used; null before.
  const Program* program(std::string_view step) const;
  /// The shape that the scores of this name have there, also where the program counts them and does
  /// not give them; nothing if it has none.
  std::optional<Shape> scores_shape(std::string_view step, std::string_view scores) const;
  MemoryUse memory() const;
  /// Threads of loops of the host: one beside a device.
  int threads() const { return device_ ? 1 : options_.threads; }
  /// Does it run on a device? There no single node can be watched: diagnose() is for the CPU.
  bool on_device() const { return device_ != nullptr; }
  /// What the host did on the device so far; nothing on the CPU.
  DeviceCounters device_counters() const;
  /// What it asked for of the device's memory; nothing on the CPU.
  DeviceMemory device_memory() const;
  /// Is that memory beside the process's? The emulated device's is not.
  bool device_has_own_memory() const;
  /// The device in words; empty on the CPU.
  std::string device_description() const;
  /// What the bytes of a run depend on besides model and data: `2 threads, avx512_core_bf16`. Runs
  /// of equal arithmetic are equal bit for bit.
  std::string arithmetic() const;
  /// Of the training step, if its memory is limited and it is prepared.
  const std::optional<Recomputation>& recomputation() const { return recomputation_; }
  /// Share of the contraction FLOPs of the training step that read 16-bit operands.
  double low_precision_share() const;

  /// The trained model as inference ONNX: model.graph with the present weights and statistics. The
  /// f32 form is that of to_f32 (passes/precision/to_f32.h), without functions and metadata of
  /// ours.
  Model trained_model(TrainedForm form = TrainedForm::kF32,
                      TensorsAs weights = TensorsAs::kCopies) const;

 private:
  /// A micro-batch on its way: its runs, and what it does.
  struct Flight {
    Executor* main = nullptr;
    Executor* apply = nullptr;  // null: none, or no update is due
    uint64_t main_run = 0, apply_run = 0;
    bool updates = true;
    int64_t pending = 0;
  };

  /// Throws for a label or an index out of range, where a device would tell too late.
  void check_batch(std::span<const Tensor> inputs);
  /// Plans or runs a step; an error names the file of the model.
  template <class Work>
  auto in_file(Work work) const {
    try {
      return work();
    } catch (Error& error) {
      error.within({model_.source, {}, {}});
      throw;
    }
  }

  int64_t counter(std::string_view name) const;
  void require_evaluation() const;
  /// A program: which step it is, and of an evaluation what it gives.
  struct StepForm {
    std::string_view step;
    Evaluates what = Evaluates::kOutputs;
  };
  struct Prepared {
    std::string step;
    Evaluates what;
    std::vector<Shape> shapes;
    std::unique_ptr<Executor> executor;
  };
  /// The executor of a step for inputs of these shapes: the one there is, or null.
  template <class Inputs>
  Executor* find_executor(const StepForm& form, const Inputs& inputs);
  Executor& executor(const StepForm& form, std::span<const Shape> shapes);
  Executor& executor_for(const StepForm& form, std::span<const Tensor> inputs);
  void set_last(std::string_view step, Executor& executor);
  Graph what_is_trained() const;
  const TrainingStep* find_training_step(std::string_view name) const;
  Graph ready_graph(const StepForm& form, std::span<const Shape> shapes,
                    int64_t activation_bytes = 0, const BytesBeside& beside = {});
  /// Lets a graph that is ready count correct labels, where its form asks for it.
  void count_labels(Graph& graph, const StepForm& form);
  bool has_kernel_that_counts() const;
  /// `beside`, if given: of an earlier plan; then of this one.
  Program plan_step(const StepForm& form, std::span<const Shape> shapes,
                    int64_t activation_bytes = 0, BytesBeside* beside = nullptr);
  /// The plan that computes the least again within the limit, or the smallest there is.
  Program plan_limited(std::string_view step, std::span<const Shape> shapes);
  bool keeps_memory(std::string_view step) const;
  void read_update(const Executor& executor, uint64_t run, StepResult& result) const;
  void read_states(const Executor& executor, uint64_t run, StepResult& result) const;

  Model model_;
  SessionOptions options_;
  std::vector<Remark> remarks_;
  std::optional<Recomputation> recomputation_;
  std::unique_ptr<DeviceContext> device_;  // null: the CPU
  std::unique_ptr<StateStore> state_;
  std::shared_ptr<SharedArena> arena_ = std::make_shared<SharedArena>();
  std::vector<Prepared> executors_;                     // one a step and shapes
  std::map<std::string, Executor*, std::less<>> last_;  // by step
  int64_t accumulation_ = 1;
  OnFloor on_floor_ = OnFloor::kHold;
  int64_t pending_ = 0;
  bool in_update_ = false;
  std::optional<Classification> scored_;               // scores and labels of the training step
  std::optional<Classification> evaluated_;            // and of the evaluation step
  std::map<std::string, Shape, std::less<>> counted_;  // shapes of scores that programs count
  std::vector<CheckedInput> checked_;                  // what a step wants in range
  bool refused_ = false;                               // the last batch, before its step began
  std::array<Flight, DeviceRun::kMostRuns> flights_;
  int in_flight_ = 0;
  size_t next_flight_ = 0;
};

}  // namespace halfnote
