#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "runtime/train/data/format/readers.h"

namespace halfnote {
namespace {

/// The memory limit of the control group (version 2), or the largest number if there is none.
uint64_t group_limit() {
  std::ifstream file("/sys/fs/cgroup/memory.max");
  uint64_t limit = 0;
  return file >> limit ? limit : ~uint64_t{0};  // the word "max" is no number
}

}  // namespace

uint64_t memory_budget(const DataLimits& limits) {
  if (limits.copied_bytes != 0) return limits.copied_bytes;
  const auto pages = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES));
  const uint64_t memory = pages * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  return std::min(memory, group_limit()) / 10 * 8;
}

std::optional<uint64_t> array_bytes(DType dtype, std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    if (__builtin_mul_overflow(count, std::max<int64_t>(dim, 1), &count)) return std::nullopt;
    if (count > kMaxElements) return std::nullopt;
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  return static_cast<uint64_t>(count) * size_of(dtype);
}

}  // namespace halfnote
