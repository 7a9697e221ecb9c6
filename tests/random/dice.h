// Random bits that are the same on every machine.
#pragma once

#include <cstdint>

namespace halfnote::random {

/// splitmix64: the next state and the bits at once.
inline uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace halfnote::random
