// Notations that several verbs share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/train/trainer.h"

namespace CLI {
class Validator;
}

namespace halfnote::cli {

/// `NAME=NUMBER` of a symbolic dim. Throws Error(kUsage).
std::pair<std::string, int64_t> parse_dim(std::string_view text);
/// Several of them; throws Error(kUsage) for a name that has two numbers.
std::map<std::string, int64_t> parse_dims(const std::vector<std::string>& texts);

/// `INPUT=AXIS` of a flag, by input; throws Error(kUsage).
std::map<std::string, int64_t> parse_axes(std::string_view flag,
                                          const std::vector<std::string>& texts);

/// `500` or `500steps`; `1e` or `2epochs`; `0`: only at the end. Throws Error(kUsage) naming the
/// flag.
Every parse_every(std::string_view flag, std::string_view text);

/// A file that a verb reads or writes, with its name in messages; an empty path stands for none.
struct NamedFile {
  std::string name;
  std::filesystem::path path;
};
/// One name for each place, links followed; also for what is not there yet.
std::filesystem::path place_of(const std::filesystem::path& path);

/// Throws Error(kUsage) if one of the files from `first_written` on is another of the list, under
/// whatever name: nothing that is read, and no other output, is written over. `hint`: what to do.
void refuse_same_file(std::span<const NamedFile> files, size_t first_written, const char* hint);

/// Throws Error(kIo) if what was printed so far cannot be written (a full disk); a reader who left
/// is none. Before outputs are written: a command that fails leaves none.
void check_standard_output();

/// For options that count something: whole numbers, where CLI11's own ranges are of doubles.
CLI::Validator whole_number(int64_t least, int64_t most);
CLI::Validator at_least_one();
CLI::Validator at_least_zero();

/// `1.5 KiB`, `12.0 MiB`.
std::string bytes_text(uint64_t bytes);
/// `1,234,567`.
std::string count_text(int64_t number);

}  // namespace halfnote::cli
