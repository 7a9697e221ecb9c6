#include "runtime/core/pages.h"

#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>

/// Of mimalloc, where the program is linked with it; else null.
extern "C" [[gnu::weak]] void mi_collect(bool force);

namespace halfnote {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

std::atomic<size_t> held = 0;

}  // namespace

void PageDeleter::operator()(std::byte* memory) const {
  ::munmap(memory, bytes);
  held -= bytes;
}

ResidentMemory resident_memory() {
  std::ifstream status("/proc/self/status");
  ResidentMemory memory;
  for (std::string word; status >> word;) {
    size_t* const to = word == "RssAnon:" ? &memory.anonymous
                       : word == "VmRSS:" ? &memory.all
                       : word == "VmHWM:" ? &memory.peak
                                          : nullptr;
    size_t kilobytes = 0;
    if (to != nullptr && status >> kilobytes) *to = kilobytes * 1024;
  }
  return memory;
}

bool reset_resident_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;  // proc(5): the high-water mark alone
  return file.good();
}

void trim_heap() {
  if (mi_collect != nullptr) mi_collect(true);
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

size_t held_page_bytes() { return held; }

Pages allocate_pages(size_t bytes) {
  const size_t wanted = std::max<size_t>(bytes, 1);
  // A multiple of huge pages starts on one by itself where the kernel aligns large mappings.
  const size_t size =
      wanted < kHugePage ? wanted : (wanted + kHugePage - 1) / kHugePage * kHugePage;
  if (size < wanted) return Pages(nullptr, {});
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Pages(nullptr, {});
  // A wish; small pages do as well.
  if (size >= kHugePage) ::madvise(memory, wanted / kHugePage * kHugePage, MADV_HUGEPAGE);
  held += size;
  return Pages(static_cast<std::byte*>(memory), {size});
}

}  // namespace halfnote
