#include "runtime/core/state_store.h"

#include <cstring>

#include "base/error.h"
#include "runtime/core/memory_plan.h"

namespace halfnote {
namespace {

Pages allocate_state(size_t bytes) {
  Pages memory = allocate_pages(bytes);
  if (memory) return memory;
  throw Error(ErrorCode::kMemory, "no memory for the training state")
      .expected(std::to_string(bytes) + " bytes", "an allocation failure");
}

}  // namespace

StateStore::StateStore(const Model& model) {
  std::vector<const Tensor*> first;
  for (const TrainingStep& step : model.training) {
    for (const State& state : step.graph.states()) {
      const Value& value = step.graph.value(state.current);
      if (index_.contains(value.name)) continue;
      index_[value.name] = entries_.size();
      entries_.push_back({value.name, state.kind, value.tensor.dtype(), value.tensor.shape(),
                          bytes_, value.tensor.byte_size()});
      bytes_ += align_up(value.tensor.byte_size());
      first.push_back(&value.tensor);
    }
  }
  memory_ = allocate_state(bytes_);
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!all_zero(*first[i])) set(entries_[i], *first[i]);  // zeros are there already, untouched
  }
}

void StateStore::attach(DeviceContext& context) {
  if (context_ != nullptr) return;
  device_memory_ = context.device->allocate(bytes_);
  context_ = &context;
  host_is_newer_ = true;
}

void StateStore::push() {
  if (!host_is_newer_) return;
  context_->stream->copy(device_memory_.get(), memory_.get(), bytes_);
  context_->stream->synchronise();  // the host may go on changing it
  host_is_newer_ = false;
}

void StateStore::fetch(const StateEntry& entry) const {
  if (!device_is_newer_) return;
  context_->stream->copy(memory_.get() + entry.offset, device_memory_.get() + entry.offset,
                         entry.bytes);
  context_->stream->synchronise();
}

void StateStore::fetch_all() {
  if (device_is_newer_) {
    context_->stream->copy(memory_.get(), device_memory_.get(), bytes_);
    context_->stream->synchronise();
  }
  device_is_newer_ = false;
  host_is_newer_ = true;  // by whoever asked for the address
}

const StateEntry* StateStore::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

Tensor StateStore::get(const StateEntry& entry) const {
  Tensor tensor(entry.dtype, entry.shape);
  if (entry.bytes > 0) std::memcpy(tensor.mutable_bytes(), data(entry), entry.bytes);
  return tensor;
}

Tensor StateStore::view(const StateEntry& entry) const {
  const std::shared_ptr<const std::byte> bytes(std::shared_ptr<void>(), data(entry));
  return {entry.dtype, entry.shape, bytes, entry.bytes};
}

void StateStore::set(const StateEntry& entry, const Tensor& tensor) {
  if (tensor.dtype() != entry.dtype || tensor.shape() != entry.shape) {
    throw Error(ErrorCode::kCheckpoint, "state \"" + entry.name + "\" does not fit")
        .expected(std::string(short_name(entry.dtype)) + to_string(entry.shape),
                  std::string(short_name(tensor.dtype())) + to_string(tensor.shape()));
  }
  if (entry.bytes > 0) std::memmove(data(entry), tensor.bytes(), entry.bytes);
}

}  // namespace halfnote
