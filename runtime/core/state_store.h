// The persistent tensors of a training run, by name: weights, moments, statistics, loss scale,
// counters. All programs of a session (accumulate, apply, evaluate) read and write the same store.
// It also holds what follows from them, the 16-bit copies of weights: programs keep them as they
// keep the weights; whoever else writes a weight leaves its copy stale until the next program runs.
//
// On a device the store has a second copy in its memory. Whichever side changed last is the newer
// one; the other follows when somebody reads it: a single state on the host, all of them before a
// run.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"
#include "compiler/ir/model.h"
#include "kernels/device.h"
#include "passes/device/update/weight_copies.h"
#include "runtime/core/memory/device_arena.h"
#include "runtime/core/pages.h"

namespace halfnote {

struct StateEntry {
  std::string name;
  StateKind kind = StateKind::kWeight;
  DType dtype = DType::kUndefined;
  Shape shape;
  size_t offset = 0;  // in the store
  size_t bytes = 0;
  std::string copy_of = {};  // of a 16-bit copy: its weight
  size_t room = 0;  // with the zeros behind `bytes` that others read, too; 0: there are none
};

/// An open device, the stream that all programs of a session run in, the one that brings their
/// inputs meanwhile, one for steps beside others, and the memory that they share. For measurements
/// a run may be told that tensors it had before have not changed.
struct DeviceContext {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream, feeding;
  std::unique_ptr<Stream> beside;  // made for the first program that wants it
  DeviceArena arena;
  bool keeps_inputs = false;  // tensors at the addresses of an earlier run's hold its bytes
};

class StateStore {
 public:
  StateStore() = default;
  /// Room for every state of every step of the model, set to the initializers' values, and for
  /// copies of its weights.
  explicit StateStore(const Model& model, std::span<const WeightCopy> copies = {});

  /// The states, without the copies: what a checkpoint holds.
  std::span<const StateEntry> entries() const { return std::span(entries_).first(states_); }
  std::span<const StateEntry> copies() const { return std::span(entries_).subspan(states_); }
  /// The state or copy of this name; null if there is none.
  const StateEntry* find(std::string_view name) const;
  const std::byte* data(const StateEntry& entry) const {
    fetch(entry);
    return memory_.get() + entry.offset;
  }
  size_t bytes() const { return bytes_; }
  /// How much more memory the process had when the store was made (0 where the system does not
  /// say): zeros take none until they are written.
  size_t touched_bytes() const { return touched_; }
  /// The start of the store, to be read and written; entries lie at their offsets.
  std::byte* base() {
    if (context_ != nullptr) fetch_all();
    return memory_.get();
  }

  /// Makes the copy on the device, unless it is there. The context must outlive the store's use.
  void attach(DeviceContext& context);
  std::byte* device_base() { return device_memory_.get(); }
  /// Before a run: the device gets what changed on the host.
  void push();
  /// After a run was started: the host's copy is old.
  void changed_on_device() { device_is_newer_ = true; }

  /// One state, sharing the store's memory: it changes with the next step, and ends with the store.
  Tensor view(const StateEntry& entry) const;
  /// A copy of one state, and its replacement; `set` throws Error(kCheckpoint) when type or shape
  /// differ.
  Tensor get(const StateEntry& entry) const;
  void set(const StateEntry& entry, const Tensor& tensor);
  /// Rounds the weights again that were set since the last call. Programs call it before they run.
  void refresh_copies();
  /// A program stopped half-way: what it keeps in the copies (borrowed_space.h) is no copy.
  void spoil_copies();

 private:
  /// Waits for the device, and brings one state, or all of them, to the host.
  void fetch(const StateEntry& entry) const;
  void fetch_all();

  void add_entry(const std::string& name, StateKind kind, DType dtype, Shape shape,
                 size_t room = 0);
  void add_copies(std::span<const WeightCopy> copies);

  std::vector<StateEntry> entries_;  // states, then copies
  size_t states_ = 0;
  std::map<std::string, size_t, std::less<>> copy_of_;  // index of a weight's copy
  std::set<size_t> stale_;                              // indices of copies
  std::map<std::string, size_t, std::less<>> index_;
  Pages memory_;
  size_t bytes_ = 0, touched_ = 0;
  DeviceContext* context_ = nullptr;
  Device::Memory device_memory_;
  bool device_is_newer_ = false, host_is_newer_ = false;
};

inline bool holds_weights(const StateStore& store) {
  return std::ranges::any_of(
      store.entries(), [](const StateEntry& entry) { return entry.kind == StateKind::kWeight; });
}

}  // namespace halfnote
