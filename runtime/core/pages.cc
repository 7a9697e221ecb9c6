#include "runtime/core/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <string>

namespace halfnote {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

std::atomic<size_t> held = 0;

}  // namespace

void PageDeleter::operator()(std::byte* memory) const {
  ::munmap(memory, bytes);
  held -= bytes;
}

size_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    size_t kilobytes = 0;
    if (word == "RssAnon:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
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
  if (size >= kHugePage) ::madvise(memory, size, MADV_HUGEPAGE);  // a wish; small pages do as well
  held += size;
  return Pages(static_cast<std::byte*>(memory), {size});
}

}  // namespace halfnote
