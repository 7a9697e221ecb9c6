// Room in the state store that a program uses as if it were arena: a 16-bit copy of a weight holds
// nothing that is needed from its last reading in the backward pass until the update writes it
// again. Gradients, which are held together where all of them are judged before the first update,
// lie there.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "compiler/ir/graph.h"
#include "runtime/core/state_store.h"

namespace halfnote {

/// A part of the store that is free after step `last_read` until step `next_write`.
struct FreeStretch {
  size_t offset = 0, bytes = 0;
  int last_read = 0, next_write = 0;
};

/// The copies of weights that a program writes: `writes[i]` are the results of step i, and
/// `last_use(value)` is the last step that reads the value.
std::vector<FreeStretch> find_free_stretches(const Graph& graph, const StateStore& store,
                                             const std::vector<std::vector<ValueId>>& writes,
                                             const std::function<int(ValueId)>& last_use);

class BorrowedSpace {
 public:
  BorrowedSpace() = default;
  explicit BorrowedSpace(std::vector<FreeStretch> stretches);

  /// Best fit for `bytes` that are written by step `first` and read until step `last`: an offset in
  /// the store. Nothing where none fits, and for what is too small to be worth the search.
  std::optional<size_t> allocate(size_t bytes, int first, int last);
  /// Is the room of the block at `offset` free until step `last`?
  bool lasts(size_t offset, int last) const;
  void release(size_t offset);
  /// Bytes in use now, and the most that ever were.
  size_t in_use() const { return in_use_; }
  size_t peak() const { return peak_; }

 private:
  struct Room {
    size_t offset = 0, bytes = 0;
  };
  /// The rooms of stretches that are free from step `first` to step `last`, neighbours as one.
  std::vector<Room> rooms(int first, int last) const;
  /// The smallest gap between blocks in this room that holds `bytes`.
  std::optional<Room> best_gap(const Room& room, size_t bytes) const;

  std::vector<FreeStretch> stretches_;  // by offset
  std::map<size_t, size_t> used_;       // offset -> bytes
  size_t in_use_ = 0, peak_ = 0;
};

}  // namespace halfnote
