// Atomics, cached and streaming accesses, and shared memory of the emulation. One emulated thread
// runs at a time, so an atomic is a plain access; accesses must be aligned as on the device.
#pragma once

#include <cstdint>
#include <cstring>
#include <source_location>

#include "kernels/cuda/emulation/emulator.h"
#include "kernels/cuda/emulation/guarded.h"

namespace halfnote::emulation {

template <class T>
const T& aligned(const T* address, const std::source_location& place) {
  if (reinterpret_cast<uintptr_t>(address) % alignof(T) != 0) {
    broken_kernel("an access to an address that is not aligned", place);
  }
  return *address;
}

/// A static variable of shared memory, one for all blocks as these run one after the other; in a
/// block of its own, so that the address sanitizer sees who leaves it.
template <class T>
class SharedStorage {
 public:
  T& use(const std::source_location& place = std::source_location::current()) {
    if (used_in_ != builtins.grid) {
      used_in_ = builtins.grid;
      note_shared(memory_.get(), sizeof(T), place);
    }
    return *reinterpret_cast<T*>(memory_.get());
  }

 private:
  static constexpr size_t kAlignment = alignof(T) > 16 ? alignof(T) : 16;
  Guarded memory_ = allocate_guarded(sizeof(T), kAlignment);
  uint64_t used_in_ = 0;
};

}  // namespace halfnote::emulation

#define HN_ATOMIC(name, expression)        \
  template <class T>                       \
  T name(T* address, T operand) {          \
    const T old = *address;                \
    *address = static_cast<T>(expression); \
    return old;                            \
  }
HN_ATOMIC(atomicAdd, old + operand)
HN_ATOMIC(atomicSub, old - operand)
HN_ATOMIC(atomicExch, operand)
HN_ATOMIC(atomicMin, operand < old ? operand : old)
HN_ATOMIC(atomicMax, old < operand ? operand : old)
HN_ATOMIC(atomicAnd, old& operand)
HN_ATOMIC(atomicOr, old | operand)
HN_ATOMIC(atomicXor, old ^ operand)
#undef HN_ATOMIC

template <class T>
T atomicCAS(T* address, T compare, T value) {
  const T old = *address;
  if (old == compare) *address = value;
  return old;
}

#define HN_LOAD(name)                                                                             \
  template <class T>                                                                              \
  T name(const T* address, const std::source_location& place = std::source_location::current()) { \
    return halfnote::emulation::aligned(address, place);                                          \
  }
HN_LOAD(__ldg)
HN_LOAD(__ldcs)
HN_LOAD(__ldcg)
HN_LOAD(__ldca)
#undef HN_LOAD

#define HN_STORE(name)                                                             \
  template <class T>                                                               \
  void name(T* address, T value,                                                   \
            const std::source_location& place = std::source_location::current()) { \
    halfnote::emulation::aligned(address, place);                                  \
    *address = value;                                                              \
  }
HN_STORE(__stcs)
HN_STORE(__stcg)
HN_STORE(__stwb)
#undef HN_STORE

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
