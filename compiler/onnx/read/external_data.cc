// Opening: openat2 below the model's folder with no links at all; only when a link is in the way
// the exception is looked at. File systems race, so what was opened is judged by its descriptor,
// never by its path.
#include "compiler/onnx/read/external_data.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/os/vanished_file.h"

namespace halfnote::proto {
namespace {

namespace fs = std::filesystem;

constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
constexpr size_t kMaxLocation = 4096;

[[noreturn]] void unsafe(const std::string& location, const std::string& why,
                         const std::string& way_out = "") {
  throw Error(ErrorCode::kModel, "unsafe location of external data: " + why)
      .expected("a relative path below the model's folder", "\"" + location + "\"")
      .hint(way_out);
}

[[noreturn]] void cannot_open(const std::string& location, int error) {
  throw Error(ErrorCode::kIo, "cannot open external data \"" + location + "\"")
      .expected("a readable file beside the model", std::strerror(error));
}

void check_location(const std::string& location) {
  if (location.empty()) unsafe(location, "it is empty");
  if (location.size() > kMaxLocation) unsafe(location.substr(0, 40) + "…", "it is too long");
  if (location.find('\0') != std::string::npos) {
    unsafe(location.substr(0, location.find('\0')), "it holds a NUL character");
  }
  if (location.find('\\') != std::string::npos) unsafe(location, "it holds a backslash");
  if (location.front() == '/') unsafe(location, "it is absolute");
  if (location.starts_with("file:") || location.find("://") != std::string::npos) {
    unsafe(location, "it is an URL");
  }
  for (size_t at = 0; at <= location.size();) {
    const size_t end = std::min(location.find('/', at), location.size());
    if (location.compare(at, end - at, "..") == 0) unsafe(location, "it holds \"..\"");
    at = end + 1;
  }
  if (location.back() == '/') unsafe(location, "it is a folder");
}

uint64_t parse_number(const std::string& key, const std::string& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) {
    throw Error(ErrorCode::kModel, "bad " + key + " of external data")
        .expected("a decimal number of 64 bits", "\"" + text + "\"");
  }
  return number;
}

int open_at(int folder, const char* path, uint64_t resolve) {
  open_how how{};
  how.flags = kOpenFlags;
  how.resolve = resolve;
  return static_cast<int>(syscall(SYS_openat2, folder, path, &how, sizeof how));
}

/// The same without openat2: step by step, never through a link.
int walk_below(int folder, const std::string& location) {
  int current = dup(folder);
  for (size_t at = 0; current >= 0;) {
    const size_t end = std::min(location.find('/', at), location.size());
    const std::string part = location.substr(at, end - at);
    const bool last = end == location.size();
    const int next = part.empty() && !last ? dup(current)
                                           : openat(current, part.c_str(),
                                                    last ? kOpenFlags : kOpenFlags | O_DIRECTORY);
    const int error = errno;
    close(current);
    errno = error;
    current = next;
    if (last) break;
    at = end + 1;
  }
  return current;
}

bool is_below(const fs::path& path, const fs::path& folder) {
  auto at = path.begin();
  for (const fs::path& part : folder) {
    if (part.empty()) continue;
    if (at == path.end() || *at != part) return false;
    ++at;
  }
  return at != path.end();
}

}  // namespace

/// An open file, mapped as a whole when that is safe.
struct ExternalData::File {
  int descriptor = -1;
  uint64_t size = 0;
  std::shared_ptr<const std::byte> mapping;

  ~File() {
    if (descriptor >= 0) close(descriptor);
  }
  void check(const std::string& location, const std::function<void(const std::string&)>& warn);
  void map(const std::string& location);
};

void ExternalData::File::check(const std::string& location,
                               const std::function<void(const std::string&)>& warn) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) cannot_open(location, errno);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::kModel, "external data \"" + location + "\" is not a regular file")
        .expected("a regular file", S_ISDIR(status.st_mode) ? "a folder" : "a pipe or device");
  }
  if (status.st_nlink > 1 && warn) {
    warn("external data \"" + location + "\" has more than one name (hard link)");
  }
  size = static_cast<uint64_t>(status.st_size);
  // A file that its owner shortens under us would end the program with SIGBUS.
  const bool ours = status.st_uid == geteuid() || status.st_uid == 0;
  if (ours && size > 0) map(location);
}

void ExternalData::File::map(const std::string& location) {
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (address == MAP_FAILED) return;  // read instead
  const size_t bytes = size;
  note_mapping(static_cast<const std::byte*>(address), bytes, location);
  mapping = {static_cast<const std::byte*>(address), [address, bytes](const std::byte* begin) {
               forget_mapping(begin);
               munmap(address, bytes);
             }};
  struct stat status {};
  if (fstat(descriptor, &status) != 0 || static_cast<uint64_t>(status.st_size) < size) {
    throw Error(ErrorCode::kIo, "external data became shorter while it was opened");
  }
  close(std::exchange(descriptor, -1));  // thousands of files must not use up the descriptors
}

ExternalEntry parse_external_entry(
    const std::vector<std::pair<std::string, std::string>>& entries) {
  ExternalEntry result;
  bool has_location = false, has_offset = false;
  const auto once = [](const std::string& key, bool& seen) {
    if (!seen) {
      seen = true;
      return;
    }
    throw Error(ErrorCode::kModel, "key \"" + key + "\" of external data stands twice");
  };
  for (const auto& [key, value] : entries) {
    if (key == "location") {
      once(key, has_location);
      check_location(value);
      result.location = value;
    } else if (key == "offset") {
      once(key, has_offset);
      result.offset = parse_number(key, value);
    } else if (key == "length") {
      once(key, result.has_length);
      result.length = parse_number(key, value);
    } else if (key == "checksum") {
      once(key, result.has_checksum);
    } else {
      throw Error(ErrorCode::kModel, "unknown key of external data")
          .expected("location, offset, length or checksum", "\"" + key + "\"");
    }
  }
  if (!has_location) throw Error(ErrorCode::kModel, "external data without a location");
  return result;
}

ExternalData::ExternalData(fs::path model, std::vector<fs::path> allowed,
                           std::function<void(const std::string&)> warn)
    : model_(std::move(model)), folder_(model_.parent_path()), warn_(std::move(warn)) {
  if (folder_.empty()) folder_ = ".";
  for (const fs::path& folder : allowed) {
    std::error_code error;
    fs::path canonical = fs::canonical(folder, error);
    if (!error) allowed_.push_back(std::move(canonical));
  }
}

ExternalData::~ExternalData() = default;

std::vector<std::string> ExternalData::files() const {
  std::vector<std::string> paths;
  for (const auto& [location, file] : files_) paths.push_back((folder_ / location).string());
  return paths;
}

int ExternalData::open_below(const std::string& location) {
  const int folder = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) cannot_open(location, errno);
  int descriptor = open_at(folder, location.c_str(),
                           RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);
  if (descriptor < 0 && (errno == ENOSYS || errno == EPERM)) {
    descriptor = walk_below(folder, location);
  }
  const int error = errno;
  close(folder);
  errno = error;
  return descriptor;
}

/// The exception for links: judged by where they really end, then opened there without any further
/// link.
int ExternalData::open_link(const std::string& location) {
  std::error_code error;
  const fs::path target = fs::canonical(folder_ / location, error);
  if (error) cannot_open(location, error.value());
  const fs::path model = fs::canonical(model_, error);
  const bool beside_model = !error && target.parent_path() == model.parent_path();
  bool allowed = beside_model;
  for (const fs::path& folder : allowed_) allowed = allowed || is_below(target, folder);
  if (!allowed)
    unsafe(location, "it is a link that leaves the model's folder",
           "name the folder that it leads to with --allow-dir, if you trust it");
  int descriptor = open_at(AT_FDCWD, target.c_str(), RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);
  if (descriptor < 0 && (errno == ENOSYS || errno == EPERM)) {
    const int root = ::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    descriptor = walk_below(root, target.string().substr(1));
    close(root);
  }
  return descriptor;
}

ExternalData::File& ExternalData::file(const ExternalEntry& entry, const ImportLimits& limits) {
  const auto found = files_.find(entry.location);
  if (found != files_.end()) return *found->second;
  if (files_.size() >= limits.external_files) {
    throw Error(ErrorCode::kModel, "the number of external files is over the limit")
        .expected("at most " + std::to_string(limits.external_files), "more");
  }
  auto opened = std::make_unique<File>();
  opened->descriptor = open_below(entry.location);
  if (opened->descriptor < 0 && (errno == ELOOP || errno == ENOTDIR || errno == EXDEV)) {
    opened->descriptor = open_link(entry.location);
  }
  if (opened->descriptor < 0) cannot_open(entry.location, errno);
  opened->check(entry.location, warn_);
  return *files_.emplace(entry.location, std::move(opened)).first->second;
}

std::shared_ptr<const std::byte> ExternalData::open(const ExternalEntry& entry, uint64_t size,
                                                    TensorSource& source) {
  File& data = file(entry, source.limits);
  uint64_t end = 0;
  const uint64_t rest = data.size - std::min(entry.offset, data.size);
  const uint64_t length = entry.has_length ? entry.length : rest;
  const bool fits = entry.offset <= data.size &&
                    !__builtin_add_overflow(entry.offset, length, &end) && end <= data.size;
  if (!fits) {
    throw Error(ErrorCode::kModel, "external data lies outside of its file")
        .expected("offset + length up to " + std::to_string(data.size),
                  std::to_string(entry.offset) + " + " + std::to_string(length));
  }
  if (length != size) {
    throw Error(ErrorCode::kModel, "external data has the wrong size")
        .expected(std::to_string(size) + " bytes", std::to_string(length) + " bytes");
  }
  if (entry.has_checksum && warn_) {
    warn_("the checksum of external data \"" + entry.location + "\" is not verified");
  }
  if (data.mapping != nullptr) return {data.mapping, data.mapping.get() + entry.offset};
  source.spend(size);
  Tensor copy(DType::kU8, {static_cast<int64_t>(size)});
  std::byte* to = copy.mutable_bytes();
  for (uint64_t done = 0; done < size;) {
    const ssize_t got =
        pread(data.descriptor, to + done, size - done, static_cast<off_t>(entry.offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw Error(ErrorCode::kIo, "cannot read external data \"" + entry.location + "\"")
          .expected(std::to_string(size) + " bytes", std::to_string(done));
    }
    done += static_cast<uint64_t>(got);
  }
  return copy.storage();
}

}  // namespace halfnote::proto
