#include "base/system/environment.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace halfnote {
namespace {

std::string_view text_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? "" : text;
}

/// As in `baseline, avx2 or avx512`.
std::string listed(std::initializer_list<std::string_view> words) {
  std::string text;
  size_t left = words.size();
  for (const std::string_view word : words) {
    text += word;
    --left;
    if (left > 0) text += left == 1 ? " or " : ", ";
  }
  return text;
}

}  // namespace

std::string_view word_of_environment(const char* variable,
                                     std::initializer_list<std::string_view> words) {
  const std::string_view text = text_of(variable);
  if (text.empty() || std::ranges::find(words, text) != words.end()) return text;
  throw Error(ErrorCode::kUsage, std::string(variable) + " in the environment is no known word")
      .expected(listed(words), std::string(text));
}

std::optional<uint64_t> number_of_environment(const char* variable) {
  const std::string_view text = text_of(variable);
  if (text.empty()) return std::nullopt;
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && stopped == end) return number;
  throw Error(ErrorCode::kUsage, std::string(variable) + " in the environment is no number")
      .expected("a number from 0 to 2^64 - 1", std::string(text));
}

}  // namespace halfnote
