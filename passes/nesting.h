// How deep a text nests, told before a library reads it that would go as deep on the stack: what a
// file of a megabyte can nest overflows it.
#pragma once

#include <string>
#include <string_view>

namespace halfnote {

/// More than any JSON that halfnote reads or writes has.
inline constexpr int kMaxJsonDepth = 32;

/// Whether objects and arrays stand in each other more than `levels` deep. Of a text that is no
/// JSON, what stands before its first error is judged rightly.
bool json_nests_deeper(std::string_view text, int levels = kMaxJsonDepth);

/// The first key that stands twice in an object, with the keys it lies under (`fp16.enabled`): a
/// reader would take the last and drop the others unseen. Empty if there is none, or no JSON.
std::string repeated_json_key(std::string_view text);

/// What the JSON library says of a text that is none, without its own words for itself:
/// `line 1, column 2: unexpected end of input; expected string literal`.
std::string json_problem(std::string_view what);

/// Whether a key of a TOML text (`a.b.c`) has more than `parts` parts. Of a text that is no TOML,
/// what stands before its first error is judged rightly.
bool toml_key_longer(std::string_view text, int parts);

}  // namespace halfnote
