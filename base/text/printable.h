// Names from files, safe to show: a model or data file says nothing to the terminal, and nothing it
// says looks like another line or another word.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace halfnote {

/// Length of the well-formed UTF-8 character at the beginning of a text that is not empty; 0 if
/// there is none.
size_t utf8_length(std::string_view text);

/// Is this character (of `utf8_length` bytes) one that hides or steers what a line shows: control
/// characters (C0, DEL, C1) and the marks that turn the direction of writing?
bool is_hidden(std::string_view character);

/// The text on one line: `\xNN` for each byte of a hidden character and for bytes that are no
/// UTF-8. Every name of a file that is printed goes through here.
std::string printable(std::string_view text);

/// The text with no word of more than kLongestWord bytes: of others the beginning and the end, and
/// how long they are. A file may hold names of any length, and a message is to be read.
inline constexpr size_t kLongestWord = 512;
std::string with_short_words(std::string_view text);

}  // namespace halfnote
