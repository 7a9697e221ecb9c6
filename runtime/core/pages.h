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
/// walks through gigabytes spends its time on data, not on page tables; the rest behind the last
/// whole one is in small pages. Nothing is touched: what the run never writes takes no room. Null
/// when there is no memory.
Pages allocate_pages(size_t bytes);
/// What this process has in memory now, and the most that it ever had; 0 where the system does not
/// say (Linux does).
struct ResidentMemory {
  size_t anonymous = 0;  // its own, without the files that it maps
  size_t all = 0;
  size_t peak = 0;
};
ResidentMemory resident_memory();
/// Begins the peak anew with what is in memory now. False where the system does not let it.
bool reset_resident_peak();
/// Gives back to the system what was freed.
void trim_heap();
/// Bytes of all blocks that are held now, for tests.
size_t held_page_bytes();

}  // namespace halfnote
