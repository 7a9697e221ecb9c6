#include "tests/fuzz/support/fuzz.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace halfnote::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLongestMessage = size_t{1} << 20;

class Folder {
 public:
  Folder() {
    const char* named = std::getenv("TMPDIR");
    const fs::path parent = named != nullptr               ? fs::path(named)
                            : fs::is_directory("/dev/shm") ? fs::path("/dev/shm")
                                                           : fs::temp_directory_path();
    std::string pattern = (parent / "halfnote-fuzz-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) fail("cannot make a folder in " + parent.string());
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

void fail(const std::string& words) {
  std::fprintf(stderr, "fuzz: %s\n", words.c_str());
  std::abort();
}

void expect_same(std::string_view before, std::string_view after) {
  if (before == after) return;
  const auto [a, b] = std::mismatch(before.begin(), before.end(), after.begin(), after.end());
  const auto line_at = [](std::string_view text, size_t at) {
    const size_t begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;  // npos + 1 is 0
    return std::string(text.substr(begin, text.find('\n', at) - begin));
  };
  fail("not the same when it is read again:\n" +
       line_at(before, static_cast<size_t>(a - before.begin())) + "\n" +
       line_at(after, static_cast<size_t>(b - after.begin())));
}

void judge(const Error& error, std::initializer_list<ErrorCode> codes) {
  const std::string_view message = error.what();
  if (std::find(codes.begin(), codes.end(), error.code()) == codes.end()) {
    fail("unexpected kind " + std::string(kind_name(error.code())) + ": " + std::string(message));
  }
  if (message.empty()) fail("an error without words");
  if (message.size() > kLongestMessage) fail("an error of more than 1 MiB");
}

const fs::path& folder() {
  static const Folder folder;
  return folder.path();
}

fs::path write_file(std::string_view name, std::string_view bytes) {
  const fs::path path = folder() / name;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) fail("cannot write " + path.string());
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = ::write(file, bytes.data() + done, bytes.size() - done);
    if (wrote <= 0) fail("cannot write " + path.string());
    done += static_cast<size_t>(wrote);
  }
  ::close(file);
  return path;
}

}  // namespace halfnote::fuzz
