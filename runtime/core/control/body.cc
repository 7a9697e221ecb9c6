#include "runtime/core/control/body.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "compiler/ir/walk.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/memory/best_fit.h"

namespace halfnote {
namespace {

Graph body_graph(const Graph& graph, NodeId owner, RegionId region,
                 const std::vector<ValueType>& types, const std::vector<ValueId>& captures,
                 const PlanOptions& options) {
  Graph body;
  body.name = graph.label(owner);
  ValueMap values;
  const auto formal = graph.inputs(region);
  for (size_t i = 0; i < formal.size(); ++i) {
    values[formal[i]] = body.add_input(body.main(), graph.value(formal[i]).name, types[i]);
  }
  for (ValueId capture : captures) {
    const Value& value = graph.value(capture);
    values[capture] = body.add_input(body.main(), value.name, value.type);
  }
  clone_nodes(body, body.end(), graph, graph.nodes(region), values);
  for (ValueId output : graph.outputs(region)) {
    if (!values.contains(output)) {
      values[output] = body.add_initializer(graph.value(output).name, graph.value(output).tensor);
    }
    body.add_output(body.main(), values[output]);
  }
  DeviceReadyOptions ready;
  ready.for_cpu = options.device == nullptr;
  if (options.device != nullptr) ready.kernels = &options.device->kernels();
  return make_device_ready(body, {}, ready);
}

/// A body's kernels are put into the one stream that its owner is in.
PlanOptions on_one_line(PlanOptions options) {
  options.branches = false;
  return options;
}

}  // namespace

Body::Body(const Graph& graph, NodeId owner, RegionId region, const std::vector<ValueType>& types,
           const std::vector<ValueId>& captures, const PlanOptions& options)
    : program_(plan(body_graph(graph, owner, region, types, captures, options), StateStore{},
                    on_one_line(options))),
      numbers_(program_) {
  size_t most = 0, writes = 0;
  for (const ProgramStep& step : program_.steps) {
    most = std::max(most, step.inputs.size());
    writes = std::max(writes, step.outputs.size());
  }
  reads_.resize(most);
  writes_.resize(writes);
  if (options.device == nullptr) return;
  for (const Tensor& constant : program_.constants) {
    constant_offsets_.push_back(table_bytes_);
    table_bytes_ += align_up(constant.byte_size());
  }
  for (const ProgramStep& step : program_.steps) {
    table_offsets_.push_back(table_bytes_);
    table_bytes_ += align_up(step.kernel->table_bytes());
  }
}

size_t Body::bytes() const { return align_up(program_.arena_bytes); }

void Body::make_ready() const {
  for (const ProgramStep& step : program_.steps) step.kernel->make_ready();
}

const std::byte* Body::address(const BufferRef& ref, const BodyFrame& frame) const {
  using Space = BufferRef::Space;
  switch (ref.space) {
    case Space::kArena:
      return frame.arena + ref.offset;
    case Space::kConstant:
      return frame.stream == nullptr ? program_.constants[ref.offset].bytes()
                                     : frame.table + constant_offsets_[ref.offset];
    case Space::kInput:
      return frame.inputs[ref.offset];
    case Space::kState:
    case Space::kNone:
      break;
  }
  return nullptr;
}

DeviceBuffers Body::buffers_of(size_t index, const BodyFrame& frame) {
  const ProgramStep& step = program_.steps[index];
  for (size_t i = 0; i < step.inputs.size(); ++i) reads_[i] = address(step.inputs[i], frame);
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    writes_[i] = const_cast<std::byte*>(address(step.outputs[i], frame));
  }
  DeviceBuffers buffers;
  buffers.inputs = std::span(reads_.data(), step.inputs.size());
  buffers.outputs = std::span(writes_.data(), step.outputs.size());
  buffers.workspace = const_cast<std::byte*>(address(step.workspace, frame));
  if (!table_offsets_.empty()) buffers.table = frame.table + table_offsets_[index];
  buffers.stream = frame.stream;
  return buffers;
}

void Body::write_table(const BodyFrame& frame, std::byte* to) {
  for (size_t i = 0; i < program_.constants.size(); ++i) {
    const Tensor& constant = program_.constants[i];
    if (constant.byte_size() == 0) continue;
    std::memcpy(to + constant_offsets_[i], constant.bytes(), constant.byte_size());
  }
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    const Kernel& kernel = *program_.steps[i].kernel;
    if (kernel.table_bytes() == 0) continue;
    kernel.write_table(buffers_of(i, frame), to + table_offsets_[i]);
  }
}

namespace {

/// Kernels behind its end belong to the step that they did before.
class NumbersOfStream {
 public:
  explicit NumbersOfStream(Stream* stream)
      : stream_(stream), before_(stream == nullptr ? -1 : stream->step()) {}
  ~NumbersOfStream() {
    if (stream_ != nullptr) stream_->begin_step(before_);
  }
  NumbersOfStream(const NumbersOfStream&) = delete;
  NumbersOfStream& operator=(const NumbersOfStream&) = delete;

 private:
  Stream* stream_;
  int32_t before_;
};

}  // namespace

void Body::run(const BodyFrame& frame) {
  const NumbersOfStream numbers(frame.stream);
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    const ProgramStep& step = program_.steps[i];
    if (frame.number >= 0) frame.stream->begin_step(frame.number + numbers_.of(i));
    try {
      step.kernel->run(buffers_of(i, frame));
    } catch (Error& error) {
      throw error.within({{}, step.node, step.op});
    }
  }
  for (const SavedCopy& save : program_.saves) {
    copy_bytes(frame.stream, frame.arena + save.to, address(save.from, frame), save.bytes);
  }
}

const std::byte* Body::output(size_t index, const BodyFrame& frame) const {
  return address(program_.outputs[index].buffer, frame);
}

int32_t number_in(const Stream& stream, int32_t skipped) {
  return stream.step() < 0 ? -1 : stream.step() + 1 + skipped;
}

void copy_bytes(Stream* stream, std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0) return;
  if (stream == nullptr) {
    std::memcpy(to, from, bytes);
  } else {
    stream->copy(to, from, bytes);
  }
}

}  // namespace halfnote
