// Running the program: a folder of its own, arguments in, exit code and both outputs out.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace halfnote::cli_test {

struct Outcome {
  int code = -1;  // the exit code; minus the signal if one ended the program
  std::string out, err;
  uint64_t peak = 0;  // bytes resident at most
};

struct Launch {
  std::optional<uint64_t> file_size_limit;              // bytes that a file may have
  std::optional<uint64_t> memory_limit;                 // bytes of address space
  std::string output;                                   // file for standard output; empty: kept
  std::function<void(pid_t)> meanwhile = [](pid_t) {};  // called while the program runs
};

/// A folder with a small classifier and data for it:
///   tiny.onnxtxt    x float[N,6], 3 classes, BatchNormalization in training form
///   x.npy, labels.npy (22 samples), wrong.npy (labels with a 3 in sample 5)
class Workplace {
 public:
  Workplace();
  ~Workplace();
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }
  void write(std::string_view name, std::string_view bytes) const;
  std::string read(std::string_view name) const;
  bool exists(std::string_view name) const { return std::filesystem::exists(path_ / name); }
  /// Names of all that is in the folder, sorted.
  std::vector<std::string> list(std::string_view folder = ".") const;

  /// Runs the program in the folder.
  Outcome run(const std::vector<std::string>& arguments, const Launch& launch = {}) const;
  /// `halfnote compile tiny.onnxtxt -o NAME --loss cross_entropy …`; fails the test if that fails.
  void compile(const std::string& name, const std::vector<std::string>& more = {}) const;

 private:
  std::filesystem::path path_;
};

/// The path of halfnote, which lies beside the tests.
std::string program_under_test();

/// The bytes of an .npy file, version 1.
std::string npy(std::string_view type, std::string_view shape, std::string_view bytes);

/// The words of a command line, separated by single spaces.
std::vector<std::string> words(std::string_view line);

inline constexpr const char* kTrain = "--data x=x.npy,labels=labels.npy --batch 4 --threads 1";

}  // namespace halfnote::cli_test
