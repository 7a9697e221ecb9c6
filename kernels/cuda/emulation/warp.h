// Barriers, shuffles, votes and reductions by their CUDA names.
#pragma once

#include <bit>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "kernels/cuda/emulation/emulator.h"

namespace halfnote::emulation {

template <class T>
uint64_t to_lane_bits(T value) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
T from_lane_bits(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

/// The value of lane `source`, as a shuffle reads it: a lane outside of the mask has none.
inline uint64_t shuffled(const LaneCall* calls, int lane, int source) {
  if ((calls[lane].mask >> source & 1) == 0) {
    broken_kernel("a shuffle reads a lane outside of its mask", std::source_location::current());
  }
  return calls[source].value;
}

template <class Source>
uint64_t shuffle(unsigned mask, const char* name, uint64_t value, int parameter, int width, Source,
                 const std::source_location& place) {
  LaneCall call{mask, name, value, parameter, width, nullptr};
  call.result = [](const LaneCall* calls, int lane) {
    const LaneCall& own = calls[lane];
    const int first = lane / own.width * own.width;
    const int source = Source::of(lane, first, own.width, own.parameter);
    return shuffled(calls, lane, source);
  };
  return wait_for_lanes(call, place);
}

// Which lane a shuffle reads; beyond the segment a lane reads itself.
struct FromIndex {
  static int of(int, int first, int width, int source) { return first + (source & (width - 1)); }
};
struct FromXor {
  static int of(int lane, int first, int width, int mask) {
    const int source = lane ^ mask;
    return source < first + width ? source : lane;
  }
};
struct FromBelow {
  static int of(int lane, int first, int, int delta) {
    return lane - delta >= first ? lane - delta : lane;
  }
};
struct FromAbove {
  static int of(int lane, int first, int width, int delta) {
    return lane + delta < first + width ? lane + delta : lane;
  }
};

/// Folds the values of all lanes of the mask, in the order of the lanes.
template <class T, class Fold>
T reduce_lanes(unsigned mask, const char* name, T value, Fold, const std::source_location& place) {
  LaneCall call{mask, name, to_lane_bits(value)};
  call.result = [](const LaneCall* calls, int lane) {
    const unsigned all = calls[lane].mask;
    int first = std::countr_zero(all);
    T total = from_lane_bits<T>(calls[first].value);
    for (int i = first + 1; i < kWarpSize; ++i) {
      if ((all >> i & 1) != 0) total = Fold::of(total, from_lane_bits<T>(calls[i].value));
    }
    return to_lane_bits(total);
  };
  return from_lane_bits<T>(wait_for_lanes(call, place));
}

struct FoldAdd {
  template <class T>
  static T of(T a, T b) {
    return a + b;
  }
};
struct FoldMin {
  template <class T>
  static T of(T a, T b) {
    return b < a ? b : a;
  }
};
struct FoldMax {
  template <class T>
  static T of(T a, T b) {
    return a < b ? b : a;
  }
};
struct FoldAnd {
  static unsigned of(unsigned a, unsigned b) { return a & b; }
};
struct FoldOr {
  static unsigned of(unsigned a, unsigned b) { return a | b; }
};
struct FoldXor {
  static unsigned of(unsigned a, unsigned b) { return a ^ b; }
};

}  // namespace halfnote::emulation

// The place of the call is an argument, so that an error can name it.
#define HN_PLACE const std::source_location& hn_place = std::source_location::current()

inline void __syncthreads(HN_PLACE) { halfnote::emulation::wait_at_barrier(false, hn_place); }
inline int __syncthreads_count(int predicate, HN_PLACE) {
  return halfnote::emulation::wait_at_barrier(predicate != 0, hn_place);
}
inline int __syncthreads_or(int predicate, HN_PLACE) {
  return halfnote::emulation::wait_at_barrier(predicate != 0, hn_place) != 0;
}
inline int __syncthreads_and(int predicate, HN_PLACE) {
  return halfnote::emulation::wait_at_barrier(predicate != 0, hn_place) ==
         halfnote::emulation::threads_in_block();
}
inline void __syncwarp(unsigned mask = 0xffffffffu, HN_PLACE) {
  halfnote::emulation::wait_for_lanes({mask, "syncwarp"}, hn_place);
}

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, HN_PLACE) {
  using namespace halfnote::emulation;
  return from_lane_bits<T>(
      shuffle(mask, "shfl", to_lane_bits(value), source, width, FromIndex{}, hn_place));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, HN_PLACE) {
  using namespace halfnote::emulation;
  return from_lane_bits<T>(
      shuffle(mask, "shfl_xor", to_lane_bits(value), lane_mask, width, FromXor{}, hn_place));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, HN_PLACE) {
  using namespace halfnote::emulation;
  return from_lane_bits<T>(shuffle(mask, "shfl_up", to_lane_bits(value), static_cast<int>(delta),
                                   width, FromBelow{}, hn_place));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, HN_PLACE) {
  using namespace halfnote::emulation;
  return from_lane_bits<T>(shuffle(mask, "shfl_down", to_lane_bits(value), static_cast<int>(delta),
                                   width, FromAbove{}, hn_place));
}

inline unsigned __ballot_sync(unsigned mask, int predicate, HN_PLACE) {
  using namespace halfnote::emulation;
  const unsigned bit = predicate != 0 ? 1u << lane_index() : 0u;
  return reduce_lanes(mask, "ballot", bit, FoldOr{}, hn_place);
}
inline int __any_sync(unsigned mask, int predicate, HN_PLACE) {
  using namespace halfnote::emulation;
  return reduce_lanes(mask, "any", predicate != 0 ? 1u : 0u, FoldOr{}, hn_place) != 0;
}
inline int __all_sync(unsigned mask, int predicate, HN_PLACE) {
  using namespace halfnote::emulation;
  return reduce_lanes(mask, "all", predicate != 0 ? 1u : 0u, FoldAnd{}, hn_place) != 0;
}

#define HN_REDUCE(name, type, fold)                                                  \
  inline type __reduce_##name##_sync(unsigned mask, type value, HN_PLACE) {          \
    return halfnote::emulation::reduce_lanes(mask, "reduce_" #name, value,           \
                                             halfnote::emulation::fold{}, hn_place); \
  }
HN_REDUCE(add, unsigned, FoldAdd)
HN_REDUCE(add, int, FoldAdd)
HN_REDUCE(min, unsigned, FoldMin)
HN_REDUCE(min, int, FoldMin)
HN_REDUCE(max, unsigned, FoldMax)
HN_REDUCE(max, int, FoldMax)
HN_REDUCE(and, unsigned, FoldAnd)
HN_REDUCE(or, unsigned, FoldOr)
HN_REDUCE(xor, unsigned, FoldXor)
#undef HN_REDUCE
#undef HN_PLACE
