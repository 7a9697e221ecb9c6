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
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/os/vanished_file.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;

constexpr size_t kReadChunk = size_t{1} << 20;
constexpr size_t kWriteChunk = size_t{1} << 30;  // one write() never takes more than 2 GiB
constexpr int kNameAttempts = 1000;

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
  note_mapping(static_cast<const std::byte*>(address), size, path);
  return {static_cast<const std::byte*>(address), [size](const std::byte* p) {
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
  void write(std::span<const std::byte> part) {
    while (!part.empty()) {
      const ssize_t done = ::write(file_.get(), part.data(), std::min(part.size(), kWriteChunk));
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail(target_, "cannot write the file", errno);
      part = part.subspan(static_cast<size_t>(done));
    }
  }
  void flush() {
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
  /// Not mkstemp: the kernel applies umask and the folder's default ACL only to the mode asked for
  /// here. The name is short, so that it fits wherever the target's does.
  int create() {
    static std::atomic<uint32_t> counter{0};
    for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
      name_ = ".hn-" + std::to_string(getpid()) + "-" + std::to_string(counter++) + ".tmp";
      const int number =
          openat(folder_.get(), name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (number >= 0) return number;
      if (errno != EEXIST) break;
    }
    fail(target_, "cannot create a file in this folder", errno);
  }

  const fs::path& target_;
  const Descriptor& folder_;
  std::string name_;
  bool renamed_ = false;
  Descriptor file_;
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

  /// Looks at what is in the place before anything is written.
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
