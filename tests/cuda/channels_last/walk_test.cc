// How blocks share out rows, and sums of more slices than one dim of a grid has.
#include "kernels/cuda/channels_last/walk.h"

#include <gtest/gtest.h>

#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

/// Expects a grid that GPUs take, and of it all rows, few enough for each thread.
template <class T>
void expect_good(int64_t rows, int64_t channels) {
  SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(channels) + " channels");
  const ChannelWalk walk = walk_for_sums<T>(rows, channels);
  const dim3 grid = walk.grid();
  EXPECT_LE(grid.y, 65535u);
  EXPECT_LE(grid.z, 65535u);
  EXPECT_GE(int64_t{grid.y} * grid.z, walk.slices);
  EXPECT_LT(int64_t{grid.y} * grid.z - walk.slices, int64_t{grid.z});
  EXPECT_GE(int64_t{grid.x} * walk.lanes * walk.together, channels);
  EXPECT_GE(walk.slice * walk.slices, rows);
  EXPECT_LT(walk.slice * (walk.slices - 1), rows);
  EXPECT_LE(walk.slice, kMostRows * walk.step());
}

TEST(ChannelWalk, AThreadHasFewRowsOfAnyNumber) {
  constexpr int64_t kMany = int64_t{1} << 27;
  for (const int64_t rows : {int64_t{1}, int64_t{50176}, kMany - 1, kMany, kMany + 7, 9 * kMany}) {
    for (const int64_t channels : {2, 8, 17, 31, 33, 64, 257, 2048}) {
      expect_good<BFloat16>(rows, channels);
      expect_good<Half>(rows, channels);
      expect_good<float>(rows, channels);
    }
  }
}

/// Sums of what is in a channel, and how many there are.
struct SumAndCount {
  using Element = float;
  using Number = double;
  using Channel = int;
  static constexpr int kOperands = 1, kSums = 2;
  const float* operands[kOperands];
  template <int V>
  __device__ void know(int64_t, Channel (&)[V]) const {}
  template <int V>
  __device__ void add(const Channel (&)[V], const RowOf<float, V, 1>& row, int64_t,
                      SumsOf<double, kSums> (&sums)[V]) const {
    for (int v = 0; v < V; ++v) {
      sums[v].of[0] += row[0].of[v];
      sums[v].of[1] += 1;
    }
  }
};

/// Three slices in a grid of two times two.
TEST(ChannelWalk, SlicesGoOnInZ) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "a kernel of this test alone";
  const auto device = test::open_tested_device();
  const auto stream = device->make_stream();
  ChannelWalk walk(3 * 8, 17, 4, 1, 3, 3);
  ASSERT_EQ(walk.slices, 3);
  const Tensor x = random(DType::kF32, {walk.rows, walk.channels});
  std::vector<SlicesOf<SumAndCount>> parts(static_cast<size_t>(walk.slices * walk.channels));
  launch(*stream, sum_slices<1, SumAndCount>, dim3(1, 2, 2), kBlock, 0,
         SumAndCount{{x.data<float>().data()}}, walk, parts.data());
  stream->synchronise();
  for (int64_t s = 0; s < walk.slices; ++s) {
    for (int64_t c = 0; c < walk.channels; ++c) {
      double sum = 0;
      for (int64_t r = s * walk.slice; r < (s + 1) * walk.slice; ++r)
        sum += x.at_as_double(r * walk.channels + c);
      const auto& part = parts[static_cast<size_t>(s * walk.channels + c)];
      EXPECT_NEAR(part.of[0], sum, 1e-12) << s << ", " << c;
      EXPECT_EQ(part.of[1], walk.slice);
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
