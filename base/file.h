// Whole files: read, mapped, and written so that a reader sees the old content or the new one,
// never a part. Failures throw Error(kIo) with the path and the system's reason.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace halfnote {

/// The bytes of a regular file; throws Error(kIo) also when there are more than `max_bytes`.
std::vector<std::byte> read_file(const std::filesystem::path& path, size_t max_bytes);
/// The same as a string, byte for byte.
std::string read_text(const std::filesystem::path& path, size_t max_bytes);

/// A regular file as read-only memory. It is mapped when that is safe; a file that cannot be
/// mapped, or that belongs to another user (who could shorten it under us, which ends a program
/// with SIGBUS), is read into memory.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);

  std::span<const std::byte> bytes() const { return {data_.get(), size_}; }
  /// The bytes for a tensor, or an aliasing pointer into them: they live as long as the last
  /// sharer, also after this object is gone. Null for an empty file.
  const std::shared_ptr<const std::byte>& share() const { return data_; }

 private:
  std::shared_ptr<const std::byte> data_;
  size_t size_ = 0;
};

/// Replaces or creates `path` with the parts one after the other: writes a temporary file in the
/// same folder, flushes it to the disk, renames it, flushes the folder. On any failure before the
/// rename the old file is untouched and nothing is left behind (base/system/temporary_files.h: what
/// signals do). What writers that were killed outright have left in the folder is removed first.
/// Keeps the permissions of an existing file (else the umask's); follows a symbolic link (not one
/// that leads nowhere); refuses to replace what is no regular file.
void write_file_atomic(const std::filesystem::path& path,
                       std::span<const std::span<const std::byte>> parts);
void write_file_atomic(const std::filesystem::path& path, std::string_view text);

/// Throws Error(kIo) if write_file_atomic() could not create or replace `path`: for commands that
/// work long before they write. Leaves nothing behind.
void check_writable(const std::filesystem::path& path);

/// Files that appear together or not at all: each is written and flushed as a temporary file beside
/// its place, and only commit() renames them. What is not committed leaves nothing behind.
class FileSet {
 public:
  FileSet();
  ~FileSet();
  FileSet(const FileSet&) = delete;
  FileSet& operator=(const FileSet&) = delete;

  /// Writes one more file, by the rules of write_file_atomic(), under its temporary name.
  void add(const std::filesystem::path& path, std::span<const std::span<const std::byte>> parts);
  void add(const std::filesystem::path& path, std::string_view text);
  /// Renames all, in the order of add(), and flushes their folders. If a rename fails, which the
  /// writing before has made unlikely, the files that are new through this call are removed again;
  /// one that took the place of an older file stays.
  void commit();

 private:
  friend void check_writable(const std::filesystem::path& path);
  struct Staged;
  std::vector<std::unique_ptr<Staged>> files_;
};

}  // namespace halfnote
