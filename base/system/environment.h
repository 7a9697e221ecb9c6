// Variables of the environment that choose between a few ways: a word that is none of them is an
// error, and never the same as no word.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace halfnote {

/// What `variable` says; empty if it is not set, or empty. Throws Error(kUsage) for what is none of
/// the words.
std::string_view word_of_environment(const char* variable,
                                     std::initializer_list<std::string_view> words);

/// The same for a number from 0 to 2^64 - 1.
std::optional<uint64_t> number_of_environment(const char* variable);

}  // namespace halfnote
