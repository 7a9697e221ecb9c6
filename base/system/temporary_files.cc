// The list is read by a signal handler: fixed slots, no lock, no allocation. A slot's `folder` is
// set last and cleared first.
#include "base/system/temporary_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <string_view>
#include <vector>

namespace halfnote {
namespace {

constexpr std::string_view kBegin = ".hn-", kEnd = ".tmp";
constexpr int kNameAttempts = 1000;
constexpr size_t kNames = 64;  // files written at once; one more is not listed
constexpr size_t kLongestName = 48;

struct NameSlot {
  std::atomic<bool> taken{false};
  std::atomic<int> folder{-1};
  char name[kLongestName] = {};
};

NameSlot name_slots[kNames];
static_assert(std::atomic<int>::is_always_lock_free);

void end_tidily(int signal) {
  remove_temporary_files();
  std::signal(signal, SIG_DFL);
  ::raise(signal);  // taken when this handler returns
}

/// The process that a name belongs to; 0 for a name that is none of ours.
pid_t owner_of(std::string_view name) {
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return 0;
  name.remove_prefix(kBegin.size());
  name.remove_suffix(kEnd.size());
  const size_t dash = name.find('-');
  if (dash == std::string_view::npos) return 0;
  pid_t owner = 0;
  unsigned counter = 0;
  const auto whole = [](std::string_view text, auto& number) {
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
    return code == std::errc() && end == text.data() + text.size();
  };
  const bool ours = whole(name.substr(0, dash), owner) && whole(name.substr(dash + 1), counter);
  return ours && owner > 0 ? owner : 0;
}

bool lives(pid_t process) { return ::kill(process, 0) == 0 || errno != ESRCH; }

/// Takes the lock without waiting. A file system without locks has none to take.
bool lock(int file) {
  if (::flock(file, LOCK_EX | LOCK_NB) == 0) return true;
  return errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS;
}

/// Nobody who is at work has made it.
bool is_left_over(int folder, const std::string& name) {
  const pid_t owner = owner_of(name);
  if (owner == 0 || lives(owner)) return false;
  const int file =
      ::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY);
  if (file < 0) return false;
  struct stat status {};
  const bool gone = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
                    ::flock(file, LOCK_EX | LOCK_NB) == 0;
  ::close(file);
  return gone;
}

}  // namespace

bool is_temporary_name(std::string_view name) { return owner_of(name) != 0; }

int create_temporary_file(int folder, std::string& name) {
  static std::atomic<uint32_t> counter{0};
  for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
    name = kBegin;
    name += std::to_string(::getpid()) + "-" + std::to_string(counter++);
    name += kEnd;
    // Not mkstemp: the kernel applies umask and the folder's default ACL only to the mode asked
    // for here. The name is short, so that it fits wherever the target's does.
    const int file = ::openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 && errno == EEXIST) continue;
    if (file < 0) return -1;
    struct stat status {};
    // Where another machine tidies, the file may be taken for a left one until it is locked.
    if (lock(file) && ::fstat(file, &status) == 0 && status.st_nlink > 0) return file;
    ::unlinkat(folder, name.c_str(), 0);
    ::close(file);
  }
  errno = EEXIST;
  return -1;
}

TemporaryName::TemporaryName(int folder, const std::string& name) : slot_(-1) {
  if (name.size() >= kLongestName) return;
  for (size_t i = 0; i < kNames; ++i) {
    NameSlot& slot = name_slots[i];
    if (slot.taken.exchange(true)) continue;
    std::memcpy(slot.name, name.c_str(), name.size() + 1);
    slot.folder.store(folder, std::memory_order_release);
    slot_ = static_cast<int>(i);
    return;
  }
}

TemporaryName::~TemporaryName() {
  if (slot_ < 0) return;
  NameSlot& slot = name_slots[slot_];
  slot.folder.store(-1, std::memory_order_release);
  slot.taken.store(false, std::memory_order_release);
}

void remove_temporary_files() {
  for (const NameSlot& slot : name_slots) {
    const int folder = slot.folder.load(std::memory_order_acquire);
    if (folder >= 0) ::unlinkat(folder, slot.name, 0);
  }
}

void remove_temporary_files_on_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_DFL) continue;
    struct sigaction action {};
    action.sa_handler = end_tidily;
    sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
  }
}

void tidy_temporary_files(int folder) {
  const int own = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* listing = own < 0 ? nullptr : ::fdopendir(own);
  if (listing == nullptr) {
    if (own >= 0) ::close(own);
    return;
  }
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(listing)) {
    if (owner_of(entry->d_name) != 0) names.emplace_back(entry->d_name);
  }
  ::closedir(listing);
  for (const std::string& name : names) {
    if (is_left_over(folder, name)) ::unlinkat(folder, name.c_str(), 0);
  }
}

}  // namespace halfnote
