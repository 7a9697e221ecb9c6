// The arena of a program while it is planned: buffers come and go in the order of the steps, and
// get their places when all are known.
#pragma once

#include <vector>

#include "runtime/core/plan.h"

namespace halfnote {

class ArenaPlan {
 public:
  /// A block of at least `bytes` (zero bytes have a place of their own too): its number.
  size_t allocate(size_t bytes);
  /// From now on others may lie there. What is never released is kept to the end.
  void release(size_t block);
  /// The last allocation or release so far; −1: there was none.
  int last_event() const { return events_ - 1; }
  /// Places all blocks: the numbers of blocks, which the program has for offsets, become offsets,
  /// and it learns how large its arena is and what lies in it. Ends the plan.
  void settle(Program& program);

 private:
  std::vector<ArenaBlock> blocks_;
  int events_ = 0;
};

}  // namespace halfnote
