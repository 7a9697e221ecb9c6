// Reading, mapping and atomic writing, above all what is left behind when they fail.
#include "base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/system/mapped_files.h"
#include "base/system/vanished_file.h"
#include "base/tensor.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

/// Each test gets its own empty folder.
class Files : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "halfnote-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path make(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }
  fs::path make_pipe() const {
    EXPECT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
    return folder_ / "pipe";
  }
  /// The names in the folder, hidden ones included.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      result.push_back(entry.path().filename().string());
    }
    std::sort(result.begin(), result.end());
    return result;
  }

  fs::path folder_;
};

/// Runs `body`, which must throw Error(kIo) naming `path`, and gives its message.
template <class Body>
std::string io_error(const fs::path& path, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_EQ(error.place().file, path.string());
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_F(Files, ReadsUpToTheLimit) {
  const std::string content("ab\0c\n", 5);
  const fs::path path = make("f", content);
  EXPECT_EQ(read_text(path, 5), content);
  EXPECT_EQ(as_text(read_file(path, 100)), content);
  EXPECT_EQ(read_text(make("empty", ""), 0), "");
  EXPECT_THAT(io_error(path, [&] { read_text(path, 4); }),
              HasSubstr("too large: expected at most 4 bytes"));
}

TEST_F(Files, ReadsFilesThatAnnounceNoSize) {
  const std::string path = "/proc/self/status";
  EXPECT_THAT(read_text(path, 1 << 20), HasSubstr("Pid:"));
  EXPECT_THAT(io_error(path, [&] { read_text(path, 10); }), HasSubstr("too large"));
}

TEST_F(Files, ReadsMoreThanOneChunk) {
  std::string content(3 * 1024 * 1024 + 17, 'x');
  content[2000000] = 'y';
  EXPECT_EQ(read_text(make("big", content), size_t{1} << 30), content);
}

TEST_F(Files, RefusesToReadWhatIsNoRegularFile) {
  const fs::path pipe = make_pipe(), missing = folder_ / "missing";
  EXPECT_THAT(io_error(missing, [&] { read_text(missing, 9); }),
              HasSubstr("cannot open the file: No such file or directory"));
  EXPECT_THAT(io_error(folder_, [&] { read_text(folder_, 9); }), HasSubstr("got a folder"));
  EXPECT_THAT(io_error(pipe, [&] { read_text(pipe, 9); }), HasSubstr("got a pipe"));
  EXPECT_THAT(io_error(pipe, [&] { MappedFile{pipe}; }), HasSubstr("got a pipe"));
  EXPECT_THAT(io_error("/dev/zero", [] { MappedFile{"/dev/zero"}; }), HasSubstr("got a device"));
  EXPECT_THAT(io_error(missing, [&] { MappedFile{missing}; }), HasSubstr("No such file"));
}

TEST_F(Files, MappedBytesOutliveTheObjectAndTheName) {
  std::shared_ptr<const std::byte> bytes;
  {
    const MappedFile file(make("f", "content"));
    EXPECT_EQ(as_text(file.bytes()), "content");
    bytes = file.share();
  }
  fs::remove(folder_ / "f");
  EXPECT_EQ(as_text({bytes.get(), 7}), "content");
}

TEST_F(Files, TensorsShareAMappedFile) {
  const float values[] = {0.5f, 1.5f, 2.5f};
  std::string content(sizeof values, '\0');
  std::memcpy(content.data(), values, sizeof values);
  const MappedFile file(make("f", content));
  const Tensor tensor(DType::kF32, {2}, {file.share(), file.bytes().data() + 4}, 8);
  EXPECT_EQ(reinterpret_cast<const std::byte*>(tensor.data<float>().data()),
            file.bytes().data() + 4);
  EXPECT_EQ(tensor.data<float>()[1], 2.5f);
}

TEST_F(Files, MapsAnEmptyFile) {
  const MappedFile file(make("empty", ""));
  EXPECT_TRUE(file.bytes().empty());
}

size_t resident_file_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    size_t kilobytes = 0;
    if (word == "RssFile:" && status >> kilobytes) return kilobytes;
  }
  return 0;
}

TEST_F(Files, ReleasedBytesLeaveTheProcessAndComeBack) {
  constexpr size_t kBytes = size_t{4} << 20, kKilobytes = kBytes >> 10, kOther = 1024;
  const MappedFile file(make("f", std::string(kBytes, 'x')));
  const auto sum = [&] {
    return std::count(file.bytes().begin(), file.bytes().end(), std::byte{'x'});
  };
  const size_t before = resident_file_kilobytes();
  EXPECT_EQ(sum(), static_cast<std::ptrdiff_t>(kBytes));
  const size_t read = resident_file_kilobytes();
  EXPECT_GE(read + kOther, before + kKilobytes);
  release_mapped(file.bytes().subspan(100));
  EXPECT_LE(resident_file_kilobytes() + kKilobytes, read + kOther);
  EXPECT_EQ(sum(), static_cast<std::ptrdiff_t>(kBytes));
}

TEST_F(Files, WhatIsNoMapOfAFileIsNotReleased) {
  const std::vector<std::byte> own(size_t{1} << 20, std::byte{1});
  release_mapped(own);
  release_mapped({});
  EXPECT_EQ(std::count(own.begin(), own.end(), std::byte{1}), std::ptrdiff_t{1} << 20);
}

TEST_F(Files, ReadsInsteadOfMappingAFileOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const fs::path path = make("f", std::string(10000, 'x'));
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  const MappedFile file(path);
  ASSERT_EQ(truncate(path.c_str(), 0), 0);  // SIGBUS for whoever had mapped it
  EXPECT_EQ(as_text(file.bytes()), std::string(10000, 'x'));
}

TEST_F(Files, AMappedFileThatIsCutEndsTheProgramWithItsName) {
  const fs::path path = make("cut.npy", std::string(100000, 'x'));
  const auto read_after_cut = [&](ErrorForm form) {
    report_vanished_files(form);
    const MappedFile file(path);
    if (truncate(path.c_str(), 0) != 0) std::exit(1);
    [[maybe_unused]] volatile std::byte touched = file.bytes()[50000];
  };
  EXPECT_EXIT(read_after_cut(ErrorForm::kText), testing::ExitedWithCode(8),
              "halfnote: error \\(io\\): .*cut.npy: the file became shorter while it was read");
  make("cut.npy", std::string(100000, 'x'));
  EXPECT_EXIT(read_after_cut(ErrorForm::kJson), testing::ExitedWithCode(8),
              "\\{\"code\":8,.*cut.npy\",");
}

TEST_F(Files, AFaultOutsideOfMappedFilesIsLeftToTheSystem) {
  EXPECT_EXIT(
      {
        report_vanished_files(ErrorForm::kText);
        std::raise(SIGBUS);
        std::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(Files, WritesAllPartsInOrder) {
  const std::string a = "one ", b, c = "three";
  const std::span<const std::byte> parts[] = {
      std::as_bytes(std::span(a)), std::as_bytes(std::span(b)), std::as_bytes(std::span(c))};
  const fs::path path = folder_ / "f";
  write_file_atomic(path, parts);
  EXPECT_EQ(read_text(path, 100), "one three");
  write_file_atomic(path, "");
  EXPECT_EQ(read_text(path, 100), "");
  EXPECT_THAT(names(), ElementsAre("f"));
}

TEST_F(Files, AWriterRemovesWhatKilledOnesLeftInItsFolder) {
  const pid_t gone = ::fork();
  if (gone == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(gone, nullptr, 0), gone);
  const std::string left = ".hn-" + std::to_string(gone) + "-1.tmp";
  const std::string living = ".hn-" + std::to_string(::getppid()) + "-1.tmp";
  for (const std::string& name : {left, living, std::string(".hn-notes.tmp")}) make(name, "half");
  write_file_atomic(folder_ / "f", "whole");
  EXPECT_THAT(names(), UnorderedElementsAre(".hn-notes.tmp", living, "f"));
}

TEST_F(Files, WritesIntoTheCurrentFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  write_file_atomic("bare", "x");
  fs::current_path(before);
  EXPECT_THAT(names(), ElementsAre("bare"));
}

TEST_F(Files, NewFilesFollowTheUmaskOldOnesKeepTheirMode) {
  const mode_t before = umask(027);
  write_file_atomic(folder_ / "new", "x");
  umask(before);
  EXPECT_EQ(mode_of(folder_ / "new"), 0640u);
  const fs::path old = make("old", "x");
  for (const mode_t mode : {0600u, 0664u, 0755u}) {
    ASSERT_EQ(chmod(old.c_str(), mode), 0);
    write_file_atomic(old, "y");
    EXPECT_EQ(mode_of(old), mode);
  }
}

TEST_F(Files, TakesTheLongestName) {
  const fs::path longest = folder_ / std::string(255, 'n'),
                 longer = folder_ / std::string(256, 'n');
  write_file_atomic(longest, "x");
  EXPECT_EQ(read_text(longest, 9), "x");
  EXPECT_THAT(io_error(longer, [&] { write_file_atomic(longer, "x"); }), HasSubstr("too long"));
  EXPECT_EQ(names().size(), 1u);
}

TEST_F(Files, FollowsALinkAndKeepsIt) {
  const fs::path target = make("target", "old"), link = folder_ / "link";
  fs::create_symlink("target", link);
  write_file_atomic(link, "new");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_text(target, 9), "new");

  const fs::path dangling = folder_ / "dangling";
  fs::create_symlink("nowhere", dangling);
  EXPECT_THAT(io_error(dangling, [&] { write_file_atomic(dangling, "x"); }),
              HasSubstr("cannot follow the link"));
  EXPECT_THAT(names(), ElementsAre("dangling", "link", "target"));
}

TEST_F(Files, FailureInAMissingFolderLeavesNothing) {
  const fs::path path = folder_ / "missing" / "f";
  EXPECT_THAT(io_error(path, [&] { write_file_atomic(path, "x"); }),
              HasSubstr("cannot open the folder of the file: No such file or directory"));
  EXPECT_THAT(names(), ElementsAre());
}

TEST_F(Files, RefusesToReplaceWhatIsNoRegularFile) {
  const fs::path sub = folder_ / "sub", pipe = make_pipe(), slash = folder_ / "sub" / "";
  fs::create_directory(sub);
  EXPECT_THAT(io_error(sub, [&] { write_file_atomic(sub, "x"); }), HasSubstr("got a folder"));
  EXPECT_THAT(io_error(pipe, [&] { write_file_atomic(pipe, "x"); }), HasSubstr("got a pipe"));
  EXPECT_THAT(io_error(slash, [&] { write_file_atomic(slash, "x"); }),
              HasSubstr("not the name of a file"));
  EXPECT_THAT(names(), ElementsAre("pipe", "sub"));
}

/// While it lives, no file of this process may grow past `bytes`: a disk that is full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST_F(Files, ASetAppearsTogetherOrNotAtAll) {
  const fs::path old = make("old", "before"), sub = folder_ / "sub";
  {
    FileSet files;
    files.add(folder_ / "a", "1");
    files.add(old, "2");
    fs::create_directory(sub);
    EXPECT_THAT(io_error(sub, [&] { files.add(sub, "3"); }), HasSubstr("got a folder"));
    EXPECT_FALSE(fs::exists(folder_ / "a"));
  }
  EXPECT_EQ(read_text(old, 9), "before");
  EXPECT_THAT(names(), ElementsAre("old", "sub"));
  FileSet files;
  files.add(folder_ / "a", "1");
  files.add(old, "2");
  files.commit();
  EXPECT_EQ(read_text(folder_ / "a", 9), "1");
  EXPECT_EQ(read_text(old, 9), "2");
  EXPECT_THAT(names(), ElementsAre("a", "old", "sub"));
}

TEST_F(Files, ASetTakesBackWhatIsNewIfARenameFails) {
  const fs::path late = folder_ / "late";
  {
    FileSet files;
    files.add(folder_ / "a", "1");
    files.add(late, "2");
    fs::create_directory(late);  // after the look at it
    EXPECT_THAT(io_error(late, [&] { files.commit(); }), HasSubstr("cannot rename"));
  }
  EXPECT_THAT(names(), ElementsAre("late"));
}

TEST_F(Files, AFullDiskLeavesTheOldFileAndNothingElse) {
  const fs::path path = make("f", "old");
  const std::string text(100000, 'x');
  std::string message;
  {
    const FileSizeLimit limit(4096);
    message = io_error(path, [&] { write_file_atomic(path, text); });
  }
  EXPECT_THAT(message, HasSubstr("cannot write the file: File too large"));
  EXPECT_EQ(read_text(path, 9), "old");
  EXPECT_THAT(names(), ElementsAre("f"));
}

TEST_F(Files, ManyWritersLeaveOneWholeVersion) {
  const fs::path path = folder_ / "f";
  std::vector<std::thread> writers;
  for (char c = 'a'; c < 'e'; ++c) {
    writers.emplace_back([&path, c] {
      for (int i = 0; i < 10; ++i) write_file_atomic(path, std::string(50000, c));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string text = read_text(path, 1 << 20);
  EXPECT_EQ(text, std::string(50000, text[0]));
  EXPECT_THAT(names(), ElementsAre("f"));
}

/// Bytes that the file takes on the disk.
uint64_t room_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0);
  return static_cast<uint64_t>(status.st_blocks) * 512;
}

TEST_F(Files, HolesOfAMappedFileStayHoles) {
  constexpr uint64_t kSize = uint64_t{64} << 20, kOffset = 4096 + 64;
  const fs::path source = make("source", "begin");
  {
    std::fstream file(source, std::ios::in | std::ios::out | std::ios::binary);
    for (const uint64_t place : {kOffset, kSize / 2 + 7}) {
      file.seekp(static_cast<std::streamoff>(place));
      file << "middle " << place;
    }
  }
  fs::resize_file(source, kSize);
  const MappedFile mapped(source);
  const std::string head = "head";
  const std::vector<std::span<const std::byte>> parts = {
      std::as_bytes(std::span(head)), mapped.bytes().subspan(kOffset, kSize - kOffset - 5)};
  write_file_atomic(folder_ / "copy", parts);
  const auto copy = read_file(folder_ / "copy", size_t{1} << 30);
  ASSERT_EQ(copy.size(), head.size() + kSize - kOffset - 5);
  EXPECT_EQ(std::memcmp(copy.data(), head.data(), head.size()), 0);
  EXPECT_EQ(std::memcmp(copy.data() + head.size(), parts[1].data(), parts[1].size()), 0);
  const bool knows_holes = room_of(source) < kSize / 2;  // the file system
  EXPECT_TRUE(!knows_holes || room_of(folder_ / "copy") < kSize / 2);
}

}  // namespace
}  // namespace halfnote
