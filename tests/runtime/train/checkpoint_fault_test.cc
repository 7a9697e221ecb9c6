// A save that fails, or is killed, at each of its file operations in turn: the checkpoint before it
// must stay loadable, nothing half-made may be found, and the next save must work as if nothing had
// happened.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "runtime/train/checkpoint.h"
#include "support.h"

namespace halfnote {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

/// What a killed process would throw: nothing in the save catches it but to clean up, and cleaning
/// fails as well.
struct Killed {};

/// The real disk, whose `fail_at`-th operation fails: once, or from then on.
class FaultyDisk : public Disk {
 public:
  enum class Kind { kFailOnce, kFailFromThenOn, kKill };

  FaultyDisk(Kind kind, int fail_at) : kind_(kind), fail_at_(fail_at) {}
  bool reached() const { return calls_ >= fail_at_; }
  /// What a power cut leaves of files that were written but not flushed: their name, none of their
  /// bytes.
  void lose_unflushed() const {
    for (const Path& path : unflushed_) {
      if (fs::exists(path)) fs::resize_file(path, 0);
    }
  }

  void make_folder(const Path& path) override { count(path), Disk::make_folder(path); }
  int create(const Path& path) override {
    count(path);
    unflushed_.insert(path);
    return Disk::create(path);
  }
  void write(int file, const Path& path, std::span<const std::byte> bytes) override {
    const bool fails = failing();
    if (fails)
      Disk::write(file, path,
                  bytes.first(bytes.size() / 2));  // a write is cut short before it fails
    count(path);
    Disk::write(file, path, bytes);
  }
  void sync(int file, const Path& path) override {
    count(path);
    Disk::sync(file, path);
    unflushed_.erase(path);
  }
  void close(int file, const Path& path) override {
    Disk::close(file, path);
    count(path);
  }
  void rename(const Path& from, const Path& to) override {
    count(to);
    Disk::rename(from, to);
    std::set<Path> moved;
    for (const Path& path : unflushed_) moved.insert(path == from ? to : path);
    unflushed_ = std::move(moved);
  }
  bool exchange(const Path& a, const Path& b) override {
    count(b);
    return exchanges && Disk::exchange(a, b);
  }
  void sync_folder(const Path& path) override { count(path), Disk::sync_folder(path); }
  void remove(const Path& path) override { count(path), Disk::remove(path); }

  bool exchanges = true;

 private:
  bool failing() const {
    return calls_ + 1 == fail_at_ || (kind_ != Kind::kFailOnce && calls_ + 1 > fail_at_);
  }
  void count(const Path& path) {
    const bool fails = failing();
    ++calls_;
    if (!fails) return;
    if (kind_ == Kind::kKill) throw Killed();
    throw Error(ErrorCode::kIo, "planted").at({path.string(), {}, {}});
  }

  Kind kind_;
  int fail_at_;
  int calls_ = 0;
  std::set<Path> unflushed_;
};

Checkpoint version(int64_t step, uint64_t seed) {
  return {step, {{"w", test::random_tensor(DType::kF32, {64}, seed)}}, "{}"};
}

/// A run folder with checkpoints of steps 1 and 2.
void prepare(const fs::path& run) {
  save_checkpoint(run, version(1, 1), {.keep_last = 2});
  save_checkpoint(run, version(2, 2), {.keep_last = 2});
}

/// The latest must be intact and either the one before the save or the new one.
void expect_old_or_new(const fs::path& run, const Checkpoint& old, const Checkpoint& fresh,
                       const std::string& what) {
  const auto found = find_latest(run);
  ASSERT_TRUE(found) << what;
  const Checkpoint loaded = load_checkpoint(found->folder);
  const bool is_old =
      loaded.step == old.step && identical(loaded.tensors[0].tensor, old.tensors[0].tensor);
  const bool is_new =
      loaded.step == fresh.step && identical(loaded.tensors[0].tensor, fresh.tensors[0].tensor);
  EXPECT_TRUE(is_old || is_new) << what;
}

/// Every checkpoint folder's name begins with one of these.
void expect_only(const fs::path& run, const std::vector<std::string>& prefixes,
                 const std::string& what) {
  for (const auto& entry : fs::directory_iterator(run / "checkpoints")) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(std::ranges::any_of(prefixes, [&](const auto& p) { return name.starts_with(p); }))
        << what << ": " << entry.path();
  }
}

struct FaultCase {
  const char* name;
  FaultyDisk::Kind kind;
  int64_t step;    // of the save that fails: a new one, or one that replaces the last
  bool exchanges;  // the file system can swap folders
  bool power_loss;
};

class SaveFault : public testing::TestWithParam<FaultCase> {};

TEST_P(SaveFault, LosesNothing) {
  const FaultCase& row = GetParam();
  bool done = false;
  int operations = 0;
  for (int fail_at = 1; !done; ++fail_at, ++operations) {
    ASSERT_LT(fail_at, 200);
    const TempFolder run;
    prepare(run.path());
    const Checkpoint fresh = version(row.step, 33);
    FaultyDisk disk(row.kind, fail_at);
    disk.exchanges = row.exchanges;
    const std::string what = fmt::format("{}, operation {}", row.name, fail_at);
    bool failed = false;
    try {
      save_checkpoint(run.path(), fresh, {.keep_last = 2, .disk = &disk});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo) << what;
      failed = true;
    } catch (const Killed&) {
      failed = true;
    }
    done = !disk.reached();
    EXPECT_FALSE(done && failed) << what;
    if (row.power_loss) disk.lose_unflushed();
    expect_old_or_new(run.path(), version(2, 2), fresh, what);

    // A run that is resumed at its end, and saves no more, cleans up too.
    EXPECT_EQ(tidy_checkpoints(run.path()), std::vector<std::string>{}) << what;
    expect_old_or_new(run.path(), version(2, 2), fresh, what);
    expect_only(run.path(), {"step-", ".old-"}, what);

    // Life goes on: the next save cleans up and is found.
    const Checkpoint next = version(9, 99);
    save_checkpoint(run.path(), next, {.keep_last = 2});
    expect_old_or_new(run.path(), next, next, what);
    expect_only(run.path(), {"step-"}, what);
  }
  EXPECT_GT(operations,
            15);  // a save has about twenty operations; fewer would mean that they bypass the disk
}

INSTANTIATE_TEST_SUITE_P(
    All, SaveFault,
    testing::Values(FaultCase{"new_once", FaultyDisk::Kind::kFailOnce, 3, true, false},
                    FaultCase{"new_always", FaultyDisk::Kind::kFailFromThenOn, 3, true, false},
                    FaultCase{"new_kill", FaultyDisk::Kind::kKill, 3, true, false},
                    FaultCase{"new_power", FaultyDisk::Kind::kKill, 3, true, true},
                    FaultCase{"same_once", FaultyDisk::Kind::kFailOnce, 2, true, false},
                    FaultCase{"same_kill", FaultyDisk::Kind::kKill, 2, true, false},
                    FaultCase{"same_power", FaultyDisk::Kind::kKill, 2, true, true},
                    FaultCase{"plain_once", FaultyDisk::Kind::kFailOnce, 2, false, false},
                    FaultCase{"plain_always", FaultyDisk::Kind::kFailFromThenOn, 2, false, false},
                    FaultCase{"plain_kill", FaultyDisk::Kind::kKill, 2, false, false},
                    FaultCase{"plain_power", FaultyDisk::Kind::kKill, 2, false, true}),
    [](const auto& row) { return row.param.name; });

TEST(Save, SaysWhyTheDiskRefused) {
  const TempFolder run;
  test::write_bytes(run / "checkpoints", "a file where the folder should be");
  test::expect_error(ErrorCode::kIo, {"checkpoints: cannot make the folder (Not a directory)"},
                     [&] { save_checkpoint(run.path(), version(1, 1)); });
  test::expect_error(ErrorCode::kIo, {"No such file or directory"},
                     [&] { save_checkpoint(run / "missing", version(1, 1)); });
  test::expect_error(ErrorCode::kIo,
                     {"/dev/full: cannot write the file (No space left on device)", "free space"},
                     [&] {
                       const auto byte = std::byte{1};
                       const std::span<const std::byte> part(&byte, 1);
                       const int file = ::open("/dev/full", O_WRONLY);
                       try {
                         real_disk().write(file, "/dev/full", part);
                       } catch (...) {
                         ::close(file);
                         throw;
                       }
                     });
}

TEST(Save, KeepsASavedCheckpointWhenAnOldOneCannotBeRemoved) {
  /// Refuses to touch what is being removed.
  class NoRemoval : public Disk {
   public:
    void rename(const Path& from, const Path& to) override {
      if (to.filename().string().starts_with(".trash-")) throw Error(ErrorCode::kIo, "planted");
      Disk::rename(from, to);
    }
  };
  const TempFolder run;
  prepare(run.path());
  NoRemoval disk;
  const SavedCheckpoint saved =
      save_checkpoint(run.path(), version(3, 3), {.keep_last = 1, .disk = &disk});
  EXPECT_EQ(saved.warnings.size(), 2u);
  EXPECT_EQ(find_latest(run.path())->step, 3);
}

TEST(Tidy, WarnsOfWhatCannotBeRemoved) {
  class NoRemoval : public Disk {
   public:
    void remove(const Path&) override { throw Error(ErrorCode::kIo, "planted"); }
  };
  const TempFolder run;
  prepare(run.path());
  fs::create_directory(run / "checkpoints/.trash-step-00000001");
  NoRemoval disk;
  const std::vector<std::string> warnings = tidy_checkpoints(run.path(), &disk);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], testing::HasSubstr("a stopped save left: "));
  EXPECT_EQ(find_latest(run.path())->step, 2);
}

}  // namespace
}  // namespace halfnote
