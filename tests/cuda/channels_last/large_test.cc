// The walks channels last on images as convolutional nets have them: many slices to merge, threads
// that go down more rows than are on their way at once, one lane a row.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/cuda/channels_last/walk.h"
#include "tests/cuda/channels_last/last.h"

namespace halfnote::cuda_emulated {
namespace {

struct Image {
  Shape shape;
  DType dtype;
};
/// Of 7, 7, 176 and 30 slices for their sums, of 8 rows a thread; the last one is not full.
const Image kLargeImages[] = {{{1, 64, 40, 40}, DType::kBF16},
                              {{1, 64, 40, 40}, DType::kF16},
                              {{2, 64, 150, 150}, DType::kBF16},
                              {{1, 8, 200, 300}, DType::kF16}};

/// In two orders of the threads, in one of them in place.
void check_large(const Call& call) { check_last(call, ~0u, ~0u, {1, 3}); }

TEST(ChannelsLastLarge, BatchNormalization) {
  Attributes relu;
  relu.set("activation", "Relu");
  const Tensor none;
  for (const auto& [shape, dtype] : kLargeImages) {
    const Shape c{shape[1]};
    const Result full{dtype, shape}, f32{DType::kF32, c};
    const Tensor x = random(dtype, shape, 4, 7), dy = random(dtype, shape, -1, 1, 2),
                 more = random(dtype, shape, -1, 1, 3), scale = random(DType::kF32, c, 0.5, 2, 4),
                 bias = random(DType::kF32, c, -1, 1, 5), mean = random(DType::kF32, c, 4, 7, 6),
                 variance = random(DType::kF32, c, 0.5, 2, 7);
    const std::vector<Result> results{full, f32, f32, f32, f32};
    check_large({kOwn, "BatchNormalization", {x, scale, bias, mean, variance}, {}, results});
    check_large(
        {kOwn, "BatchNormalization", {x, scale, bias, mean, variance, more}, relu, results});
    const auto gradient = [&](const std::vector<Tensor>& tail, const std::vector<Result>& to) {
      std::vector<Tensor> operands{dy, x, scale, mean, variance};
      operands.insert(operands.end(), tail.begin(), tail.end());
      check_large({kOwn, "BatchNormalizationGrad", operands, {}, to});
    };
    gradient({}, {full, f32, f32});
    gradient({more, x}, {full, f32, f32, full});
    gradient({none, none, bias}, {{}, f32, f32, full});
    const Tensor signs = bits_for(shape);
    std::vector<Result> with_signs = results;
    with_signs.push_back({DType::kU8, signs.shape()});
    const Tensor far = far_from_zero(dtype, shape);
    check_large(
        {kOwn, "BatchNormalization", {x, scale, bias, mean, variance, far}, relu, with_signs});
    gradient({more, none, none, signs}, {full, f32, f32, full});
  }
}

TEST(ChannelsLastLarge, Pools) {
  for (const auto& [shape, dtype] : kLargeImages) {
    Shape result = shape;
    result[2] = shape[2] / 2;
    result[3] = shape[3] / 2;
    // Few different values, so that windows have ties.
    Tensor rounded = random(DType::kF64, shape, -3, 3);
    for (double& value : rounded.mutable_data<double>()) value = std::round(value);
    const Tensor x = rounded.cast_to(dtype), dy = random(dtype, result, -1, 1, 2);
    const Attributes overlapping{{"kernel_shape", std::vector<int64_t>{3, 3}},
                                 {"strides", std::vector<int64_t>{2, 2}},
                                 {"pads", std::vector<int64_t>{1, 1, 1, 1}}};
    check_large({"", "MaxPool", {x}, overlapping, {{dtype, result}}});
    check_large({kOwn, "MaxPoolGrad", {dy, x}, overlapping, {{dtype, shape}}});
    check_large({"", "AveragePool", {x}, overlapping, {{dtype, result}}});
    check_large({kOwn, "AveragePoolGrad", {dy, x}, overlapping, {{dtype, shape}}});
  }
}

Call sum_to_channels(const Tensor& x) {
  Attributes flat;
  flat.set("keepdims", int64_t{0});
  return {kOwn, "ReduceSum", {x, integers({0, 2, 3}, {3})}, flat, {{DType::kF32, {x.shape()[1]}}},
          {1}};
}

TEST(ChannelsLastLarge, Reductions) {
  for (const auto& [shape, dtype] : kLargeImages) {
    const int64_t n = shape[0], c = shape[1];
    const Tensor x = random(dtype, shape, 0.5, 2);
    check_large(sum_to_channels(x));
    check_large({"", "GlobalAveragePool", {x}, {}, {{dtype, {n, c, 1, 1}}}});
    check_large({"", "GlobalMaxPool", {x}, {}, {{dtype, {n, c, 1, 1}}}});
    // A block of the plain kernel for each pixel, which takes the emulation 1 ms.
    if (shape[2] * shape[3] > 2000) continue;
    const Shape image{n, 1, shape[2], shape[3]};
    check_large({"", "ReduceMean", {x, integers({1}, {1})}, {}, {{dtype, image}}, {1}});
  }
}

/// So many rows that their number decides on the slices.
TEST(ChannelsLastLarge, NoThreadSumsTooManyRows) {
  if (test::tested_device() == "none") GTEST_SKIP();
  const Shape shape{1, 17, 1280, 1280};
  EXPECT_GT(walk_for_sums<BFloat16>(1280 * 1280, 17).slices, kWaves);
  const Tensor some = random(DType::kBF16, {1, 17, 64, 64}, 0.5, 2);
  Tensor x(DType::kBF16, shape);
  for (size_t at = 0; at < x.byte_size(); at += some.byte_size())
    std::memcpy(x.mutable_bytes() + at, some.bytes(), some.byte_size());
  check_last(sum_to_channels(x), ~0u, ~0u, {1});
}

/// Every row and channel is a thread's, none goes down more rows than it may, and the grid is one
/// that there is.
template <class T>
void check_walks(int64_t rows, int64_t channels) {
  SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(channels));
  for (const ChannelWalk& walk :
       {walk_for_sums<T>(rows, channels), walk_for_elements<T>(rows, channels)}) {
    EXPECT_EQ(walk.slice % walk.step(), 0);
    EXPECT_GE(walk.slices * walk.slice, rows);
    EXPECT_LT((walk.slices - 1) * walk.slice, rows);
    EXPECT_LE(walk.slices, 65535);
    EXPECT_EQ(channels % walk.together, 0);
    EXPECT_GE(int64_t{walk.grid().x} * walk.lanes * walk.together, channels);
  }
  const ChannelWalk sums = walk_for_sums<T>(rows, channels);
  EXPECT_LE(sums.slice / sums.step(), kMostRows);
}

TEST(ChannelsLastLarge, WalksCoverAllImages) {
  for (const int64_t rows :
       {1, 7, 255, 256, 257, 1'600, 45'000, 360'000, 3'211'264, 12'845'056, 60'000'001}) {
    for (const int64_t channels : {1, 2, 3, 8, 17, 32, 33, 64, 100, 256, 1'025, 2'048}) {
      check_walks<BFloat16>(rows, channels);
      check_walks<float>(rows, channels);
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
