#include "base/system/mapped_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "base/system/vanished_file.h"

namespace halfnote {
namespace {

struct Mapping {
  size_t size = 0;
  int descriptor = -1;  // of large files, where one is free
};

struct Mappings {
  std::mutex mutex;
  std::map<const std::byte*, Mapping> by_start;
};

/// Never destroyed: tensors of static life may outlast any order of destruction.
Mappings& mappings() {
  static auto* all = new Mappings;
  return *all;
}

/// The map that holds all of these bytes, and where it starts; null if none does.
const std::pair<const std::byte* const, Mapping>* find(const Mappings& all,
                                                       std::span<const std::byte> bytes) {
  auto found = all.by_start.upper_bound(bytes.data());
  if (found == all.by_start.begin()) return nullptr;
  --found;
  const auto offset = static_cast<size_t>(bytes.data() - found->first);
  const size_t size = found->second.size;
  return offset >= size || bytes.size() > size - offset ? nullptr : &*found;
}

}  // namespace

void remember_mapping(std::span<const std::byte> bytes, int descriptor,
                      const std::filesystem::path& path) {
  watch_mapping(bytes.data(), bytes.size(), path);
  const int own = bytes.size() < kLargeFile ? -1 : ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  Mappings& all = mappings();
  const std::lock_guard lock(all.mutex);
  all.by_start[bytes.data()] = {bytes.size(), own};
}

void forget_mapping(const std::byte* begin) {
  unwatch_mapping(begin);
  Mappings& all = mappings();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_start.find(begin);
  if (found == all.by_start.end()) return;
  if (found->second.descriptor >= 0) ::close(found->second.descriptor);
  all.by_start.erase(found);
}

std::optional<FilePlace> find_mapping(std::span<const std::byte> bytes) {
  Mappings& all = mappings();
  const std::lock_guard lock(all.mutex);
  const auto* found = find(all, bytes);
  if (found == nullptr || found->second.descriptor < 0) return std::nullopt;
  return FilePlace{found->second.descriptor, static_cast<uint64_t>(bytes.data() - found->first)};
}

bool is_mapped(std::span<const std::byte> bytes) {
  Mappings& all = mappings();
  const std::lock_guard lock(all.mutex);
  return find(all, bytes) != nullptr;
}

void release_mapped(std::span<const std::byte> bytes) {
  Mappings& all = mappings();
  const std::lock_guard lock(all.mutex);
  const auto* found = find(all, bytes);
  if (found == nullptr || bytes.empty()) return;
  // Whole pages: what else lies on them comes back when it is read.
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto offset = static_cast<size_t>(bytes.data() - found->first);
  const size_t from = offset / page * page;
  const size_t to = std::min(found->second.size, offset + bytes.size());
  ::madvise(const_cast<std::byte*>(found->first) + from, to - from, MADV_DONTNEED);
}

}  // namespace halfnote
