#include "runtime/core/device_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "runtime/core/memory/best_fit.h"

namespace halfnote {
namespace {

using Space = BufferRef::Space;

constexpr size_t kWord = sizeof(uint64_t);
// How often a mailbox is looked at before the thread sleeps, and how long it does.
constexpr int kLooks = 1000;
constexpr std::chrono::microseconds kNap(20);

std::vector<const std::byte*> addresses_of(std::span<const Tensor> tensors) {
  std::vector<const std::byte*> addresses;
  for (const Tensor& tensor : tensors) addresses.push_back(tensor.bytes());
  return addresses;
}

/// Offsets of buffers one behind the other; the last entry is the size of all.
template <class Items, class Bytes>
std::vector<size_t> offsets_of(const Items& items, Bytes bytes) {
  std::vector<size_t> offsets = {0};
  for (const auto& item : items) offsets.push_back(offsets.back() + align_up(bytes(item)));
  return offsets;
}

}  // namespace

DeviceRun::DeviceRun(DeviceContext& context, const Program& program, StateStore& store)
    : context_(context), program_(program), store_(store), numbers_(program) {
  Device& device = *context.device;
  for (const ProgramStep& step : program.steps) {
    step.kernel->make_ready();
    if (step.joins_before > 0) meetings_[step.joins_before] = nullptr;
  }
  if (!meetings_.empty()) {
    meetings_[0] = nullptr;
    for (auto& [step, event] : meetings_) event = device.make_event();
    if (context.beside == nullptr) context.beside = device.make_stream();
  }
  const auto bytes = [](const ProgramOperand& operand) { return operand.bytes; };
  store.attach(context);
  context.arena.reserve(device, *context.stream, program.arena_bytes);
  base_ = context.arena.base();
  put_constants();
  input_offsets_ = offsets_of(program.inputs, bytes);
  result_offsets_ = offsets_of(program.outputs, bytes);
  table_offsets_ =
      offsets_of(program.steps, [](const ProgramStep& step) { return step.kernel->table_bytes(); });
  fetched_.resize(program.outputs.size());
  moved_.resize(program.outputs.size());
  kept_.resize(program.outputs.size());
  find_small_values();
  for (Slot& slot : slots_) make(slot);
  context.arena.add(*this);
}

void DeviceRun::find_small_values() {
  small_values_.clear();
  output_words_.assign(program_.outputs.size(), 0);
  const auto add = [&](const void* from, size_t bytes) {
    small_values_.push_back({static_cast<const std::byte*>(from), static_cast<uint32_t>(bytes)});
    return small_values_.size();  // word 0 is the count
  };
  // As the run leaves it: what the next one finds wrong is not this one's.
  static_assert(sizeof(DeviceFault) % kWord == 0);
  const auto* fault = reinterpret_cast<const std::byte*>(context_.stream->fault().at);
  fault_word_ = add(fault, kWord);
  for (size_t at = kWord; at < sizeof(DeviceFault); at += kWord) add(fault + at, kWord);
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    const ProgramOperand& output = program_.outputs[i];
    const bool fixed = output.buffer.space != Space::kInput && output.buffer.space != Space::kNone;
    if (!fixed || output.bytes == 0 || output.bytes > kWord) continue;
    output_words_[i] = add(address(output.buffer), output.bytes);
  }
  for (const StateEntry& entry : store_.entries()) {
    const bool counts = entry.kind == StateKind::kScaler || entry.kind == StateKind::kCounter;
    if (!counts || entry.bytes == 0 || entry.bytes > kWord) continue;
    state_words_[entry.offset] = add(store_.device_base() + entry.offset, entry.bytes);
  }
}

DeviceRun::~DeviceRun() {
  context_.arena.forget(*this);
  try {
    context_.feeding->synchronise();
    context_.stream->synchronise();
  } catch (const Error&) {  // nobody reads what it did
  }
}

void DeviceRun::put_constants() {
  constant_offsets_ =
      offsets_of(program_.constants, [](const Tensor& constant) { return constant.byte_size(); });
  constants_ = context_.device->allocate(constant_offsets_.back());
  for (size_t i = 0; i < program_.constants.size(); ++i) {
    const Tensor& constant = program_.constants[i];
    context_.stream->copy(constants_.get() + constant_offsets_[i], constant.bytes(),
                          constant.byte_size());
  }
}

std::byte* DeviceRun::address(const BufferRef& ref) {
  switch (ref.space) {
    case Space::kArena:
      return base_ + ref.offset;
    case Space::kState:
      return store_.device_base() + ref.offset;
    case Space::kConstant:
      return constants_.get() + constant_offsets_[ref.offset];
    case Space::kInput:
      return recorded_->inputs.get() + input_offsets_[ref.offset];
    case Space::kNone:
      break;
  }
  return nullptr;
}

template <class Body>
void DeviceRun::with_buffers(size_t index, Stream& stream, const Body& body) {
  const ProgramStep& step = program_.steps[index];
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (const BufferRef& ref : step.inputs) inputs.push_back(address(ref));
  for (const BufferRef& ref : step.outputs) outputs.push_back(address(ref));
  DeviceBuffers buffers;
  buffers.inputs = inputs;
  buffers.outputs = outputs;
  buffers.workspace = address(step.workspace);
  buffers.table = recorded_->tables.get() + table_offsets_[index];
  buffers.stream = &stream;
  try {
    body(*step.kernel, buffers);
  } catch (Error& error) {
    throw error.within({{}, step.node, step.op});
  }
}

/// Before the step is captured: what the graph copied would be read from the host in every run.
void DeviceRun::put_tables(Slot& slot) {
  const size_t bytes = table_offsets_.back();
  if (bytes == 0) return;
  const auto tables = std::make_unique<std::byte[]>(bytes);
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    if (table_offsets_[i] == table_offsets_[i + 1]) continue;
    with_buffers(i, *context_.stream, [&](const Kernel& kernel, const DeviceBuffers& buffers) {
      kernel.write_table(buffers, tables.get() + table_offsets_[i]);
    });
  }
  context_.stream->copy(slot.tables.get(), tables.get(), bytes);
  context_.stream->synchronise();
}

namespace {

/// Kernels behind its end belong to no step, also where one of them throws.
struct StepsOfStream {
  Stream& stream;
  ~StepsOfStream() { stream.begin_step(-1); }
};

/// The line of a captured graph beside the main one (steps/branches.h).
class Beside {
 public:
  /// Without `meetings` all is on the main line.
  Beside(DeviceContext& context, const Meetings& meetings)
      : main_(*context.stream), meetings_(meetings) {
    if (meetings_.empty()) return;
    beside_ = context.beside.get();
    beside_->note_faults_in(main_.fault().at);
  }
  ~Beside() {
    if (beside_ == nullptr) return;
    beside_->begin_step(-1);
    beside_->note_faults_in(nullptr);
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

  /// Where step `index` goes, behind all that it has to wait for.
  Stream& stream_of(const ProgramStep& step, size_t index) {
    join(index);
    if (beside_ == nullptr || step.joins_before == 0) {
      has_moved_ = true;
      return main_;
    }
    if (std::exchange(has_moved_, false)) {
      DeviceEvent& parted = *meetings_.at(0);
      main_.record(parted);
      beside_->wait(parted);
    }
    last_ = step.joins_before;
    return *beside_;
  }
  /// Has the main line wait for what joins it before this step, and for no more.
  void join(size_t index) {
    if (last_ > 0) {
      beside_->record(*meetings_.at(last_));
      std::erase(open_, last_);
      open_.push_back(std::exchange(last_, 0));
    }
    const auto due = std::find_if(open_.rbegin(), open_.rend(),
                                  [index](size_t joins_before) { return joins_before <= index; });
    if (due == open_.rend()) return;
    main_.wait(*meetings_.at(*due));
    open_.erase(open_.begin(), due.base());  // what was recorded before has been done, too
  }

 private:
  Stream& main_;
  Stream* beside_ = nullptr;
  const Meetings& meetings_;
  bool has_moved_ = true;     // is there anything on the main line that none beside waits for?
  size_t last_ = 0;           // before which step the last one beside joins; 0: that is recorded
  std::vector<size_t> open_;  // recorded, and not waited for; what was recorded last is the last
};

}  // namespace

void DeviceRun::record(StepTimer* timer) {
  Stream& stream = *context_.stream;
  const StepsOfStream steps{stream};
  if (timer != nullptr) timer->begin();
  // Times are those of steps alone.
  static const Meetings nowhere;
  Beside beside(context_, timer == nullptr ? meetings_ : nowhere);
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    Stream& own = beside.stream_of(program_.steps[i], i);
    own.begin_step(numbers_.of(i));
    with_buffers(i, own,
                 [](const Kernel& kernel, const DeviceBuffers& buffers) { kernel.run(buffers); });
    if (timer != nullptr) timer->end_step();
  }
  beside.join(program_.steps.size());
  for (const SavedCopy& save : program_.saves) {
    stream.copy(base_ + save.to, address(save.from), save.bytes);
  }
  for (const StateCopy& commit : program_.commits) {
    stream.copy(store_.device_base() + commit.to, address(commit.from), commit.bytes);
  }
  if (timer != nullptr) timer->end_run();
}

void DeviceRun::time_steps(ProgramProfile* profile) {
  for (Slot& slot : slots_) {
    slot.timer = profile == nullptr ? nullptr : std::make_unique<StepTimer>(context_, *profile);
  }
}

void DeviceRun::make(Slot& slot) {
  Device& device = *context_.device;
  slot.inputs = device.allocate(input_offsets_.back());
  slot.staging = device.allocate(input_offsets_.back(), MemoryKind::kPinned);
  slot.mailbox = device.allocate((1 + small_values_.size()) * kWord, MemoryKind::kPinned);
  slot.tables = device.allocate(table_offsets_.back());
  slot.brought = device.make_event();
  *words(slot) = 0;
  capture(slot);
}

void DeviceRun::capture(Slot& slot) {
  recorded_ = &slot;
  put_tables(slot);
  Capture capture(*context_.stream);
  record();
  context_.stream->publish(small_values_, words(slot));
  slot.graph = capture.end();
}

/// Another program may have moved the arena since the last run; all runs had ended then.
void DeviceRun::enter_arena() {
  DeviceArena& arena = context_.arena;
  arena.reserve(*context_.device, *context_.stream, program_.arena_bytes);
  arena.enter(*this, program_.arena_bytes);
  if (base_ == arena.base()) return;
  base_ = arena.base();
  find_small_values();
  for (Slot& slot : slots_) capture(slot);
}

void DeviceRun::leave_arena(size_t bytes) {
  if (dropped_ || runs_ == 0) return;
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    const ProgramOperand& output = program_.outputs[i];
    const bool stays = output.buffer.space != Space::kArena || output.buffer.offset >= bytes;
    if (stays || output.bytes == 0 || moved_[i] || fetched_[i]) continue;
    if (!kept_[i]) {
      kept_[i] = context_.device->allocate(output.bytes);
      kept_bytes_ += output.bytes;
    }
    context_.stream->copy(kept_[i].get(), address(output.buffer), output.bytes);
    moved_[i] = true;
  }
}

/// The slot's last run has ended: it reads neither of its memories any more.
void DeviceRun::bring(Slot& slot, std::span<const Tensor> inputs) {
  if (input_offsets_.back() == 0) return;
  if (context_.keeps_inputs) {
    std::vector<const std::byte*> from = addresses_of(inputs);
    if (from == slot.kept) return;
    slot.kept = std::move(from);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].byte_size() == 0) continue;
    std::memcpy(slot.staging.get() + input_offsets_[i], inputs[i].bytes(), inputs[i].byte_size());
  }
  context_.feeding->copy(slot.inputs.get(), slot.staging.get(), input_offsets_.back());
  context_.feeding->record(*slot.brought);
  context_.stream->wait(*slot.brought);
}

uint64_t DeviceRun::start(std::span<const Tensor> inputs) {
  Slot& slot = slot_of(runs_ + 1);
  if (slot.runs > 0) wait(runs_ + 1 - kMostRuns);
  enter_arena();
  bring(slot, inputs);
  store_.refresh_copies();
  store_.push();
  if (slot.timer) {
    recorded_ = &slot;
    record(slot.timer.get());
    context_.stream->publish(small_values_, words(slot));
  } else {
    context_.stream->launch(*slot.graph);
  }
  ++slot.runs;
  std::fill(fetched_.begin(), fetched_.end(), false);
  std::fill(moved_.begin(), moved_.end(), false);
  dropped_ = false;
  store_.changed_on_device();
  return ++runs_;
}

void DeviceRun::wait(uint64_t run) {
  Slot& slot = slot_of(run);
  // The device writes the count after all else.
  const std::atomic_ref<uint64_t> count(*words(slot));
  const auto ended = [&] { return count.load(std::memory_order_acquire) == slot.runs; };
  for (int looks = 0; !ended(); ++looks) {
    context_.feeding->poll();
    if (!ended()) context_.stream->poll();
    if (looks >= kLooks) std::this_thread::sleep_for(kNap);
  }
  uint64_t* found = words(slot) + fault_word_;
  DeviceFault fault;
  std::memcpy(static_cast<void*>(&fault), found, sizeof(fault));
  if (fault.kind == DeviceFault::kNone) {
    if (slot.timer) slot.timer->collect();
    return;
  }
  if (slot.timer) slot.timer->drop();
  found[0] = DeviceFault::kNone;  // it is told once
  const Place place = numbers_.place(program_, fault.step);
  try {
    throw_fault(fault);
  } catch (Error& error) {
    throw error.within(place);
  }
}

const std::byte* DeviceRun::small_output(size_t index, uint64_t run) const {
  const size_t word = output_words_[index];
  return word == 0 ? nullptr : slot_of(run).mailbox.get() + word * kWord;
}

const std::byte* DeviceRun::small_state(const StateEntry& entry, uint64_t run) const {
  const auto found = state_words_.find(entry.offset);
  return found == state_words_.end() ? nullptr : slot_of(run).mailbox.get() + found->second * kWord;
}

const std::byte* DeviceRun::output(size_t index) {
  if (!results_) results_ = context_.device->allocate(result_offsets_.back(), MemoryKind::kPinned);
  std::byte* to = results_.get() + result_offsets_[index];
  if (fetched_[index]) return to;
  wait(runs_);  // what the data had wrong is told first
  const ProgramOperand& formal = program_.outputs[index];
  const std::byte* from = moved_[index] ? kept_[index].get() : address(formal.buffer);
  if (formal.bytes > 0) context_.stream->copy(to, from, formal.bytes);
  context_.stream->synchronise();
  fetched_[index] = true;
  return to;
}

}  // namespace halfnote
