#include "base/system/mapped_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "base/system/vanished_file.h"

namespace halfnote {
namespace {

constexpr size_t kSmall = size_t{16} << 20;

struct Mapping {
  size_t size = 0;
  int descriptor = -1;
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

}  // namespace

void remember_mapping(std::span<const std::byte> bytes, int descriptor,
                      const std::filesystem::path& path) {
  watch_mapping(bytes.data(), bytes.size(), path);
  if (bytes.size() < kSmall) return;
  const int own = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (own < 0) return;
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
  ::close(found->second.descriptor);
  all.by_start.erase(found);
}

std::optional<FilePlace> find_mapping(std::span<const std::byte> bytes) {
  Mappings& all = mappings();
  const std::lock_guard lock(all.mutex);
  auto found = all.by_start.upper_bound(bytes.data());
  if (found == all.by_start.begin()) return std::nullopt;
  --found;
  const auto offset = static_cast<size_t>(bytes.data() - found->first);
  const Mapping& mapping = found->second;
  if (offset >= mapping.size || bytes.size() > mapping.size - offset) return std::nullopt;
  return FilePlace{mapping.descriptor, offset};
}

}  // namespace halfnote
