#include "runtime/core/state_store.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "base/system/mapped_files.h"
#include "runtime/core/memory/best_fit.h"

namespace halfnote {
namespace {

Pages allocate_state(size_t bytes) {
  Pages memory = allocate_pages(bytes);
  if (memory) return memory;
  throw Error(ErrorCode::kMemory, "no memory for the training state")
      .expected(std::to_string(bytes) + " bytes", "an allocation failure");
}

/// Where a state was read from a mapped file, only the store's copy is read from now on.
void release_file(const Tensor& tensor) {
  if (tensor.byte_size() > 0) release_mapped({tensor.bytes(), tensor.byte_size()});
}

/// The elements that a copy is made of.
struct CopySource {
  const std::byte* bytes;
  DType dtype;
  size_t count;
};

template <class From, class To>
void round_each(std::span<const From> from, std::span<To> to) {
  if constexpr (std::is_same_v<From, float>) {
    convert(from, to);
  } else if constexpr (std::is_same_v<To, Half>) {
    std::ranges::transform(from, to.begin(), [](double value) { return to_f16(value); });
  } else {
    std::ranges::transform(from, to.begin(), [](double value) { return to_bf16(value); });
  }
}

template <class To>
void round_elements(const CopySource& from, std::byte* to) {
  const std::span<To> result(reinterpret_cast<To*>(to), from.count);
  if (from.dtype == DType::kF64) {
    round_each(std::span(reinterpret_cast<const double*>(from.bytes), from.count), result);
  } else {
    round_each(std::span(reinterpret_cast<const float*>(from.bytes), from.count), result);
  }
}

void round_to(const StateEntry& copy, const CopySource& from, std::byte* to) {
  if (copy.dtype == DType::kF16) return round_elements<Half>(from, to);
  round_elements<BFloat16>(from, to);
}

}  // namespace

void StateStore::add_entry(const std::string& name, StateKind kind, DType dtype, Shape shape,
                           size_t room) {
  const auto bytes =
      static_cast<size_t>(checked_mul(element_count(shape), static_cast<int64_t>(size_of(dtype))));
  index_[name] = entries_.size();
  entries_.push_back({name, kind, dtype, std::move(shape), bytes_, bytes, {}, room});
  bytes_ += align_up(std::max(bytes, room));
}

void StateStore::add_copies(std::span<const WeightCopy> copies) {
  for (const WeightCopy& copy : copies) {
    const StateEntry* weight = find(copy.weight);
    if (weight == nullptr || index_.contains(copy.name)) {
      throw Error(ErrorCode::kInternal, "a 16-bit copy of no state, or with the name of another")
          .at({{}, copy.name, {}});
    }
    copy_of_[copy.weight] = entries_.size();
    stale_.insert(entries_.size());
    add_entry(copy.name, StateKind::kWeight, copy.dtype, Shape(weight->shape), copy.room);
    entries_.back().copy_of = copy.weight;
  }
}

StateStore::StateStore(const Model& model, std::span<const WeightCopy> copies) {
  std::vector<const Tensor*> first;
  for (const TrainingStep& step : model.training) {
    for (const State& state : step.graph.states()) {
      const Value& value = step.graph.value(state.current);
      if (index_.contains(value.name)) continue;
      add_entry(value.name, state.kind, value.tensor.dtype(), value.tensor.shape());
      first.push_back(&value.tensor);
    }
  }
  states_ = entries_.size();
  add_copies(copies);
  memory_ = allocate_state(bytes_);
  const size_t before = resident_memory().anonymous;
  for (size_t i = 0; i < states_; ++i) {
    if (!all_zero(*first[i])) set(entries_[i], *first[i]);  // zeros are there already, untouched
    release_file(*first[i]);
  }
  const size_t after = resident_memory().anonymous;
  touched_ = std::min(bytes_, after > before ? after - before : 0);
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
  if (entry.bytes > 0) std::memmove(base() + entry.offset, tensor.bytes(), entry.bytes);
  release_file(tensor);
  const auto copy = copy_of_.find(entry.name);
  if (copy != copy_of_.end()) stale_.insert(copy->second);
}

void StateStore::spoil_copies() {
  for (size_t i = states_; i < entries_.size(); ++i) stale_.insert(i);
}

void StateStore::refresh_copies() {
  if (stale_.empty()) return;
  base();  // what is rounded here goes to the device with all else
  for (const size_t index : stale_) {
    const StateEntry& copy = entries_[index];
    const StateEntry& weight = *find(copy.copy_of);
    round_to(copy, {data(weight), weight.dtype, weight.bytes / size_of(weight.dtype)},
             memory_.get() + copy.offset);
  }
  stale_.clear();
}

}  // namespace halfnote
