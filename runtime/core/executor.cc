#include "runtime/core/executor.h"

#include <cstring>

#include "base/error.h"

namespace halfnote {
namespace {

using Space = BufferRef::Space;

}  // namespace

Executor::Executor(Program program, StateStore& store, DeviceContext* context,
                   std::shared_ptr<SharedArena> arena)
    : program_(std::move(program)),
      store_(store),
      arena_(arena ? std::move(arena) : std::make_shared<SharedArena>()),
      guard_(program_, store_),
      context_(context) {}

Executor::~Executor() { arena_->forget(*this); }

void Executor::allocate() {
  if (on_device_) return;
  if (context_ != nullptr) {
    on_device_ = std::make_unique<DeviceRun>(*context_, program_, store_);
    on_device_->time_steps(profile_);
    return;
  }
  arena_->reserve(program_.arena_bytes);
}

/// The memory may have moved since the last run, and another program's results may lie in it.
void Executor::enter_arena() {
  arena_->enter(*this);
  if (base_ != arena_->base()) {
    base_ = arena_->base();
    resolve();
  } else if (has_left_) {
    resolve_outputs();
  }
  has_left_ = false;
}

void Executor::leave_arena() {
  if (dropped_) return;
  size_t bytes = 0;
  for (const ProgramOperand& output : program_.outputs) {
    if (output.buffer.space == Space::kArena) bytes += output.bytes;
  }
  kept_.resize(bytes);
  std::byte* to = kept_.data();
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    const ProgramOperand& output = program_.outputs[i];
    if (output.buffer.space != Space::kArena || output.bytes == 0) continue;
    std::memcpy(to, output_pointers_[i], output.bytes);
    output_pointers_[i] = to;
    to += output.bytes;
  }
  has_left_ = true;
}

std::byte* Executor::address(const BufferRef& ref) {
  switch (ref.space) {
    case Space::kArena:
      return base_ + ref.offset;
    case Space::kState:
      return store_.base() + ref.offset;
    // Constants are only ever read: kernels get them as inputs.
    case Space::kConstant:
      return const_cast<std::byte*>(program_.constants[ref.offset].bytes());
    case Space::kInput:
    case Space::kNone:
      break;
  }
  return nullptr;
}

void Executor::resolve_outputs() {
  output_pointers_.clear();
  for (const ProgramOperand& output : program_.outputs)
    output_pointers_.push_back(address(output.buffer));
}

void Executor::resolve() {
  patches_.clear();
  save_pointers_.clear();
  commit_pointers_.clear();
  pointers_.assign(program_.steps.size(), {});
  for (size_t s = 0; s < program_.steps.size(); ++s) {
    const ProgramStep& step = program_.steps[s];
    StepPointers& pointers = pointers_[s];
    for (const BufferRef& ref : step.inputs) pointers.inputs.push_back(address(ref));
    for (const BufferRef& ref : step.outputs) pointers.outputs.push_back(address(ref));
    pointers.workspace = address(step.workspace);
    for (size_t i = 0; i < step.inputs.size(); ++i) {
      if (step.inputs[i].space == Space::kInput) {
        patches_.push_back({step.inputs[i].offset, &pointers.inputs[i]});
      }
    }
  }
  resolve_outputs();
  for (const SavedCopy& save : program_.saves) save_pointers_.push_back(address(save.from));
  for (size_t i = 0; i < program_.saves.size(); ++i) {
    const BufferRef& ref = program_.saves[i].from;
    if (ref.space == Space::kInput) patches_.push_back({ref.offset, &save_pointers_[i]});
  }
  for (const StateCopy& commit : program_.commits) commit_pointers_.push_back(address(commit.from));
  for (size_t i = 0; i < program_.commits.size(); ++i) {
    const BufferRef& ref = program_.commits[i].from;
    if (ref.space == Space::kInput) patches_.push_back({ref.offset, &commit_pointers_[i]});
  }
}

void Executor::check_inputs(std::span<const Tensor> inputs) const {
  if (inputs.size() != program_.inputs.size()) {
    throw Error(ErrorCode::kData, "wrong number of inputs for \"" + program_.name + "\"")
        .expected(std::to_string(program_.inputs.size()), std::to_string(inputs.size()));
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ProgramOperand& formal = program_.inputs[i];
    if (inputs[i].dtype() == formal.dtype && inputs[i].shape() == formal.shape) continue;
    throw Error(ErrorCode::kData, "input \"" + formal.name + "\" does not fit")
        .expected(std::string(short_name(formal.dtype)) + to_string(formal.shape),
                  std::string(short_name(inputs[i].dtype())) + to_string(inputs[i].shape()));
  }
}

void Executor::run_steps() {
  for (size_t s = 0; s < program_.steps.size(); ++s) {
    const StepPointers& pointers = pointers_[s];
    const KernelBuffers buffers{pointers.inputs, pointers.outputs, pointers.workspace};
    try {
      program_.steps[s].kernel->run(buffers);
    } catch (Error& error) {
      left_states_ = guard_.restore(store_.base(), s);
      store_.spoil_copies();
      throw error.within({{}, program_.steps[s].node, program_.steps[s].op});
    }
    if (profile_) profile_->end_step();
    if (observer_) observer_(program_.steps[s], buffers);
  }
}

void Executor::run(std::span<const Tensor> inputs) {
  left_states_ = true;
  allocate();
  check_inputs(inputs);
  dropped_ = false;  // inputs that are refused leave the outputs of the last run as they are
  if (on_device_) {
    left_states_ = false;
    if (observer_)
      throw Error(ErrorCode::kUnsupported, "single steps cannot be watched on a device");
    last_run_ = on_device_->start(inputs);
    return;
  }
  enter_arena();
  ++last_run_;
  for (const InputPatch& patch : patches_) *patch.slot = inputs[patch.input].bytes();
  store_.refresh_copies();
  guard_.save(store_.base());
  left_states_ = false;
  if (profile_) profile_->begin_run();
  run_steps();
  for (size_t i = 0; i < program_.saves.size(); ++i) {
    const SavedCopy& save = program_.saves[i];
    if (save.bytes > 0) std::memcpy(base_ + save.to, save_pointers_[i], save.bytes);
  }
  for (size_t i = 0; i < program_.commits.size(); ++i) {
    const StateCopy& commit = program_.commits[i];
    if (commit.bytes > 0)
      std::memmove(store_.base() + commit.to, commit_pointers_[i], commit.bytes);
  }
  if (profile_) profile_->end_run();
}

void Executor::set_profile(ProgramProfile* profile) {
  profile_ = profile;
  if (on_device_) on_device_->time_steps(profile);
}

void Executor::wait(uint64_t run) {
  if (on_device_) on_device_->wait(run);
}

double Executor::scalar_output(size_t index, uint64_t run) const {
  const std::byte* small = on_device_ ? on_device_->small_output(index, run) : nullptr;
  return read_as_double(program_.outputs[index].dtype,
                        small != nullptr ? small : output_bytes(index));
}

double Executor::scalar_state(const StateEntry& entry, uint64_t run) const {
  const std::byte* small = on_device_ ? on_device_->small_state(entry, run) : nullptr;
  return read_as_double(entry.dtype, small != nullptr ? small : std::as_const(store_).data(entry));
}

Tensor Executor::output(size_t index) const {
  const ProgramOperand& formal = program_.outputs[index];
  Tensor tensor(formal.dtype, formal.shape);
  if (formal.bytes > 0) std::memcpy(tensor.mutable_bytes(), output_bytes(index), formal.bytes);
  return tensor;
}

Tensor Executor::output_view(size_t index) const {
  const ProgramOperand& formal = program_.outputs[index];
  const std::shared_ptr<const std::byte> borrowed(std::shared_ptr<const std::byte>(),
                                                  output_bytes(index));
  return {formal.dtype, formal.shape, borrowed, formal.bytes};
}

std::optional<size_t> Executor::find_output(std::string_view name) const {
  for (size_t i = 0; i < program_.outputs.size(); ++i) {
    if (program_.outputs[i].name == name) return i;
  }
  return std::nullopt;
}

}  // namespace halfnote
