// The file operations of a save, one virtual call each, so that a test can make any one of them
// fail or stop after it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

namespace halfnote {

/// Every operation throws Error(kIo) naming the path and the system's reason.
class Disk {
 public:
  using Path = std::filesystem::path;

  virtual ~Disk() = default;
  /// Makes one folder; it may exist already.
  virtual void make_folder(const Path& path);
  /// A new file for writing; its descriptor.
  virtual int create(const Path& path);
  virtual void write(int file, const Path& path, std::span<const std::byte> bytes);
  /// Flushes the content to the disk.
  virtual void sync(int file, const Path& path);
  virtual void close(int file, const Path& path);
  /// Also replaces an existing file, never a folder that is not empty.
  virtual void rename(const Path& from, const Path& to);
  /// Swaps two existing folders in one step; false where the file system cannot.
  virtual bool exchange(const Path& a, const Path& b);
  /// Flushes a folder's entries to the disk.
  virtual void sync_folder(const Path& path);
  /// Removes a file or an empty folder.
  virtual void remove(const Path& path);
};

Disk& real_disk();

/// Creates a file, writes the parts one behind the other and flushes it. On failure the file is
/// removed: after a failed flush its pages may be gone, so that trying again on the same file would
/// prove nothing.
void write_durably(Disk& disk, const Disk::Path& path,
                   std::span<const std::span<const std::byte>> parts);

/// Replaces a small file in one step, so that a reader sees the old text or the new one, and
/// flushes its folder.
void replace_file(Disk& disk, const Disk::Path& path, std::string_view text);

/// Removes a folder with the files in it.
void remove_tree(Disk& disk, const Disk::Path& path);

}  // namespace halfnote
