// Elements that are loaded and stored at once: 16 bytes where lengths and addresses allow it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/numbers.h"

namespace halfnote::HN_CUDA {

/// V elements that are loaded and stored at once.
template <class T, int V>
struct alignas(V * sizeof(T) < 16 ? V * sizeof(T) : 16) Packed {
  T of[V];
};

/// What is copied at once, whatever it is.
using SixteenBytes = Packed<uint64_t, 2>;

template <int V, class T>
__device__ __forceinline__ Packed<T, V> load_packed(const T* from) {
  return *reinterpret_cast<const Packed<T, V>*>(from);
}

template <int V, class T>
__device__ __forceinline__ void store_packed(T* to, const Packed<T, V>& pack) {
  *reinterpret_cast<Packed<T, V>*>(to) = pack;
}

/// The same to global memory, where the machine code has stores of elements or of pairs otherwise:
/// between many branches the compiler does not join them.
template <int V, class T>
__device__ __forceinline__ void store_joined(T* to, const Packed<T, V>& pack) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(pack) == 16) {
    uint4 words;
    memcpy(&words, &pack, sizeof(words));
    return __stwb(reinterpret_cast<uint4*>(to), words);
  } else if constexpr (sizeof(pack) == 8) {
    uint2 words;
    memcpy(&words, &pack, sizeof(words));
    return __stwb(reinterpret_cast<uint2*>(to), words);
  }
#endif
  store_packed(to, pack);
}

template <class T, int V>
__device__ __forceinline__ Packed<T, V> pack_of(const Math<T> (&numbers)[V]) {
  Packed<T, V> pack;
  store_numbers(numbers, pack.of);
  return pack;
}

/// Lets the compiler compute again what it has made of a pack, in place of keeping that in more
/// registers than the pack takes.
template <class T, int V>
__device__ __forceinline__ void forget_computed([[maybe_unused]] Packed<T, V>& pack) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(pack) % 4 == 0) {
    auto* words = reinterpret_cast<uint32_t*>(&pack);
    HN_UNROLL
    for (size_t w = 0; w < sizeof(pack) / 4; ++w) asm volatile("" : "+r"(words[w]));
  } else {
    static_assert(sizeof(pack) == 2);
    asm volatile("" : "+h"(*reinterpret_cast<uint16_t*>(&pack)));
  }
#endif
}

/// Sets off a copy of 16 bytes to shared memory that takes no register. What a thread has set off
/// since it last said so is a group.
__device__ __forceinline__ void copy_ahead(void* shared, const void* global) {
#if defined(__CUDA_ARCH__)
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
#elif !defined(__CUDACC__)
  emulation::copy_ahead(shared, global);
#endif
}
__device__ __forceinline__ void end_copy_group() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#elif !defined(__CUDACC__)
  emulation::end_copy_group();
#endif
}
/// Waits until at most `kGroups` of the thread's groups are under way, its last ones.
template <int kGroups>
__device__ __forceinline__ void wait_for_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#elif !defined(__CUDACC__)
  emulation::wait_for_copies(kGroups);
#endif
}

/// Do all present addresses allow 16 bytes at once?
template <size_t N>
bool are_aligned(const std::array<const void*, N>& addresses) {
  for (const void* address : addresses) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) return false;
  }
  return true;
}

}  // namespace halfnote::HN_CUDA
