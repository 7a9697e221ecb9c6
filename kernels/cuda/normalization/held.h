// A line that the threads of a group keep in registers, so that each of its elements is read from
// memory once: a warp a line, or a block for long ones. Elements are loaded in packs of 16 bytes
// where length and addresses allow it, else one by one; thread t has the packs t, t + threads, ….
#pragma once

#include "kernels/cuda/normalization/lines.h"
#include "kernels/cuda/packs.h"

namespace halfnote::HN_CUDA {

inline constexpr unsigned kHeldBlock = 256;
/// Elements of a line that a thread keeps: as many registers for each.
template <class M>
inline constexpr int kHeld = sizeof(M) == 8 ? 16 : 32;

/// Up to this length a warp has a line, and up to the other a block.
template <class M>
inline constexpr int64_t kWarpLine = int64_t{kHeld<M>} * 32;
template <class M>
inline constexpr int64_t kBlockLine = int64_t{kHeld<M>} * kHeldBlock;

/// Calls `body(k, i)` for the packs that a thread keeps of a line: the number of one in its
/// registers, and its first element in the line.
template <int V, int kPacks, unsigned kLanes, class Body>
__device__ __forceinline__ void for_packs(int64_t length, const Body& body) {
  const int lane = static_cast<int>(threadIdx.x % kLanes), end = static_cast<int>(length);
  HN_UNROLL
  for (int k = 0; k < kPacks; ++k) {
    const int i = (k * static_cast<int>(kLanes) + lane) * V;
    if (i < end) body(k, i);
  }
}

/// What the threads of a line have, merged; all of them must come.
template <class Merge, unsigned kLanes, class M>
__device__ __forceinline__ M merge_line(M value) {
  if constexpr (kLanes == 32) {
    for (int distance = 16; distance > 0; distance /= 2)
      value = Merge::merge(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
  } else {
    return merge_block<Merge, kLanes>(value);
  }
}

template <unsigned kLanes, class M>
__device__ __forceinline__ M sum_of_line(M value) {
  return merge_line<AddNumbers, kLanes>(value);
}

/// How lines of a length are shared out, by host code.
struct HeldLines {
  bool of_warps = false;
  int64_t blocks = 0;

  /// `most_rounds`: lines that a group of threads takes at most, or 0 for one a group.
  template <class M>
  static HeldLines plan(const Lines& lines, int64_t most_rounds) {
    HeldLines held;
    held.of_warps = lines.length <= kWarpLine<M>;
    const int64_t groups = held.of_warps ? kHeldBlock / 32 : 1;
    held.blocks = (lines.count + groups - 1) / groups;
    if (most_rounds == 0) {
      held.blocks = std::min<int64_t>(held.blocks, int64_t{1} << 30);
      return held;
    }
    // What multiprocessors have room for at once.
    const int64_t at_once = kMultiprocessors * (held.of_warps ? 2 : 4);
    const int64_t least = (held.blocks + most_rounds - 1) / most_rounds;
    held.blocks = std::min(held.blocks, std::max(at_once, least));
    return held;
  }
};

/// Calls `body.template operator()<V, kLanes>()` as lines and addresses ask.
template <class T, class Body>
void for_held(const HeldLines& held, bool in_packs, const Body& body) {
  constexpr int kPack = 16 / sizeof(T);
  if (held.of_warps) {
    in_packs ? body.template operator()<kPack, 32>() : body.template operator()<1, 32>();
  } else {
    in_packs ? body.template operator()<kPack, kHeldBlock>()
             : body.template operator()<1, kHeldBlock>();
  }
}

/// Calls `body` for the types that scales have beside X of type T: its own, and f32.
template <class T, class Body>
Prepared for_scale_type(DType type, const Body& body) {
  if (type == dtype_of<T>()) return body.template operator()<T>();
  if constexpr (sizeof(T) == 2) {
    if (type == DType::kF32) return body.template operator()<float>();
  }
  return Prepared::no("a scale of another type");
}

}  // namespace halfnote::HN_CUDA
