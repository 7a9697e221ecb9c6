// What to do when another program shortens a file that is mapped: the system ends a program with
// SIGBUS, which would look like a bug of ours.
#pragma once

#include <cstddef>
#include <filesystem>

namespace halfnote {

/// Notes that [begin, begin + bytes) is a mapping of `path`, and that it is gone. From any thread.
void note_mapping(const std::byte* begin, size_t bytes, const std::filesystem::path& path);
void forget_mapping(const std::byte* begin);

enum class ErrorForm : uint8_t { kText, kJson };

/// From now on a read of a noted mapping behind the end of its file ends the program with exit code
/// 8 and `halfnote: error (io): PATH: the file became shorter while it was read` on standard error;
/// nothing is saved. For the program's main function: a library leaves signals alone. Any other
/// SIGBUS ends the program as ever.
void report_vanished_files(ErrorForm form);

}  // namespace halfnote
