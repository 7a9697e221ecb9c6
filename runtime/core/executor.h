// Runs a Program. All pointers are resolved when it is made; a run allocates nothing.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "runtime/core/device_run.h"
#include "runtime/core/memory/shared_arena.h"
#include "runtime/core/plan.h"
#include "runtime/core/profile/profiler.h"
#include "runtime/core/state_guard.h"
#include "runtime/core/state_store.h"

namespace halfnote {

/// Called after each step of a program, for profiles and tests.
using StepObserver = std::function<void(const ProgramStep& step, const KernelBuffers& buffers)>;

class Executor final : private ArenaUser {
 public:
  /// Takes the program; the store must outlive the executor. With a context it runs on that device,
  /// which the kernels of the program must be for. On the CPU it runs in `arena`, which others may
  /// use between its runs; null: in one of its own.
  Executor(Program program, StateStore& store, DeviceContext* context = nullptr,
           std::shared_ptr<SharedArena> arena = nullptr);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Makes the arena, which the first run does otherwise. Throws Error(kMemory) if it does not fit.
  void allocate();

  const Program& program() const { return program_; }
  /// Runs once on `inputs` (one per program input, in order; types and shapes are checked). The
  /// states are updated in the store. Outputs stay readable until the next run. On a device the run
  /// may go on after this returned: as many as `most_runs()` are on their way at a time.
  void run(std::span<const Tensor> inputs);
  int most_runs() const { return context_ == nullptr ? 1 : DeviceRun::kMostRuns; }
  /// The number of the last run, from 1.
  uint64_t last_run() const { return last_run_; }
  /// Waits for a run, one of the last `most_runs()`. Throws what went wrong on the device.
  void wait(uint64_t run);
  /// An output or a state of one element, as such a run left it once it was waited for; of a state
  /// that is no small one (a scale or a counter), as it is now.
  double scalar_output(size_t index, uint64_t run) const;
  double scalar_state(const StateEntry& entry, uint64_t run) const;
  /// Was there a run? Before it there are no outputs.
  bool has_run() const { return last_run_ > 0; }
  /// Nobody reads the outputs of the last run any more: they need not outlive the arena's next use.
  void drop_outputs() {
    dropped_ = true;
    if (on_device_) on_device_->drop_outputs();
  }
  bool has_outputs() const { return has_run() && !dropped_; }
  /// Bytes of outputs that did outlive it.
  size_t kept_bytes() const { return on_device_ ? on_device_->kept_bytes() : kept_.size(); }
  /// After a run that threw: are the states those from before it?
  bool left_states() const { return left_states_; }
  /// A copy of output `index` of the last run, or a view that is valid until the next one.
  Tensor output(size_t index) const;
  Tensor output_view(size_t index) const;
  /// The bytes of output `index`, valid until the next run.
  const std::byte* output_bytes(size_t index) const {
    return on_device_ ? on_device_->output(index) : output_pointers_[index];
  }
  /// Index of the output with this name; nothing if there is none.
  std::optional<size_t> find_output(std::string_view name) const;
  void observe(StepObserver observer) { observer_ = std::move(observer); }
  /// Times go there from the next run on; null: nowhere.
  void set_profile(ProgramProfile* profile);

 private:
  struct StepPointers {
    std::vector<const std::byte*> inputs;
    std::vector<std::byte*> outputs;
    std::byte* workspace = nullptr;
  };
  /// Where the pointer of a program input has to be put before a run.
  struct InputPatch {
    size_t input = 0;
    const std::byte** slot = nullptr;
  };

  std::byte* address(const BufferRef& ref);
  void resolve();
  void resolve_outputs();
  void enter_arena();
  void leave_arena() override;
  void check_inputs(std::span<const Tensor> inputs) const;
  void run_steps();

  Program program_;
  StateStore& store_;
  std::shared_ptr<SharedArena> arena_;
  std::byte* base_ = nullptr;  // of the arena when the pointers were resolved
  uint64_t last_run_ = 0;
  bool left_states_ = true;
  StateGuard guard_;
  bool has_left_ = false;  // the outputs of the last run are in kept_
  bool dropped_ = false;
  std::vector<std::byte> kept_;  // outputs, one behind the other
  std::vector<StepPointers> pointers_;
  std::vector<InputPatch> patches_;
  std::vector<const std::byte*> output_pointers_;
  std::vector<const std::byte*> save_pointers_;
  std::vector<const std::byte*> commit_pointers_;
  StepObserver observer_;
  ProgramProfile* profile_ = nullptr;
  DeviceContext* context_;
  std::unique_ptr<DeviceRun> on_device_;
};

}  // namespace halfnote
