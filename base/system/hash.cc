#include "base/system/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "base/file.h"

namespace halfnote {

std::string content_hash(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string content_hash(std::string_view text) {
  return content_hash(std::as_bytes(std::span(text)));
}

std::string file_hash(const std::filesystem::path& path) {
  return content_hash(MappedFile(path).bytes());
}

}  // namespace halfnote
