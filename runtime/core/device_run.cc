#include "runtime/core/device_run.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "runtime/core/memory/best_fit.h"

namespace halfnote {
namespace {

using Space = BufferRef::Space;

/// Ends a capture that an error has cut short.
class Capture {
 public:
  explicit Capture(Stream& stream) : stream_(stream) { stream_.begin_capture(); }
  ~Capture() {
    if (!open_) return;
    try {
      stream_.end_capture();
    } catch (const Error&) {  // the error on its way says more
    }
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  std::unique_ptr<DeviceGraph> end() {
    open_ = false;
    return stream_.end_capture();
  }

 private:
  Stream& stream_;
  bool open_ = true;
};

/// Offsets of buffers one behind the other; the last entry is the size of all.
template <class Items, class Bytes>
std::vector<size_t> offsets_of(const Items& items, Bytes bytes) {
  std::vector<size_t> offsets = {0};
  for (const auto& item : items) offsets.push_back(offsets.back() + align_up(bytes(item)));
  return offsets;
}

}  // namespace

DeviceRun::DeviceRun(DeviceContext& context, const Program& program, StateStore& store)
    : context_(context), program_(program), store_(store) {
  Device& device = *context.device;
  for (const ProgramStep& step : program.steps) step.kernel->make_ready();
  const auto bytes = [](const ProgramOperand& operand) { return operand.bytes; };
  store.attach(context);
  arena_ = device.allocate(program.arena_bytes);
  put_constants();
  input_offsets_ = offsets_of(program.inputs, bytes);
  inputs_ = device.allocate(input_offsets_.back());
  staging_ = device.allocate(input_offsets_.back(), MemoryKind::kPinned);
  result_offsets_ = offsets_of(program.outputs, bytes);
  results_ = device.allocate(result_offsets_.back(), MemoryKind::kPinned);
  fetched_.resize(program.outputs.size());
  capture();
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
      return arena_.get() + ref.offset;
    case Space::kState:
      return store_.device_base() + ref.offset;
    case Space::kConstant:
      return constants_.get() + constant_offsets_[ref.offset];
    case Space::kInput:
      return inputs_.get() + input_offsets_[ref.offset];
    case Space::kNone:
      break;
  }
  return nullptr;
}

void DeviceRun::record() {
  Stream& stream = *context_.stream;
  if (input_offsets_.back() > 0) stream.copy(inputs_.get(), staging_.get(), input_offsets_.back());
  for (const ProgramStep& step : program_.steps) {
    std::vector<const std::byte*> inputs;
    std::vector<std::byte*> outputs;
    for (const BufferRef& ref : step.inputs) inputs.push_back(address(ref));
    for (const BufferRef& ref : step.outputs) outputs.push_back(address(ref));
    DeviceBuffers buffers;
    buffers.inputs = inputs;
    buffers.outputs = outputs;
    buffers.workspace = address(step.workspace);
    buffers.stream = &stream;
    try {
      step.kernel->run(buffers);
    } catch (Error& error) {
      throw error.within({{}, step.node, step.op});
    }
  }
  for (const SavedCopy& save : program_.saves) {
    stream.copy(arena_.get() + save.to, address(save.from), save.bytes);
  }
  for (const StateCopy& commit : program_.commits) {
    stream.copy(store_.device_base() + commit.to, address(commit.from), commit.bytes);
  }
}

void DeviceRun::capture() {
  Capture capture(*context_.stream);
  record();
  graph_ = capture.end();
}

void DeviceRun::run(std::span<const Tensor> inputs) {
  Stream& stream = *context_.stream;
  // The last run may not have fetched its inputs yet.
  if (in_flight_ && !inputs.empty()) stream.synchronise();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].byte_size() == 0) continue;
    std::memcpy(staging_.get() + input_offsets_[i], inputs[i].bytes(), inputs[i].byte_size());
  }
  store_.push();
  stream.launch(*graph_);
  in_flight_ = true;
  std::fill(fetched_.begin(), fetched_.end(), false);
  store_.changed_on_device();
}

const std::byte* DeviceRun::output(size_t index) {
  std::byte* to = results_.get() + result_offsets_[index];
  if (fetched_[index]) return to;
  const ProgramOperand& formal = program_.outputs[index];
  if (formal.bytes > 0) context_.stream->copy(to, address(formal.buffer), formal.bytes);
  context_.stream->synchronise();
  in_flight_ = false;
  fetched_[index] = true;
  return to;
}

}  // namespace halfnote
