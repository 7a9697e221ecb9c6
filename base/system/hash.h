// XXH3-128 as 32 lower-case hex digits (canonical, most significant digit first): integrity, not
// security.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace halfnote {

std::string content_hash(std::span<const std::byte> bytes);
std::string content_hash(std::string_view text);
/// Of a whole file. Throws Error(kIo).
std::string file_hash(const std::filesystem::path& path);

}  // namespace halfnote
