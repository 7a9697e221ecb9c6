// What every kernel includes first: nvcc's own names, or the emulation's, and the few words that
// differ between the two.
//
// The same sources are compiled twice, by nvcc for the device and by the host's compiler for the
// emulation, and both may be in one program: each has its namespace, halfnote::cuda and
// halfnote::cuda_emulated, which the sources call HN_CUDA.
//
//   HN_SHARED(float[32], partial);              a shared array of this block
//   HN_DYNAMIC_SHARED(float, row);              float* row, as long as the launch says
//   HN_UNROLL for (…) {…}                       all rounds, so that arrays stay in registers
//   HN_UNROLL_BY_4 for (…) {…}                  four rounds at once, whose loads overlap
//   HN_IN_TURN for (…) {…}                      round after round, for what is long
//
// A large argument is `const __grid_constant__`: it stays where the launch put it, and is not
// copied to every thread's stack if a reference to it is taken.
#pragma once

#if defined(__CUDACC_RTC__)  // generated kernels: NVRTC knows the names of the language by itself

#define HN_CUDA cuda

#elif defined(__CUDACC__)

#include <cuda_runtime.h>

#include <type_traits>

#define HN_CUDA cuda
#define HN_UNROLL _Pragma("unroll")
#define HN_UNROLL_BY_4 _Pragma("unroll 4")
#define HN_IN_TURN _Pragma("unroll 1")
#define HN_SHARED(type, name) __shared__ std::type_identity_t<type> name
#define HN_DYNAMIC_SHARED(type, name)                              \
  extern __shared__ __align__(16) unsigned char hn_shared_bytes[]; \
  type* name = reinterpret_cast<type*>(hn_shared_bytes)

#else

#include "kernels/cuda/emulation/cuda.h"

#define HN_CUDA cuda_emulated
#define HN_UNROLL
#define HN_UNROLL_BY_4
#define HN_IN_TURN
#define HN_SHARED(type, name)                                                                     \
  static thread_local ::halfnote::emulation::SharedStorage<std::type_identity_t<type>> hn_##name; \
  auto& name = hn_##name.use()
#define HN_DYNAMIC_SHARED(type, name) \
  type* name = reinterpret_cast<type*>(::halfnote::emulation::builtins.shared)

#endif
