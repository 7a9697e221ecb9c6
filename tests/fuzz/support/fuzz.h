// What the fuzz targets share: what an input may lead to, and inputs as files.
//
// A target hands the input to a reader inside accepts(). Only halfnote::Error may come out, with a
// code that the target expects; everything else (another exception, a sanitizer's finding, more
// than 2 seconds or than the memory that scripts/fuzz.sh allows) ends the program, and libFuzzer
// keeps the input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace halfnote::fuzz {

/// Prints the words and ends the program, so that libFuzzer keeps the input.
[[noreturn]] void fail(const std::string& words);

/// Fails, showing the first line that differs, unless the two texts of a model are equal.
void expect_same(std::string_view before, std::string_view after);

/// Fails unless the code of the error is one of `codes` and its message can be shown.
void judge(const Error& error, std::initializer_list<ErrorCode> codes);

/// Runs `read`; true if it threw nothing.
template <class Read>
bool accepts(std::initializer_list<ErrorCode> codes, Read&& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    judge(error, codes);
    return false;
  }
}

inline std::string_view as_text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}
inline std::span<const std::byte> as_bytes(const uint8_t* data, size_t size) {
  return std::as_bytes(std::span(data, size));
}

/// A folder of this process in memory, removed at its end.
const std::filesystem::path& folder();
/// Writes the bytes as a file of that folder, in place of the one before; its path.
std::filesystem::path write_file(std::string_view name, std::string_view bytes);

}  // namespace halfnote::fuzz
