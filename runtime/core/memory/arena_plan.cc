#include "runtime/core/memory/arena_plan.h"

#include <algorithm>
#include <cassert>
#include <limits>

#include "runtime/core/memory/best_fit.h"

namespace halfnote {
namespace {

constexpr int kToTheEnd = std::numeric_limits<int>::max();

}  // namespace

size_t ArenaPlan::allocate(size_t bytes) {
  blocks_.push_back({std::max(align_up(bytes), kBufferAlignment), events_++, kToTheEnd});
  return blocks_.size() - 1;
}

void ArenaPlan::release(size_t block) {
  assert(blocks_[block].last == kToTheEnd);
  blocks_[block].last = events_++;
}

void ArenaPlan::settle(Program& program) {
  for (ArenaBlock& block : blocks_) block.last = std::min(block.last, events_);
  const Placement placement = place_best(blocks_);
  const auto settle = [&](BufferRef& ref) {
    if (ref.space == BufferRef::Space::kArena) ref.offset = placement.offsets[ref.offset];
  };
  for (ProgramStep& step : program.steps) {
    std::ranges::for_each(step.inputs, settle);
    std::ranges::for_each(step.outputs, settle);
    settle(step.workspace);
  }
  for (ProgramOperand& output : program.outputs) settle(output.buffer);
  for (SavedCopy& save : program.saves) {
    settle(save.from);
    save.to = placement.offsets[save.to];
  }
  for (StateCopy& commit : program.commits) settle(commit.from);
  program.arena_bytes = placement.bytes;
  program.arena_blocks = std::move(blocks_);
}

}  // namespace halfnote
