// Which memory is a map of which file. Whoever writes such bytes into another file can leave the
// copying to the system, hole by hole and extent by extent: nothing is read into the program, and
// what took no room in the source takes none in the copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

namespace halfnote {

/// From so many bytes on a mapped file can be read through a descriptor instead; there may be
/// thousands of smaller ones.
inline constexpr size_t kLargeFile = size_t{16} << 20;

/// A place in a file that is open for reading as long as it is mapped.
struct FilePlace {
  int descriptor = -1;
  uint64_t offset = 0;
};

/// Remembers that `bytes` map the file from its start, read only; a program that asked for it
/// (vanished_file.h) then ends with a message if the file becomes shorter. Keeps a descriptor of
/// its own for find_mapping(), but for files below kLargeFile and where none is free.
void remember_mapping(std::span<const std::byte> bytes, int descriptor,
                      const std::filesystem::path& path);
/// Before the map goes.
void forget_mapping(const std::byte* begin);
/// Where these bytes stand, if they lie in one remembered map with a descriptor.
std::optional<FilePlace> find_mapping(std::span<const std::byte> bytes);
/// Do these bytes lie in one remembered map? Then they come into memory when they are read.
bool is_mapped(std::span<const std::byte> bytes);
/// These bytes were read, and are not needed for now: if they lie in a remembered map, their pages
/// leave the process, and come back from the file when they are read again. Other memory stays.
void release_mapped(std::span<const std::byte> bytes);

}  // namespace halfnote
