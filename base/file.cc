// POSIX calls with every result checked. Files are judged by their descriptor, not by their path,
// and all steps of an atomic write happen relative to one open folder, so that a folder that is
// moved meanwhile does no harm.
//
// A failed fsync is never repeated: the kernel may have dropped the pages already, and the second
// call would lie. The temporary file is thrown away instead.
#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/system/mapped_files.h"
#include "base/system/temporary_files.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadChunk = size_t{1} << 20;
constexpr size_t kWriteChunk = size_t{1} << 30;  // one write() never takes more than 2 GiB
constexpr size_t kCopied = size_t{1} << 20;      // parts from here on are looked up as mapped files

[[noreturn]] void fail(const fs::path& path, const std::string& what, int error) {
  throw Error(ErrorCode::kIo, what + ": " + std::generic_category().message(error))
      .at({.file = path.string()});
}

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  bool valid() const { return number_ >= 0; }
  int get() const { return number_; }
  /// Some file systems report a lost write only here.
  int close() { return ::close(release()); }
  /// Leaves the closing to the caller.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISLNK(mode)) return "a link";
  return "a device";
}

void check_regular(const fs::path& path, mode_t mode) {
  if (S_ISREG(mode)) return;
  throw Error(ErrorCode::kIo, "not a regular file")
      .at({.file = path.string()})
      .expected("a regular file", kind_of(mode));
}

struct stat status_of(const fs::path& path, const Descriptor& file) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0) fail(path, "cannot read the file", errno);
  check_regular(path, status.st_mode);
  return status;
}

/// O_NONBLOCK: opening a pipe must not wait for a writer.
Descriptor open_to_read(const fs::path& path) {
  const int number = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (number < 0) fail(path, "cannot open the file", errno);
  return Descriptor(number);
}

/// Reads up to `size` bytes, fewer only at the end of the file.
size_t read_some(const fs::path& path, const Descriptor& file, std::byte* to, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = ::read(file.get(), to + done, size - done);
    if (got == 0) break;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(path, "cannot read the file", errno);
    done += static_cast<size_t>(got);
  }
  return done;
}

[[noreturn]] void too_large(const fs::path& path, size_t max_bytes) {
  throw Error(ErrorCode::kIo, "the file is too large")
      .at({.file = path.string()})
      .expected("at most " + std::to_string(max_bytes) + " bytes", "more");
}

/// Reads to the end, whatever size was announced: files of /proc say 0, and a log may grow.
template <class Container>
Container read_all(const fs::path& path, size_t max_bytes) {
  const Descriptor file = open_to_read(path);
  const auto announced = static_cast<size_t>(status_of(path, file).st_size);
  if (announced > max_bytes) too_large(path, max_bytes);
  Container content;
  for (size_t want = announced + 1;; want = kReadChunk) {
    const size_t before = content.size();
    content.resize(before + want);
    auto* to = reinterpret_cast<std::byte*>(content.data()) + before;
    const size_t got = read_some(path, file, to, want);
    content.resize(before + got);
    if (content.size() > max_bytes) too_large(path, max_bytes);
    if (got < want) return content;
  }
}

[[noreturn]] void became_shorter(const fs::path& path) {
  throw Error(ErrorCode::kIo, "the file became shorter while it was read")
      .at({.file = path.string()});
}

std::shared_ptr<const std::byte> map(const fs::path& path, const Descriptor& file, size_t size) {
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) return nullptr;
  const auto* begin = static_cast<const std::byte*>(address);
  remember_mapping({begin, size}, file.get(), path);
  return {begin, [size](const std::byte* p) {
            forget_mapping(p);
            munmap(const_cast<std::byte*>(p), size);
          }};
}

std::shared_ptr<const std::byte> read_shared(const fs::path& path, const Descriptor& file,
                                             size_t size) {
  auto bytes = std::make_shared<std::vector<std::byte>>(size);
  if (read_some(path, file, bytes->data(), size) != size) became_shorter(path);
  return {bytes, bytes->data()};
}

/// The file that is being written; removed again unless it was renamed.
class TemporaryFile {
 public:
  TemporaryFile(const fs::path& target, const Descriptor& folder)
      : target_(target), folder_(folder), file_(create()) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!renamed_) unlinkat(folder_.get(), name_.c_str(), 0);
  }

  void take_mode(mode_t mode) {
    if (fchmod(file_.get(), mode & 0777) != 0) fail(target_, "cannot set the permissions", errno);
  }
  /// Large parts of a mapped file are copied by the system, and its holes stay holes.
  void write(std::span<const std::byte> part) {
    const auto place = part.size() < kCopied ? std::nullopt : find_mapping(part);
    if (!place) return write_bytes(part);
    const auto offset = static_cast<off_t>(place->offset);
    const auto size = static_cast<off_t>(part.size());
    for (off_t done = 0; done < size;) {
      const off_t data = next(place->descriptor, offset + done, SEEK_DATA, offset + size) - offset;
      if (data > done) skip(data - done);
      if (data == size) break;
      const off_t end = next(place->descriptor, offset + data, SEEK_HOLE, offset + size) - offset;
      copy(*place, part, data, end);
      done = end;
    }
  }
  void flush() {
    // A hole at the end has no byte that makes the file as long as it is.
    const off_t size = holes_ ? ::lseek(file_.get(), 0, SEEK_CUR) : 0;
    if (size < 0 || (holes_ && ftruncate(file_.get(), size) != 0)) {
      fail(target_, "cannot write the file", errno);
    }
    if (fsync(file_.get()) != 0) fail(target_, "cannot flush the file to the disk", errno);
    if (file_.close() != 0) fail(target_, "cannot finish the file", errno);
  }
  void rename_to_target() {
    const std::string to = target_.filename().string();
    if (renameat(folder_.get(), name_.c_str(), folder_.get(), to.c_str()) != 0) {
      fail(target_, "cannot rename the finished file", errno);
    }
    renamed_ = true;
  }

 private:
  /// Where the next data or hole begins, `end` at the most. A file system that knows no holes has
  /// data everywhere.
  static off_t next(int source, off_t from, int what, off_t end) {
    const off_t found = ::lseek(source, from, what);
    if (found >= 0) return std::min(found, end);
    if (errno == ENXIO) return end;
    return what == SEEK_DATA ? from : end;
  }

  void skip(off_t size) {
    if (::lseek(file_.get(), size, SEEK_CUR) < 0) fail(target_, "cannot write the file", errno);
    holes_ = true;
  }

  /// Copies [from, to) of the part. Where the system will not (another file system), the bytes are
  /// written from memory, and the pages they came in with go again.
  void copy(const FilePlace& place, std::span<const std::byte> part, off_t from, off_t to) {
    auto at = static_cast<off_t>(place.offset) + from;
    while (from < to) {
      const ssize_t done = ::copy_file_range(place.descriptor, &at, file_.get(), nullptr,
                                             static_cast<size_t>(to - from), 0);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) break;
      from += done;
    }
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    while (from < to) {
      const size_t size = std::min(static_cast<size_t>(to - from), kCopied);
      const auto piece = part.subspan(static_cast<size_t>(from), size);
      write_bytes(piece);
      const uintptr_t begin = reinterpret_cast<uintptr_t>(piece.data()) / page * page;
      const uintptr_t end = reinterpret_cast<uintptr_t>(piece.data()) + size;
      ::madvise(reinterpret_cast<void*>(begin), end / page * page - begin, MADV_DONTNEED);
      from += static_cast<off_t>(size);
    }
  }

  void write_bytes(std::span<const std::byte> part) {
    while (!part.empty()) {
      const ssize_t done = ::write(file_.get(), part.data(), std::min(part.size(), kWriteChunk));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail(target_, "cannot write the file", errno);
      part = part.subspan(static_cast<size_t>(done));
    }
  }

  int create() {
    const int number = create_temporary_file(folder_.get(), name_);
    if (number < 0) fail(target_, "cannot create a file in this folder", errno);
    return number;
  }

  const fs::path& target_;
  const Descriptor& folder_;
  std::string name_;
  bool renamed_ = false, holes_ = false;
  Descriptor file_;
  Descriptor held_{::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0)};  // the lock, until the renaming
  TemporaryName listed_{folder_.get(), name_};
};

void flush_folder(const fs::path& target, const Descriptor& folder) {
  if (fsync(folder.get()) == 0) return;
  if (errno == EINVAL || errno == ENOTSUP) return;  // a file system where folders need no flush
  fail(target, "cannot flush the folder to the disk", errno);
}

/// Where a link leads, so that the link itself stays; the path as given for everything else.
fs::path behind_link(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  fs::path target = fs::canonical(path, error);
  if (error) fail(path, "cannot follow the link", error.value());
  return target;
}

}  // namespace

std::vector<std::byte> read_file(const fs::path& path, size_t max_bytes) {
  return read_all<std::vector<std::byte>>(path, max_bytes);
}

std::string read_text(const fs::path& path, size_t max_bytes) {
  return read_all<std::string>(path, max_bytes);
}

MappedFile::MappedFile(const fs::path& path) {
  const Descriptor file = open_to_read(path);
  const struct stat status = status_of(path, file);
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  const bool trusted = status.st_uid == geteuid() || status.st_uid == 0;
  if (trusted) data_ = map(path, file, size_);
  if (data_ != nullptr && static_cast<size_t>(status_of(path, file).st_size) < size_) {
    became_shorter(path);
  }
  if (data_ == nullptr) data_ = read_shared(path, file, size_);
}

/// One file of a set. The members are destroyed from the last to the first: the temporary file goes
/// while its folder is still open.
struct FileSet::Staged {
  explicit Staged(const fs::path& given)
      : path(given), target(behind_link(given)), folder(open_folder()), file(target, folder) {}

  /// Looks at what is in the place before anything is written, and takes away what killed processes
  /// left beside it.
  int open_folder() {
    if (!target.has_filename()) {
      throw Error(ErrorCode::kIo, "not the name of a file").at({.file = path.string()});
    }
    const fs::path parent = target.has_parent_path() ? target.parent_path() : fs::path(".");
    const int number = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (number < 0) fail(path, "cannot open the folder of the file", errno);
    Descriptor opened(number);
    struct stat old {};
    const std::string name = target.filename().string();
    exists = fstatat(number, name.c_str(), &old, AT_SYMLINK_NOFOLLOW) == 0;
    if (!exists && errno != ENOENT) fail(path, "cannot look at the file", errno);
    if (exists) check_regular(path, old.st_mode);
    mode = old.st_mode;
    tidy_temporary_files(number);
    return opened.release();
  }

  fs::path path, target;
  bool exists = false;
  mode_t mode = 0;
  Descriptor folder;
  TemporaryFile file;
};

void check_writable(const fs::path& path) { const FileSet::Staged staged(path); }

FileSet::FileSet() = default;
FileSet::~FileSet() = default;

void FileSet::add(const fs::path& path, std::span<const std::span<const std::byte>> parts) {
  auto staged = std::make_unique<Staged>(path);
  if (staged->exists) staged->file.take_mode(staged->mode);
  for (const std::span<const std::byte>& part : parts) staged->file.write(part);
  staged->file.flush();
  files_.push_back(std::move(staged));
}

void FileSet::add(const fs::path& path, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  add(path, std::span(&bytes, 1));
}

void FileSet::commit() {
  size_t renamed = 0;
  try {
    for (; renamed < files_.size(); ++renamed) files_[renamed]->file.rename_to_target();
  } catch (...) {
    for (size_t i = 0; i < renamed; ++i) {
      const Staged& done = *files_[i];
      if (!done.exists) unlinkat(done.folder.get(), done.target.filename().c_str(), 0);
    }
    throw;
  }
  for (const auto& staged : files_) flush_folder(staged->path, staged->folder);
  files_.clear();
}

void write_file_atomic(const fs::path& path, std::span<const std::span<const std::byte>> parts) {
  FileSet one;
  one.add(path, parts);
  one.commit();
}

void write_file_atomic(const fs::path& path, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  write_file_atomic(path, std::span(&bytes, 1));
}

}  // namespace halfnote
