// The protobuf wire format of a ModelProto, read without protobuf: limits are checked before
// anything is allocated, and the bytes of raw_data are taken out (import) or put in (export) around
// a small message that protobuf handles.
//
// On import every raw_data field of the small message holds a token of 16 bytes: place and size of
// the real bytes. On export small tensors stand there as they are, and a token has 17 bytes: a
// tensor of as many bytes is always a token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/ir/limits.h"

namespace halfnote::proto {

/// What a token says. On import `place` is an offset in the file; on export any number the writer
/// chose.
struct RawToken {
  uint64_t place = 0;
  uint64_t size = 0;
};
std::string encode(RawToken token);
RawToken decode_token(std::string_view field);

/// Tokens of export, told from tensors by their size.
inline constexpr size_t kSpliceToken = 17;
std::string encode_splice(RawToken token);

/// Checks a serialized ModelProto against the limits and returns it with every raw_data replaced by
/// its token. Throws Error(kModel) that names the limit or the offset of the malformed bytes.
std::string strip_raw_data(std::span<const std::byte> model, const ImportLimits& limits);

/// The pieces of a message, to be written one after the other. `owner` holds what is new; `pieces`
/// point into it and into the tensors.
struct Spliced {
  std::shared_ptr<const void> owner;
  std::vector<std::span<const std::byte>> pieces;
  uint64_t size = 0;
};

/// Replaces every token of export in a ModelProto by the bytes that `lookup` gives, which must be
/// `token.size` many. From 4 KiB on they begin at a multiple of 64 of the file.
Spliced splice_raw_data(std::string_view model,
                        const std::function<std::span<const std::byte>(RawToken)>& lookup);
/// The size that splicing would give.
uint64_t spliced_size(std::string_view model);

}  // namespace halfnote::proto
