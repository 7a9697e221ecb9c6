#include "runtime/train/checkpoint/run_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"
#include "runtime/train/checkpoint/run_folder.h"

namespace halfnote {
namespace {

/// The process that wrote itself into the lock file, for the message only.
std::string holder(int file) {
  char text[64] = {};
  const ssize_t got = ::pread(file, text, sizeof text - 1, 0);
  const std::string line(text, got > 0 ? static_cast<size_t>(got) : 0);
  const std::string shown = line.substr(0, line.find('\n'));
  return shown.empty() ? "another process" : shown;
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& run_folder) {
  const std::filesystem::path path = run_folder / kRunLock;
  const auto fail = [&](const char* what) {
    return Error(ErrorCode::kIo, fmt::format("cannot {} ({})", what, std::strerror(errno)))
        .at({path.string(), {}, {}});
  };
  file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file_ < 0) throw fail("open the lock file");
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    const Error failure = errno == EWOULDBLOCK
                              ? Error(ErrorCode::kUsage, "the run folder is in use")
                                    .at({run_folder.string(), {}, {}})
                                    .expected("a folder that no run is writing to", holder(file_))
                                    .hint("wait for it, or choose another run folder")
                              : fail("lock the file");
    ::close(file_);
    throw failure;
  }
  const std::string text = fmt::format("process {}\n", ::getpid());
  if (::ftruncate(file_, 0) != 0 || ::pwrite(file_, text.data(), text.size(), 0) < 0) {
    const Error failure = fail("write the lock file");
    ::close(file_);
    throw failure;
  }
}

// The file stays: removing it would let two processes lock two files of one name.
RunLock::~RunLock() { ::close(file_); }

}  // namespace halfnote
