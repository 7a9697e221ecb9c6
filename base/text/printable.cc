#include "base/text/printable.h"

#include <algorithm>

namespace halfnote {

size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xed && byte(1) >= 0xa0;
  const bool too_large = lead == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

bool is_hidden(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (character.size() == 2) return byte(0) == 0xc2 && byte(1) < 0xa0;  // C1
  const bool general = character.size() == 3 && byte(0) == 0xe2;
  if (!general) return false;
  const bool turns = byte(1) == 0x80 &&
                     (byte(2) == 0x8e || byte(2) == 0x8f || (byte(2) >= 0xa8 && byte(2) <= 0xae));
  const bool isolates = byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9;
  return turns || isolates;
}

namespace {

/// What ASCII shows, in one comparison.
bool is_plain(char c) { return static_cast<unsigned char>(c - ' ') < '~' - ' ' + 1; }

}  // namespace

std::string printable(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const auto plain = std::ranges::find_if_not(text, is_plain);  // mostly all of it
    result.append(text.begin(), plain);
    text.remove_prefix(static_cast<size_t>(plain - text.begin()));
    if (text.empty()) break;
    const size_t length = utf8_length(text);
    const std::string_view character = text.substr(0, length == 0 ? 1 : length);
    if (length == 0 || is_hidden(character)) {
      for (const char c : character) {
        const auto byte = static_cast<unsigned char>(c);
        result += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
      }
    } else {
      result += character;
    }
    text.remove_prefix(character.size());
  }
  return result;
}

std::string with_short_words(std::string_view text) {
  constexpr size_t kEnds = kLongestWord / 4;
  const auto is_inside = [&](size_t i) {  // of a character
    return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80;
  };
  std::string result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    if (end - begin > kLongestWord) {
      size_t head = begin + kEnds, tail = end - kEnds;
      while (is_inside(head)) ++head;
      while (is_inside(tail)) ++tail;
      result += text.substr(begin, head - begin);
      result += "…(" + std::to_string(end - begin) + " bytes)…";
      result += text.substr(tail, end - tail);
    } else {
      result += text.substr(begin, end - begin);
    }
    if (end < text.size()) result += text[end];
    begin = end + 1;
  }
  return result;
}

}  // namespace halfnote
