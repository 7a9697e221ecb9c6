// What the tests of runtime/train share: temporary folders, raw files, caught errors, the Python
// judge.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/tensor.h"

namespace halfnote::test {

/// An empty folder that is removed with the test.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string operator/(std::string_view name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

void write_bytes(const std::filesystem::path& path, std::string_view bytes);
std::string read_bytes(const std::filesystem::path& path);
std::string gzip(std::string_view bytes);

/// The error that `call` throws; fails the test if it throws none.
Error caught(const std::function<void()>& call);
/// Expects Error `code` whose message contains every part.
void expect_error(ErrorCode code, const std::vector<std::string>& parts,
                  const std::function<void()>& call);

/// Feeds `read` with files that are damaged copies of `bytes`: every truncation, and `mutations`
/// with one to four random bytes changed. Each must be read or refused with one of the codes of bad
/// data; nothing else may happen.
void expect_robust(const std::string& path, const std::string& bytes, int mutations,
                   const std::function<void()>& read);

/// A small generator for test data; the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  /// In [0, limit).
  uint64_t below(uint64_t limit) { return next() % limit; }

 private:
  uint64_t state_;
};

/// A tensor of random bytes (0 and 1 for bool).
Tensor random_tensor(DType dtype, Shape shape, uint64_t seed);

/// Runs tests/judges/SCRIPT with Python and NumPy; its output. Nothing if the judges are not
/// installed.
std::optional<std::string> run_judge(const std::string& script, const std::string& argument);

}  // namespace halfnote::test
