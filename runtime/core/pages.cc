#include "runtime/core/pages.h"

#include <sys/mman.h>

#include <algorithm>

namespace halfnote {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

void PageDeleter::operator()(std::byte* memory) const { ::munmap(memory, bytes); }

Pages allocate_pages(size_t bytes) {
  const size_t wanted = std::max<size_t>(bytes, 1);
  // A multiple of huge pages starts on one by itself where the kernel aligns large mappings.
  const size_t size =
      wanted < kHugePage ? wanted : (wanted + kHugePage - 1) / kHugePage * kHugePage;
  if (size < wanted) return Pages(nullptr, {});
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Pages(nullptr, {});
  if (size >= kHugePage) ::madvise(memory, size, MADV_HUGEPAGE);  // a wish; small pages do as well
  return Pages(static_cast<std::byte*>(memory), {size});
}

}  // namespace halfnote
