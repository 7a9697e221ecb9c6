// The persistent tensors of a training run, by name: weights, moments, statistics, loss scale,
// counters. All programs of a session (accumulate, apply, evaluate) read and write the same store.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor.h"
#include "compiler/ir/model.h"
#include "runtime/core/pages.h"

namespace halfnote {

struct StateEntry {
  std::string name;
  StateKind kind = StateKind::kWeight;
  DType dtype = DType::kUndefined;
  Shape shape;
  size_t offset = 0;  // in the store
  size_t bytes = 0;
};

class StateStore {
 public:
  StateStore() = default;
  /// Room for every state of every step of the model, set to the initializers' values.
  explicit StateStore(const Model& model);

  std::span<const StateEntry> entries() const { return entries_; }
  /// The entry of this name; null if there is none.
  const StateEntry* find(std::string_view name) const;
  std::byte* data(const StateEntry& entry) { return memory_.get() + entry.offset; }
  const std::byte* data(const StateEntry& entry) const { return memory_.get() + entry.offset; }
  size_t bytes() const { return bytes_; }
  /// The start of the store; entries lie at their offsets.
  std::byte* base() { return memory_.get(); }

  /// One state, sharing the store's memory: it changes with the next step, and ends with the store.
  Tensor view(const StateEntry& entry) const;
  /// A copy of one state, and its replacement; `set` throws Error(kCheckpoint) when type or shape
  /// differ.
  Tensor get(const StateEntry& entry) const;
  void set(const StateEntry& entry, const Tensor& tensor);

 private:
  std::vector<StateEntry> entries_;
  std::map<std::string, size_t, std::less<>> index_;
  Pages memory_;
  size_t bytes_ = 0;
};

}  // namespace halfnote
