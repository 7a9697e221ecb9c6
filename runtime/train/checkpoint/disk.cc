#include "runtime/train/checkpoint/disk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace halfnote {
namespace {

Error io_error(const Disk::Path& path, const char* what, int code) {
  Error error(ErrorCode::kIo, fmt::format("cannot {} ({})", what, std::strerror(code)));
  error.at({path.string(), {}, {}});
  if (code == ENOSPC || code == EDQUOT || code == EFBIG)
    return std::move(error).hint("free space, or keep fewer checkpoints");
  return error;
}

/// Removes what a failed save leaves; the failure itself is what the user has to hear of.
void remove_quietly(Disk& disk, const Disk::Path& path) {
  try {
    disk.remove(path);
  } catch (const Error&) {
    return;  // still there: the next save removes it
  }
}

}  // namespace

void Disk::make_folder(const Path& path) {
  if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST)
    throw io_error(path, "make the folder", errno);
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) throw io_error(path, "make the folder", ENOTDIR);
}

int Disk::create(const Path& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) throw io_error(path, "create the file", errno);
  return file;
}

void Disk::write(int file, const Path& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(file, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) throw io_error(path, "write the file", errno);
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
}

void Disk::sync(int file, const Path& path) {
  if (::fsync(file) != 0) throw io_error(path, "flush the file", errno);
}

void Disk::close(int file, const Path& path) {
  if (::close(file) != 0) throw io_error(path, "close the file", errno);
}

void Disk::rename(const Path& from, const Path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) throw io_error(to, "rename to this", errno);
}

bool Disk::exchange(const Path& a, const Path& b) {
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno == EINVAL || errno == ENOSYS || errno == ENOTSUP) return false;
  throw io_error(b, "exchange with the new one", errno);
}

void Disk::sync_folder(const Path& path) {
  const int folder = ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) throw io_error(path, "open the folder", errno);
  // EINVAL: a file system that cannot flush folders; there is nothing better to do then.
  const int failure = ::fsync(folder) != 0 && errno != EINVAL && errno != ENOTSUP ? errno : 0;
  ::close(folder);
  if (failure != 0) throw io_error(path, "flush the folder", failure);
}

void Disk::remove(const Path& path) {
  if (::remove(path.c_str()) != 0) throw io_error(path, "remove", errno);
}

Disk& real_disk() {
  static Disk disk;
  return disk;
}

void write_durably(Disk& disk, const Disk::Path& path,
                   std::span<const std::span<const std::byte>> parts) {
  const int file = disk.create(path);
  try {
    for (const auto& part : parts) disk.write(file, path, part);
    disk.sync(file, path);
  } catch (...) {
    ::close(file);
    remove_quietly(disk, path);
    throw;
  }
  disk.close(file, path);
}

void replace_file(Disk& disk, const Disk::Path& path, std::string_view text) {
  const Disk::Path temporary = path.string() + ".tmp";
  std::error_code error;
  if (std::filesystem::exists(temporary, error))
    disk.remove(temporary);  // of a save that was interrupted
  const std::span<const std::byte> part = std::as_bytes(std::span(text));
  write_durably(disk, temporary, {&part, 1});
  disk.rename(temporary, path);
  disk.sync_folder(path.parent_path());
}

void remove_tree(Disk& disk, const Disk::Path& path) {
  std::error_code error;
  std::vector<Disk::Path> inside;
  for (std::filesystem::directory_iterator at(path, error), end; !error && at != end;
       at.increment(error)) {
    inside.push_back(at->path());
  }
  for (const Disk::Path& entry : inside) {
    if (std::filesystem::is_directory(std::filesystem::symlink_status(entry, error))) {
      remove_tree(disk, entry);
    } else {
      disk.remove(entry);
    }
  }
  disk.remove(path);
}

}  // namespace halfnote
