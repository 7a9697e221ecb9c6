// Fourier transforms and determinants: CUDA against the CPU's reference. halfnote_kernels_test
// takes many more lengths there.
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

Tensor number(int64_t value) { return integers({value}, {}); }

struct DftCase {
  Shape in;
  int64_t length, axis;
  Shape out;
  bool inverse = false, one_sided = false;
};

// Lengths of all factors, primes, one; in shared memory and, from 3,137 on, in the workspace; cut
// off and filled up; lines side by side; none.
const DftCase kDfts[] = {
    {{1, 1, 1}, 1, 1, {1, 1, 2}},
    {{3, 60, 2}, 60, 1, {3, 60, 2}},
    {{2, 129, 3, 1}, 129, 1, {2, 129, 3, 2}},
    {{2, 400, 1}, 400, 1, {2, 201, 2}, false, true},
    {{2, 33, 2}, 64, 1, {2, 64, 1}, true, true},
    {{2, 20, 2}, 64, 1, {2, 64, 1}, true, true},
    {{2, 40, 2}, 64, 1, {2, 64, 1}, true, true},
    {{5, 7, 2}, 12, 0, {12, 7, 2}},
    {{40, 3, 2}, 12, 0, {12, 3, 2}, true},
    {{2, 3200, 2}, 3200, 1, {2, 3200, 2}},
    {{0, 8, 2}, 8, 1, {0, 8, 2}},
    {{2, 0, 1}, 5, 1, {2, 5, 2}},
};

TEST(CudaSignal, FourierTransforms) {
  for (const DType dtype : kFloats) {
    for (const DftCase& c : kDfts) {
      if (c.length > 1000 && dtype != DType::kF32) continue;  // the reference is the plain sum
      const Attributes how = {{"inverse", int64_t{c.inverse}}, {"onesided", int64_t{c.one_sided}}};
      check({"",
             "DFT",
             {random(dtype, c.in), number(c.length), number(c.axis)},
             how,
             {{dtype, c.out}},
             {1, 2}});
    }
  }
}

TEST(CudaSignal, MelWeights) {
  for (const DType dtype : kFloats) {
    for (const auto& [bins, length] : {std::pair<int64_t, int64_t>{8, 16}, {1, 1}, {40, 400}}) {
      const Tensor low = Tensor::scalar(20.0f), high = Tensor::scalar(4000.0f);
      check({"",
             "MelWeightMatrix",
             {number(bins), number(length), number(8192), low, high},
             {},
             {{dtype, {length / 2 + 1, bins}}}});
    }
  }
}

TEST(CudaSignal, ManyShortTransforms) {
  const Shape shape = {70000, 4, 2};
  check({"",
         "DFT",
         {random(DType::kF32, shape), Tensor(), number(1)},
         {},
         {{DType::kF32, shape}},
         {2}});
}

TEST(CudaSignal, FramesUnderAWindow) {
  for (const DType dtype : kFloats) {
    const Tensor signal = random(dtype, {3, 65, 1}), window = random(dtype, {16}, 0, 1, 2);
    check(
        {"", "STFT", {signal, number(7), window, number(16)}, {}, {{dtype, {3, 8, 9, 2}}}, {1, 3}});
    check({"",
           "STFT",
           {random(dtype, {2, 30, 2}), number(3), Tensor(), number(9)},
           {{"onesided", int64_t{0}}},
           {{dtype, {2, 8, 9, 2}}},
           {1, 3}});
  }
}

TEST(CudaSignal, WhatIsNotKnownBeforeTheStepHasNoKernel) {
  const Call call{"",
                  "DFT",
                  {random(DType::kF32, {2, 4, 2}), number(4), number(1)},
                  {},
                  {{DType::kF32, {2, 4, 2}}},
                  {2}};
  EXPECT_EQ(row_of(call), "none");
}

TEST(CudaDeterminant, OfMatricesOfAllSizes) {
  const Shape shapes[] = {{0, 3, 3}, {4, 0, 0},   {7, 1, 1},  {6, 3, 3},  {2, 3, 9, 9},
                          {17, 17},  {2, 33, 33}, {113, 113}, {700, 2, 2}};
  for (const DType dtype : kFloats) {
    for (const Shape& shape : shapes) {
      if (shape.back() > 100 && dtype != DType::kF64) continue;  // beyond the range of f32
      const Shape batch(shape.begin(), shape.end() - 2);
      check({"", "Det", {random(dtype, shape, -1, 1)}, {}, {{dtype, batch}}});
    }
  }
}

TEST(CudaDeterminant, OfSingularAndNonFiniteMatrices) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float values[] = {0,    2, 3, 4,    5, 6, 0,    0, 0,  // swapped, then a row of zeros
                          1,    2, 3, 2,    4, 6, 5,    1, 2,  // dependent rows
                          0,    1, 2, kNan, 2, 3, 4,    5, 6,  // a NaN that is no pivot
                          kNan, 1, 2, 0,    2, 3, 0,    5, 6,  // and one that is
                          kInf, 1, 2, 0,    2, 3, 0,    5, 6,  //
                          1,    0, 0, -1,   1, 0, 1,    1, 1,  // equal sizes: the first row
                          0,    0, 0, 0,    0, 0, kNan, 0, 0};
  check({"",
         "Det",
         {Tensor::of<float>({7, 3, 3}, std::span<const float>(values))},
         {},
         {{DType::kF32, {7}}}});
}

TEST(CudaDeterminant, OfNoSquareIsAnError) {
  EXPECT_THROW(on_device({"", "Det", {random(DType::kF32, {2, 3})}, {}, {{DType::kF32, {}}}}),
               Error);
}

}  // namespace
}  // namespace halfnote::cuda_emulated
