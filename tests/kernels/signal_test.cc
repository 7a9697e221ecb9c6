// Fourier transforms, determinants, regions and moving taps, by properties that hold exactly or up
// to the rounding of f32.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "exact.h"
#include "harness.h"

namespace halfnote::test {
namespace {

constexpr double kEps = 1.2e-7;  // of f32; sums here have at most 16 terms of size 1

Tensor axis(int64_t index) { return Tensor::scalar<int64_t>(index); }

TEST(Dft, OfAnImpulseIsFlat) {
  const Tensor x = Tensor::of<float>({1, 4, 1}, {1, 0, 0, 0});
  const Tensor y = run_one("", "DFT", {x, {}, axis(1)}, {}, {DType::kF32, {1, 4, 2}});
  expect_close(y, Tensor::of<float>({1, 4, 2}, {1, 0, 1, 0, 1, 0, 1, 0}), 0, kEps);
}

TEST(Dft, IsUndoneByItsInverse) {
  const Tensor x = random_tensor(DType::kF32, {2, 6, 3, 2}, -1, 1);
  const OutputSpec same{DType::kF32, {2, 6, 3, 2}};
  const Tensor y = run_one("", "DFT", {x, {}, axis(1)}, {}, same);
  const Tensor back = run_one("", "DFT", {y, {}, axis(1)}, {{"inverse", int64_t{1}}}, same);
  expect_close(back, x, 0, 16 * kEps);
}

// Found by halfnote-random: the results were left as they were.
TEST(Dft, OfNoElementsIsZero) {
  const Tensor x(DType::kF32, {2, 0, 1}), two = Tensor::scalar<int64_t>(2);
  const Tensor y = run_one("", "DFT", {x, two, axis(1)}, {}, {DType::kF32, {2, 2, 2}});
  expect_close(y, Tensor::full(DType::kF32, {2, 2, 2}, 0), 0, 0);
}

TEST(Dft, OneSidedIsTheFirstHalfAndComesBack) {
  const Tensor x = random_tensor(DType::kF32, {1, 6, 1}, -1, 1);
  const Attributes one = {{"onesided", int64_t{1}}};
  const Attributes back = {{"onesided", int64_t{1}}, {"inverse", int64_t{1}}};
  const Tensor y = run_one("", "DFT", {x, {}, axis(1)}, one, {DType::kF32, {1, 4, 2}});
  const Tensor again = run_one("", "DFT", {y, {}, axis(1)}, back, {DType::kF32, {1, 6, 1}});
  expect_close(again, x, 0, 16 * kEps);
}

struct DftCase {
  int64_t dim, length, given, made;  // parts of elements that come in and go out
  bool inverse = false, one_sided = false;
};

std::vector<DftCase> dft_cases() {
  std::vector<DftCase> cases;
  for (int64_t length = 1; length <= 40; ++length) cases.push_back({length, length, 2, 2});
  for (const int64_t length : {64, 77, 96, 97, 101, 128, 254, 360, 512, 625, 1024, 1331}) {
    cases.push_back({length, length, 2, 2, true});
    cases.push_back({length, length, 1, 2, false, true});
    cases.push_back({length / 2 + 1, length, 2, 1, true, true});
  }
  cases.push_back({10, 16, 1, 2});             // zeros behind it
  cases.push_back({20, 12, 2, 2});             // cut off
  cases.push_back({4, 12, 2, 1, true, true});  // a spectrum with zeros behind it
  cases.push_back({0, 6, 2, 2});
  return cases;
}

TEST(Dft, TakenApartIsTheSum) {
  for (const DftCase& c : dft_cases()) {
    for (const DType type : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(std::to_string(c.dim) + " to " + std::to_string(c.length) + " " +
                   std::string(short_name(type)));
      const int64_t inner = 1 + c.length % 2;
      const Tensor x = random_tensor(type, {3, c.dim, inner, c.given}, -1, 1);
      const int64_t bins = c.one_sided && !c.inverse ? c.length / 2 + 1 : c.length;
      const OutputSpec output{type, {3, bins, inner, c.made}};
      const Attributes attributes = {{"onesided", int64_t{c.one_sided}},
                                     {"inverse", int64_t{c.inverse}}};
      const std::vector<Tensor> inputs = {x, axis(c.length), axis(1)};
      const Tensor wanted = run_one("", "DFT", inputs, attributes, output);
      const Tensor got = run_one("", "DFT", inputs, attributes, output, {.kernel = "fast"});
      // Sums in f64 of at most 1,331 terms of size 1; two roundings may fall on different sides.
      expect_close(got, wanted, type == DType::kF64 ? 0 : 2 * unit_roundoff(type), 1e-12);
    }
  }
}

TEST(Dft, OfFramesIsWindowed) {
  const Tensor x = Tensor::of<float>({1, 4, 1}, {1, 2, 3, 4});
  const Tensor window = Tensor::of<float>({2}, {1, 0});
  const Tensor y = run_one("", "STFT", {x, axis(2), window}, {}, {DType::kF32, {1, 2, 2, 2}});
  expect_close(y, Tensor::of<float>({1, 2, 2, 2}, {1, 0, 1, 0, 3, 0, 3, 0}), 0, 4 * kEps);
}

TEST(MelWeights, AreTriangles) {
  const Tensor y = run_one(
      "", "MelWeightMatrix",
      {axis(2), axis(16), axis(8192), Tensor::scalar<float>(0), Tensor::scalar<float>(4096)}, {},
      {DType::kF32, {9, 2}});
  for (int64_t column = 0; column < 2; ++column) {
    double largest = 0;
    for (int64_t row = 0; row < 9; ++row) {
      const double weight = y.at_as_double(row * 2 + column);
      EXPECT_GE(weight, 0);
      largest = std::max(largest, weight);
    }
    EXPECT_EQ(largest, 1);
  }
}

TEST(Det, SwapsRowsForAPivot) {
  const Tensor x = Tensor::of<float>({2, 2, 2}, {0, 2, 3, 4, 1, 2, 2, 4});
  const Tensor y = run_one("", "Det", {x}, {}, {DType::kF32, {2}});
  expect_close(y, Tensor::of<float>({2}, {-6, 0}), 0, 0);
  EXPECT_THROW(run_one("", "Det", {Tensor::of<float>({1, 2}, {1, 2})}, {}, {DType::kF32, {}}),
               Error);
}

TEST(RoiAlign, OfAPlaneReadsThePlane) {
  // x(row, column) = 4·row + column is linear: the mean of a bin is its value in the middle.
  std::vector<float> plane;
  for (int i = 0; i < 16; ++i) plane.push_back(static_cast<float>(i));
  const Tensor x = Tensor::of<float>({1, 1, 4, 4}, std::span<const float>(plane));
  const Tensor roi = Tensor::of<float>({1, 4}, {0.5f, 0.5f, 2.5f, 2.5f});
  const Tensor y = run_one("", "RoiAlign", {x, roi, Tensor::of<int64_t>({1}, {0})},
                           {{"sampling_ratio", int64_t{2}},
                            {"coordinate_transformation_mode", std::string("half_pixel")}},
                           {DType::kF32, {1, 1, 2, 2}});
  // The region is [0, 2] in pixels; bins are centred at 0.5 and 1.5.
  expect_close(y, Tensor::of<float>({1, 1, 2, 2}, {2.5f, 3.5f, 6.5f, 7.5f}), 8 * kEps, 0);
  EXPECT_THROW(run_one("", "RoiAlign", {x, roi, Tensor::of<int64_t>({1}, {7})}, {},
                       {DType::kF32, {1, 1, 1, 1}}),
               Error)
      << "no such image";
}

// A model that diverges gives such regions: no pixel is read for them.
TEST(RoiAlign, OfNowhereIsNan) {
  const Tensor x = Tensor::full(DType::kF32, {1, 1, 4, 4}, 2),
               image = Tensor::of<int64_t>({1}, {0});
  for (const int64_t ratio : {0, 2}) {
    for (const float odd : {NAN, INFINITY, -INFINITY}) {
      const Tensor roi = Tensor::of<float>({1, 4}, {odd, 0, 2, 2});
      const auto run = [&] {
        return run_one("", "RoiAlign", {x, roi, image}, {{"sampling_ratio", ratio}},
                       {DType::kF32, {1, 1, 1, 1}});
      };
      if (ratio == 0 && odd < 0) {
        EXPECT_THROW(run(), Error) << "as many samples as it is wide";
      } else {
        EXPECT_FALSE(run().at_as_double(0) == 2) << odd;
      }
      if (std::isnan(odd)) {
        EXPECT_TRUE(std::isnan(run().at_as_double(0)));
      }
    }
  }
}

TEST(RoiAlign, RegionsOfTooManySamplesAreRefused) {
  const Tensor x = Tensor::full(DType::kF32, {1, 1, 4, 4}, 2),
               image = Tensor::of<int64_t>({1}, {0});
  const OutputSpec out{DType::kF32, {1, 1, 1, 1}};
  const Tensor wide = Tensor::of<float>({1, 4}, {0, 0, 1e20f, 2});
  EXPECT_THROW(run_one("", "RoiAlign", {x, wide, image}, {}, out), Error);
  const Tensor roi = Tensor::of<float>({1, 4}, {0, 0, 2, 2});
  EXPECT_THROW(
      run_one("", "RoiAlign", {x, roi, image}, {{"sampling_ratio", int64_t{1} << 40}}, out), Error);
}

TEST(DeformConv, ReadsNoPixelWhereAnOffsetIsNan) {
  const Tensor x = Tensor::full(DType::kF32, {1, 1, 2, 2}, 1);
  const Tensor w = Tensor::of<float>({1, 1, 1, 1}, {1});
  const Tensor offsets = Tensor::of<float>({1, 2, 2, 2}, {NAN, 0, INFINITY, 0, 0, 0, 0, -INFINITY});
  const Tensor y = run_one("", "DeformConv", {x, w, offsets}, {}, {DType::kF32, {1, 1, 2, 2}});
  EXPECT_TRUE(std::isnan(y.at_as_double(0)));
  EXPECT_EQ(y.at_as_double(1), 1);
  EXPECT_EQ(y.at_as_double(2), 0);
  EXPECT_EQ(y.at_as_double(3), 0);
}

TEST(DeformConv, WithoutOffsetsIsAConvolution) {
  const Tensor x = random_tensor(DType::kF32, {2, 4, 5, 4}, -1, 1, 1);
  const Tensor w = random_tensor(DType::kF32, {6, 2, 3, 2}, -1, 1, 2);
  const Attributes attributes = {{"group", int64_t{2}},
                                 {"pads", std::vector<int64_t>{1, 0, 1, 1}},
                                 {"strides", std::vector<int64_t>{2, 1}}};
  const OutputSpec out{DType::kF32, {2, 6, 3, 4}};
  const Tensor offsets(DType::kF32, {2, 12, 3, 4});
  const Tensor wanted = run_one("", "Conv", {x, w}, attributes, out);
  const Tensor y = run_one("", "DeformConv", {x, w, offsets}, attributes, out);
  expect_close(y, wanted, 0, 16 * kEps);
}

TEST(DeformConv, MovesTapsByTheOffsets) {
  const Tensor x = Tensor::of<float>({1, 1, 1, 3}, {1, 2, 4});
  const Tensor w = Tensor::of<float>({1, 1, 1, 1}, {1});
  // Down by 0, right by 1/2, 1 and 1: the last tap reads outside.
  const Tensor offsets = Tensor::of<float>({1, 2, 1, 3}, {0, 0, 0, 0.5f, 1, 1});
  const Tensor mask = Tensor::of<float>({1, 1, 1, 3}, {1, 0.5f, 1});
  const Tensor y =
      run_one("", "DeformConv", {x, w, offsets, {}, mask}, {}, {DType::kF32, {1, 1, 1, 3}});
  expect_close(y, Tensor::of<float>({1, 1, 1, 3}, {1.5f, 2, 0}), 0, 0);
}

}  // namespace
}  // namespace halfnote::test
