// Runs a grid of emulated threads, and lets them wait for each other.
//
// Blocks run one after the other in a random order that a seed decides (a permutation by the rounds
// of a cipher, which needs no table); so do the threads of a block between two points where they
// wait. A kernel whose result depends on that order lacks a barrier, and shows it under some seed.
// What hardware leaves undefined is an error here: a barrier that only a part of the block reaches,
// or reaches at different places; a shuffle whose lanes are not all there. Shared memory is filled
// with rubbish (NaN in every float type) before each block.
//
// A thread that never waits costs a call: fibers change only where a thread waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>

#include "kernels/cuda/emulation/types.h"

namespace halfnote::emulation {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kMaxThreadsPerBlock = 1024;
/// Of a block on sm_86, sm_89 and sm_120, which have least of all from sm_80 on; and how much of it
/// may be static, which the compiler refuses above that.
inline constexpr size_t kMaxSharedBytes = 99 * 1024, kMaxStaticSharedBytes = 48 * 1024;

struct GridShape {
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic
};

/// What a thread of the grid sees of itself.
struct Builtins {
  uint3 thread, block;
  dim3 block_dim, grid_dim;
  std::byte* shared = nullptr;  // dynamic shared memory, `shared_bytes` of it
  uint64_t grid = 0;            // counts the grids of this thread of the host
};
extern constinit thread_local Builtins builtins;

/// Calls `body(arguments)` once a thread. Throws Error(kInternal) for a shape or an amount of
/// shared memory that not all GPUs take, for a barrier or warp operation that not all of its
/// threads reach, and what the body throws.
void run_grid(const GridShape& shape, uint64_t seed, void (*body)(const void*),
              const void* arguments);

/// The seed of the next grids of this thread of the host; by default HALFNOTE_EMULATION_SEED of the
/// environment, or 1. Throws Error(kUsage) if that is no number.
uint64_t emulation_seed();
void set_emulation_seed(uint64_t seed);

/// What a barrier tells: how many threads came with a predicate that is true.
int wait_at_barrier(bool predicate, const std::source_location& place);
int threads_in_block();

/// One lane's part in an operation of the warp.
struct LaneCall {
  unsigned mask = 0;      // lanes that take part
  const char* name = "";  // all must do the same
  uint64_t value = 0;     // what this lane brings
  int parameter = 0;      // source lane, distance or mask of a shuffle
  int width = kWarpSize;  // of a segment
  /// The result of `lane`, from what all brought.
  uint64_t (*result)(const struct LaneCall* calls, int lane) = nullptr;
};

/// Waits until all lanes of the mask have come, and gives this lane's result.
uint64_t wait_for_lanes(const LaneCall& call, const std::source_location& place);
int lane_index();

/// A static variable of shared memory announces itself when a grid first comes to it, so that it is
/// spoiled before each of its blocks, and counted.
void note_shared(std::byte* variable, size_t bytes, const std::source_location& place);

/// Sets off a copy of 16 bytes to shared memory, which is rubbish until the thread has waited for
/// the copy; ends the thread's group of such copies; waits for all but the last of its ended groups
/// (emulation/copies.h). What a thread has not waited for never arrives.
void copy_ahead(void* shared, const void* global,
                const std::source_location& place = std::source_location::current());
void end_copy_group();
void wait_for_copies(uint64_t groups,
                     const std::source_location& place = std::source_location::current());

/// Throws the Error of a kernel that breaks a rule, naming block and thread.
[[noreturn]] void broken_kernel(const char* what, const std::source_location& place);

}  // namespace halfnote::emulation
