// The emulator itself: what it computes, and what it catches.
#include "kernels/cuda/emulation/emulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/packs.h"
#include "tests/cuda/emulator/fixture.h"

namespace halfnote::cuda_emulated {
namespace {

constexpr unsigned kAll = 0xffffffffu;

__global__ void write_index(int* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += static_cast<int>(thread) + 1;
}

TEST_F(EmulatorTest, RunsEachThreadOfEachBlockOnce) {
  std::vector<int> out(3 * 2 * 2 * 5 * 3 * 2, 0);
  run(write_index, {3, 2, 2}, {5, 3, 2}, 0, out.data());
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i], static_cast<int>(i % 30) + 1);
}

__global__ void note_block(int* order, int* next) {
  order[(*next)++] =
      static_cast<int>((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x);
}

/// Every block once, whatever their number; and of few blocks nearly every order under some seed.
TEST_F(EmulatorTest, BlocksComeInAnyOrder) {
  for (const unsigned blocks : {1u, 2u, 3u, 5u, 64u, 129u, 1000u}) {
    std::vector<int> order(blocks), sorted(blocks);
    int next = 0;
    run(note_block, {blocks}, 1, 0, order.data(), &next);
    ASSERT_EQ(next, static_cast<int>(blocks));
    std::sort(order.begin(), order.end());
    std::iota(sorted.begin(), sorted.end(), 0);
    EXPECT_EQ(order, sorted);
  }
  std::set<std::vector<int>> seen;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    emulation::set_emulation_seed(seed);
    std::vector<int> order(4);
    int next = 0;
    run(note_block, {2, 1, 2}, 1, 0, order.data(), &next);
    seen.insert(order);
  }
  EXPECT_EQ(seen.size(), 24u);
}

__global__ void note_order(int* order, int* next) {
  order[(*next)++] = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

TEST_F(EmulatorTest, SeedDecidesTheOrder) {
  std::set<std::vector<int>> seen;
  for (const uint64_t seed : {1, 2, 3, 1}) {
    emulation::set_emulation_seed(seed);
    std::vector<int> order(64);
    int next = 0;
    run(note_order, 4, 16, 0, order.data(), &next);
    ASSERT_EQ(next, 64);
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
    seen.insert(order);
  }
  EXPECT_EQ(seen.size(), 3u);
}

/// Reverses a block through shared memory; without the barrier a thread reads what is not there.
template <bool kWithBarrier>
__global__ void reverse(const float* in, float* out) {
  HN_DYNAMIC_SHARED(float, tile);
  const unsigned i = threadIdx.x, n = blockDim.x;
  tile[i] = in[blockIdx.x * n + i];
  if constexpr (kWithBarrier) __syncthreads();
  out[blockIdx.x * n + i] = tile[n - 1 - i];
}

TEST_F(EmulatorTest, MissingBarrierShows) {
  std::vector<float> in(512), wanted(512);
  std::iota(in.begin(), in.end(), 0.0f);
  for (size_t i = 0; i < 512; ++i) wanted[i] = in[i / 128 * 128 + 127 - i % 128];
  for (const uint64_t seed : {1, 2, 3}) {
    emulation::set_emulation_seed(seed);
    std::vector<float> out(512, -1.0f);
    run(reverse<true>, 4, 128, 128 * sizeof(float), in.data(), out.data());
    EXPECT_EQ(out, wanted);
    run(reverse<false>, 4, 128, 128 * sizeof(float), in.data(), out.data());
    EXPECT_NE(out, wanted);
    const auto rubbish = [](float x) { return std::isnan(x); };
    EXPECT_TRUE(std::any_of(out.begin(), out.end(), rubbish)) << "shared memory is not spoiled";
  }
}

__global__ void last_writer(int* out) { *out = static_cast<int>(threadIdx.x); }

TEST_F(EmulatorTest, RaceShowsUnderSeeds) {
  std::set<int> results;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    emulation::set_emulation_seed(seed);
    int out = -1;
    run(last_writer, 1, 256, 0, &out);
    results.insert(out);
  }
  EXPECT_GT(results.size(), 3u);
}

__global__ void half_of_the_block() {
  if (threadIdx.x < 16) __syncthreads();
}
__global__ void two_barriers() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void lanes_missing(int* out) {
  if (threadIdx.x != 7) out[threadIdx.x] = __shfl_xor_sync(kAll, 1, 1);
}
__global__ void other_masks(int* out) {
  const unsigned mask = threadIdx.x < 16 ? 0xffffu : kAll;
  out[threadIdx.x] = __shfl_xor_sync(mask, 1, 1);
}
__global__ void own_lane_missing() { __syncwarp(0x1u); }
__global__ void reads_outside(int* out) {
  if (threadIdx.x < 16) out[threadIdx.x] = __shfl_sync(0xffffu, 1, 20);
}
__global__ void not_aligned(const char* bytes, float* out) {
  *out = __ldg(reinterpret_cast<const float*>(bytes + 1));
}

TEST_F(EmulatorTest, ReportsWhatHardwareLeavesUndefined) {
  std::vector<int> out(64);
  EXPECT_NE(error_of(half_of_the_block, 2, 32).find("a barrier that only 16 of 32 threads reach"),
            std::string::npos);
  EXPECT_NE(error_of(two_barriers, 1, 32).find("wait at different barriers"), std::string::npos);
  EXPECT_NE(error_of(lanes_missing, 1, 32, out.data()).find("not all lanes of its mask reach"),
            std::string::npos);
  EXPECT_NE(error_of(other_masks, 1, 32, out.data()).find("different operations or masks"),
            std::string::npos);
  EXPECT_NE(error_of(own_lane_missing, 1, 32).find("mask lacks the calling lane"),
            std::string::npos);
  EXPECT_NE(error_of(lanes_missing, 1, 20, out.data()).find("lanes that the block does not have"),
            std::string::npos);
  EXPECT_NE(error_of(reads_outside, 1, 32, out.data()).find("a lane outside of its mask"),
            std::string::npos);
  alignas(8) const char bytes[8] = {};
  float value = 0;
  EXPECT_NE(error_of(not_aligned, 1, 1, &bytes[0], &value).find("not aligned"), std::string::npos);
  EXPECT_NE(error_of(own_lane_missing, 1, 1025).find("no GPU takes"), std::string::npos);
  EXPECT_NE(error_of(half_of_the_block, 2, 32).find("emulator_test.cc:"), std::string::npos);
  // It goes on after all that.
  EXPECT_EQ(error_of(write_index, 1, 64, out.data()), "");
}

__global__ void barrier_kin(int* out) {
  const int odd = threadIdx.x % 2;
  const int count = __syncthreads_count(odd);
  const int any = __syncthreads_or(threadIdx.x == 70);
  const int none = __syncthreads_or(0);
  const int all = __syncthreads_and(1);
  const int not_all = __syncthreads_and(threadIdx.x != 3);
  out[threadIdx.x] = count * 10000 + any * 1000 + none * 100 + all * 10 + not_all;
}

TEST_F(EmulatorTest, BarriersCount) {
  std::vector<int> out(96);
  run(barrier_kin, 1, 96, 0, out.data());
  EXPECT_EQ(out, std::vector<int>(96, 48 * 10000 + 1000 + 10));
}

__global__ void warp_kin(int* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  int* own = out + threadIdx.x * 12;
  own[0] = __shfl_sync(kAll, lane * 2, 5);
  own[1] = __shfl_xor_sync(kAll, lane, 16);
  own[2] = __shfl_up_sync(kAll, lane, 3);
  own[3] = __shfl_down_sync(kAll, lane, 3, 8);
  own[4] = static_cast<int>(__ballot_sync(kAll, lane == 4 || lane == 0));
  own[5] = __any_sync(kAll, lane == 31);
  own[6] = __all_sync(kAll, lane != 31);
  own[7] = __reduce_add_sync(kAll, lane);
  own[8] = __reduce_max_sync(kAll, -lane);
  own[9] = static_cast<int>(__shfl_sync(kAll, lane + 0.5, 9) * 2);
  __syncwarp();
  if (lane < 16) own[10] = __reduce_min_sync(0xffffu, lane + 3);
  own[11] = 1;
}

TEST_F(EmulatorTest, WarpsExchange) {
  for (const uint64_t seed : {1, 2, 3}) {
    emulation::set_emulation_seed(seed);
    std::vector<int> out(64 * 12, 0);
    run(warp_kin, 1, 64, 0, out.data());
    for (int t = 0; t < 64; ++t) {
      const int lane = t % 32;
      const std::vector<int> wanted = {10,
                                       lane ^ 16,
                                       lane < 3 ? lane : lane - 3,
                                       lane % 8 < 5 ? lane + 3 : lane,
                                       0x11,
                                       1,
                                       0,
                                       496,
                                       0,
                                       19,
                                       lane < 16 ? 3 : 0,
                                       1};
      EXPECT_EQ(std::vector<int>(out.begin() + t * 12, out.begin() + t * 12 + 12), wanted) << t;
    }
  }
}

__global__ void static_shared(float* out) {
  HN_SHARED(float[64], partial);
  partial[threadIdx.x] = static_cast<float>(threadIdx.x);
  __syncthreads();
  for (unsigned half = 32; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}

TEST_F(EmulatorTest, SharedArrays) {
  std::vector<float> out(5);
  run(static_shared, 5, 64, 0, out.data());
  EXPECT_EQ(out, std::vector<float>(5, 2016.0f));
}

/// A row of each thread ahead in the first and the third of four groups, another one in the group
/// that has not ended; then what is there when all but the last `kGroups` have been waited for.
template <int kGroups>
__global__ void bring_ahead(const float* in, float* out) {
  HN_SHARED(float4[3][32], rows);
  const unsigned t = threadIdx.x;
  for (int r = 0; r < 3; ++r) rows[r][t] = {0, 0, 0, 0};
  copy_ahead(&rows[0][t], in + 4 * t);
  end_copy_group();
  end_copy_group();
  copy_ahead(&rows[1][t], in + 4 * t);
  end_copy_group();
  end_copy_group();
  copy_ahead(&rows[2][t], in + 4 * t);
  wait_for_copies<kGroups>();
  for (int r = 0; r < 3; ++r) out[3 * t + r] = rows[r][t].w;
  end_copy_group();
  wait_for_copies<0>();
  if (rows[2][t].w != in[4 * t + 3]) out[3 * t + 2] = 0;
}

TEST_F(EmulatorTest, CopiesArriveWhenTheyAreWaitedFor) {
  std::vector<float> in(4 * 32);
  std::iota(in.begin(), in.end(), 1.0f);
  // Which of the three rows are there: groups that nothing was set off in count too.
  const auto arrived = [&](auto kernel) {
    std::vector<float> out(3 * 32);
    run(kernel, 1, 32, 0, in.data(), out.data());
    std::set<std::string> seen;
    for (size_t t = 0; t < 32; ++t) {
      std::string rows;
      for (size_t r = 0; r < 3; ++r) {
        const float x = out[3 * t + r];
        rows += std::isnan(x) ? 'n' : x == in[4 * t + 3] ? 'y' : '?';
      }
      seen.insert(rows);
    }
    return seen;
  };
  EXPECT_EQ(arrived(bring_ahead<4>), std::set<std::string>{"nnn"});
  EXPECT_EQ(arrived(bring_ahead<3>), std::set<std::string>{"ynn"});
  EXPECT_EQ(arrived(bring_ahead<2>), std::set<std::string>{"ynn"});
  EXPECT_EQ(arrived(bring_ahead<1>), std::set<std::string>{"yyn"});
  EXPECT_EQ(arrived(bring_ahead<0>), std::set<std::string>{"yyn"});
}

/// Odd blocks end before their copies have arrived; even ones have the same memory.
__global__ void leave_copies(const float* in, float* out) {
  HN_DYNAMIC_SHARED(float4, row);
  row[threadIdx.x] = {1, 1, 1, 1};
  if (blockIdx.x % 2 == 1) copy_ahead(&row[threadIdx.x], in);
  end_copy_group();
  if (blockIdx.x % 2 == 1) return;
  __syncthreads();
  wait_for_copies<0>();
  atomicAdd(out, row[threadIdx.x].x);
}

TEST_F(EmulatorTest, CopiesOfAnEndedThreadNeverArrive) {
  alignas(16) const float in[4] = {7, 7, 7, 7};
  float out = 0;
  run(leave_copies, 64, 32, 32 * sizeof(float4), &in[0], &out);
  EXPECT_EQ(out, 32.0f * 32);
}

__global__ void spoil_source(float* in, float* out) {
  HN_SHARED(float4, row);
  copy_ahead(&row, in);
  end_copy_group();
  in[2] = 5;
  wait_for_copies<0>();
  *out = row.z;
}
__global__ void bring_not_aligned(const float* in) {
  HN_SHARED(float4, row);
  copy_ahead(&row, in + 1);
}

TEST_F(EmulatorTest, CopiesAheadHaveRules) {
  alignas(16) float in[8] = {};
  float out = 0;
  EXPECT_NE(error_of(spoil_source, 1, 1, &in[0], &out).find("written before the copy arrives"),
            std::string::npos);
  EXPECT_NE(error_of(bring_not_aligned, 1, 1, &in[0]).find("a copy ahead that is not aligned"),
            std::string::npos);
}

template <size_t kBytes>
__global__ void holds(char* out) {
  HN_SHARED(char[kBytes], all);
  all[threadIdx.x] = static_cast<char>(threadIdx.x);
  __syncthreads();
  *out = all[0];
}

TEST_F(EmulatorTest, NoMoreSharedMemoryThanTheSmallestGpuHas) {
  constexpr size_t kMost = emulation::kMaxSharedBytes, kHalf = kMost / 2 - 4096;
  char out = 1;
  EXPECT_NO_THROW(run(holds<kHalf>, 2, 32, kMost - kHalf, &out));
  EXPECT_EQ(out, 0);
  const auto refusal = [&](auto kernel, size_t dynamic) -> std::string {
    try {
      run(kernel, 2, 32, dynamic, &out);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal(holds<kHalf>, kMost - kHalf + 1).find("more shared memory"), std::string::npos);
  EXPECT_NE(refusal(holds<emulation::kMaxStaticSharedBytes + 1>, 0).find("more shared memory"),
            std::string::npos);
  EXPECT_NE(refusal(holds<32>, kMost + 1).find("no GPU takes"), std::string::npos);
}

__global__ void count_up(unsigned* counter, unsigned* largest) {
  atomicAdd(counter, 1u);
  atomicMax(largest, blockIdx.x * blockDim.x + threadIdx.x);
}

TEST_F(EmulatorTest, Atomics) {
  unsigned counter = 0, largest = 0;
  run(count_up, 70, 1024, 0, &counter, &largest);
  EXPECT_EQ(counter, 70u * 1024);
  EXPECT_EQ(largest, 70u * 1024 - 1);
}

TEST_F(EmulatorTest, EmptyGridLaunchesNothing) {
  run(half_of_the_block, 0, 32, 0);
  EXPECT_EQ(device_.counters().launches, 0u);
}

}  // namespace
}  // namespace halfnote::cuda_emulated
