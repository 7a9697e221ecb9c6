// Memory for the two big blocks of a run, the arena and the training state.
#pragma once

#include <cstddef>
#include <memory>

namespace halfnote {

struct PageDeleter {
  size_t bytes = 0;
  void operator()(std::byte* memory) const;
};

using Pages = std::unique_ptr<std::byte[], PageDeleter>;

/// At least `bytes` zeros on a page boundary, in huge pages where the system has them: a step that
/// walks through gigabytes spends its time on data, not on page tables. Nothing is touched: what
/// the run never writes takes no room. Null when there is no memory.
Pages allocate_pages(size_t bytes);
/// What this process holds in memory now besides files that it maps (Linux: RssAnon); 0 where the
/// system does not say. What a run touched of its blocks stays until it ends, so at its end this is
/// the peak.
size_t resident_bytes();
/// Bytes of all blocks that are held now, for tests.
size_t held_page_bytes();

}  // namespace halfnote
