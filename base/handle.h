// Typed index handles. A handle is a position in an array that its owner keeps; it is cheap to
// copy, never dangles silently across kinds, and has one invalid state that stands for "absent" (an
// optional input, no node).
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>

namespace halfnote {

template <class Tag>
struct Handle {
  static constexpr uint32_t kInvalid = std::numeric_limits<uint32_t>::max();

  uint32_t index = kInvalid;

  constexpr bool valid() const { return index != kInvalid; }
  constexpr explicit operator bool() const { return valid(); }
  friend constexpr auto operator<=>(Handle, Handle) = default;
};

using NodeId = Handle<struct NodeTag>;
using ValueId = Handle<struct ValueTag>;
using RegionId = Handle<struct RegionTag>;

}  // namespace halfnote

template <class Tag>
struct std::hash<halfnote::Handle<Tag>> {
  size_t operator()(halfnote::Handle<Tag> handle) const noexcept { return handle.index; }
};
