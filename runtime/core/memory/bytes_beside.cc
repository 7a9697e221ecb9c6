#include "runtime/core/memory/bytes_beside.h"

#include <algorithm>

namespace halfnote {
namespace {

/// Bytes in use behind each event of the arena.
std::vector<int64_t> bytes_in_use(std::span<const ArenaBlock> blocks) {
  int events = 0;
  for (const ArenaBlock& block : blocks) events = std::max(events, block.last);
  std::vector<int64_t> bytes(static_cast<size_t>(events) + 1, 0);
  for (const ArenaBlock& block : blocks) {
    bytes[static_cast<size_t>(block.first)] += static_cast<int64_t>(block.bytes);
    bytes[static_cast<size_t>(block.last)] -= static_cast<int64_t>(block.bytes);
  }
  for (size_t i = 1; i < bytes.size(); ++i) bytes[i] += bytes[i - 1];
  return bytes;
}

}  // namespace

BytesBeside bytes_beside(const Graph& graph, const Program& program) {
  const LiveRanges live(graph);
  const std::vector<int64_t> used = bytes_in_use(program.arena_blocks);
  BytesBeside beside;
  int64_t reordering = 0;  // of the steps without a node before one that has one
  for (const ProgramStep& step : program.steps) {
    const int64_t bytes = step.moment < 0 ? 0 : used[static_cast<size_t>(step.moment)];
    if (!step.id.valid()) {
      reordering = std::max(reordering, bytes);
      continue;
    }
    const int64_t more = std::max(bytes, reordering) - live.held(live.position(step.id));
    // Several steps of a node, and nodes of one name, count as their largest, in any order.
    const auto [entry, is_new] = beside.emplace(graph.label(step.id), more);
    if (!is_new) entry->second = std::max(entry->second, more);
    reordering = 0;
  }
  return beside;
}

}  // namespace halfnote
