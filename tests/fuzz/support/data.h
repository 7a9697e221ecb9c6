// What the targets of the data readers share.
#pragma once

#include "runtime/train/data/format/readers.h"

namespace halfnote::fuzz {

/// Limits that a reader can reach within the memory of a fuzz target.
inline constexpr DataLimits kDataLimits = {.member_bytes = uint64_t{16} << 20,
                                           .ratio = 1000,
                                           .members = 64,
                                           .copied_bytes = uint64_t{64} << 20};

/// Reads every byte, so that a tensor over the end of its storage is found.
inline void touch(const Tensor& tensor) {
  [[maybe_unused]] volatile uint8_t last = 0;
  for (size_t i = 0; i < tensor.byte_size(); ++i) last = static_cast<uint8_t>(tensor.bytes()[i]);
}

}  // namespace halfnote::fuzz
