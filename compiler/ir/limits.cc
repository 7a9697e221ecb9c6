#include "compiler/ir/limits.h"

#include <unistd.h>

namespace halfnote {

uint64_t memory_limit(const ImportLimits& limits) {
  if (limits.copied_bytes != 0) return limits.copied_bytes;
  const auto pages = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES));
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE)) / 5 * 4;
}

}  // namespace halfnote
