// The gradients of pools of plain tensors have the bits of the CPU's reference: windows that meet
// and windows that do not, with padding, dilations, ties and NaN, and more of them than a grid has
// threads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/cuda/channels_last/last.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

struct Pool {
  Shape x, y;
  std::vector<int64_t> kernel, strides, pads, dilations = {};

  Attributes attributes() const {
    Attributes all{{"kernel_shape", kernel}, {"strides", strides}, {"pads", pads}};
    if (!dilations.empty()) all.set("dilations", dilations);
    return all;
  }
};

constexpr int64_t kFar = int64_t{1} << 61;

const Pool kPools[] = {
    // No two windows meet: without and with a rest, and with padding.
    {{2, 3, 6, 8}, {2, 3, 3, 4}, {2, 2}, {2, 2}, {0, 0, 0, 0}},
    {{2, 3, 7, 9}, {2, 3, 2, 3}, {2, 1}, {4, 4}, {0, 0, 0, 0}},
    {{1, 4, 7, 9}, {1, 4, 4, 5}, {2, 2}, {2, 2}, {1, 1, 0, 0}},
    {{1, 2, 40, 40}, {1, 2, 2, 2}, {20, 20}, {20, 20}, {0, 0, 0, 0}},
    {{3, 5, 7, 7}, {3, 5, 1, 1}, {7, 7}, {1, 1}, {0, 0, 0, 0}},
    // They meet.
    {{2, 3, 9, 7}, {2, 3, 5, 4}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
    {{1, 3, 5, 4}, {1, 3, 5, 4}, {3, 3}, {1, 1}, {1, 1, 1, 1}},
    {{2, 2, 23}, {2, 2, 12}, {5}, {2}, {2, 2}},
    {{1, 2, 5, 6, 7}, {1, 2, 3, 5, 4}, {3, 2, 3}, {2, 1, 2}, {1, 0, 1, 1, 0, 1}},
    // The last windows hang over the end (ceil_mode), or lie in the padding.
    {{1, 2, 5, 5}, {1, 2, 3, 3}, {2, 2}, {2, 2}, {0, 0, 0, 0}},
    {{1, 2, 4, 4}, {1, 2, 4, 4}, {2, 2}, {2, 2}, {2, 2, 2, 2}},
    {{1, 1, 6}, {1, 1, 4}, {3}, {3}, {4, 3}},
    // Elements between those of a window.
    {{2, 2, 9, 10}, {2, 2, 5, 4}, {3, 2}, {1, 2}, {0, 0, 0, 0}, {2, 3}},
    {{1, 2, 9, 8}, {1, 2, 4, 4}, {2, 2}, {2, 2}, {0, 0, 0, 0}, {3, 2}},
    // More elements in a window than a byte counts.
    {{1, 2, 20, 21}, {1, 2, 5, 3}, {17, 19}, {1, 1}, {0, 0, 0, 0}},
    {{2, 1, 300}, {2, 1, 3}, {260}, {20}, {0, 0}},
    // Steps that lead nowhere are of any size.
    {{1, 2, 5, 6}, {1, 2, 5, 1}, {1, 3}, {1, kFar}, {0, 0, 0, 0}, {kFar, 1}},
    // Nothing.
    {{0, 3, 4, 4}, {0, 3, 2, 2}, {2, 2}, {2, 2}, {0, 0, 0, 0}},
    {{1, 2, 3, 3}, {1, 2, 0, 2}, {4, 2}, {1, 1}, {0, 0, 0, 0}},
};

/// Few different values, so that windows have ties; some NaN, infinities and zeros of both signs.
Tensor values_with_ties(DType dtype, const Shape& shape) {
  constexpr double kOdd[] = {NAN, INFINITY, -INFINITY, -0.0, 0.0};
  Tensor x = random(DType::kF64, shape, -3, 3);
  const auto values = x.mutable_data<double>();
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = i % 11 == 4 ? kOdd[i / 11 % 5] : std::round(values[i]);
  return x.cast_to(dtype);
}

/// Gradients of which some are -0, which a sum of one makes 0.
Tensor gradients_with_zeros(DType dtype, const Shape& shape) {
  Tensor dy = random(DType::kF64, shape, -1, 1, 2);
  const auto values = dy.mutable_data<double>();
  for (size_t i = 0; i < values.size(); i += 5) values[i] = -0.0;
  return dy.cast_to(dtype);
}

/// The bits of all numbers; a GPU has one NaN where the CPU keeps the bits of the one that it read.
bool same_numbers(const Tensor& a, const Tensor& b) {
  const Tensor x = a.cast_to(DType::kF64), y = b.cast_to(DType::kF64);
  for (int64_t i = 0; i < x.size(); ++i) {
    const double one = x.at_as_double(i), other = y.at_as_double(i);
    if (std::isnan(one) && std::isnan(other)) continue;
    if (one != other || std::signbit(one) != std::signbit(other)) return false;
  }
  return a.dtype() == b.dtype() && a.shape() == b.shape();
}

void check_bits(const Call& call) {
  check(call);
  if (test::tested_device() == "none") return;
  EXPECT_TRUE(same_numbers(on_device(call)[0], on_cpu(call)[0]))
      << call.op << " of " << short_name(call.inputs[0].dtype())
      << to_string(call.inputs[0].shape()) << " to " << to_string(call.outputs[0].shape);
}

void check_gradients(const Pool& pool, DType dtype) {
  const Tensor x = values_with_ties(dtype, pool.x), dy = gradients_with_zeros(dtype, pool.y);
  Attributes attributes = pool.attributes();
  check_bits({kOwn, "MaxPoolGrad", {dy, x}, attributes, {{dtype, pool.x}}});
  const Tensor shape = integers(pool.x, {static_cast<int64_t>(pool.x.size())});
  for (const int64_t include_pad : {0, 1}) {
    attributes.set("count_include_pad", include_pad);
    check_bits({kOwn, "AveragePoolGrad", {dy, shape}, attributes, {{dtype, pool.x}}, {1}});
  }
}

/// (N, spatial…, C) of (N, C, spatial…).
Shape of_taps(const Shape& windows) {
  Shape taps = windows;
  std::rotate(taps.begin() + 1, taps.begin() + 2, taps.end());
  return taps;
}

bool has_taps_of_a_byte(const Pool& pool) {
  int64_t count = 1;
  for (const int64_t along_dim : pool.kernel) count *= along_dim;
  return count < 255;
}

/// A maximum that keeps its taps, with a Relu and without, and the gradient of what it kept.
void check_kept(const Pool& pool, DType dtype) {
  const Tensor x = values_with_ties(dtype, pool.x), dy = gradients_with_zeros(dtype, pool.y);
  const Result y{dtype, pool.y}, taps{DType::kU8, of_taps(pool.y)};
  for (const bool relu : {false, true}) {
    Attributes attributes = pool.attributes();
    if (relu) attributes.set("activation", std::string("Relu"));
    check_bits({kOwn, "MaxPool", {x}, attributes, {y}});
    const Call both{kOwn, "MaxPool", {x}, attributes, {y, taps}};
    check_bits(both);
    const Tensor kept = on_cpu(both)[1];
    if (test::tested_device() != "none") {
      EXPECT_TRUE(identical(on_device(both)[1], kept));
    }
    const Tensor shape = integers(pool.x, {static_cast<int64_t>(pool.x.size())});
    const Call backward{
        kOwn, "MaxPoolTapsGrad", {dy, kept, shape}, pool.attributes(), {{dtype, pool.x}}, {2}};
    check_bits(backward);
    if (relu) continue;  // without it, this is the gradient that finds the maxima again
    const Call found{kOwn, "MaxPoolGrad", {dy, x}, pool.attributes(), {{dtype, pool.x}}};
    EXPECT_TRUE(identical(on_cpu(backward)[0], on_cpu(found)[0])) << to_string(pool.x);
  }
}

/// Numbers of a channel, of which the second is below 0 and the third is 0.
Tensor numbers_of_channels(DType dtype, int64_t channels) {
  Tensor numbers = random(DType::kF64, {channels}, 0.5, 2, 4);
  const auto values = numbers.mutable_data<double>();
  for (size_t c = 1; c < values.size(); c += 3) values[c] = -values[c];
  for (size_t c = 2; c < values.size(); c += 3) values[c] = 0;
  return numbers.cast_to(dtype);
}

/// A maximum by the signs of a scale, and the gradient through the normalization before it.
void check_normalized(const Pool& pool, DType dtype) {
  const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const int64_t channels = pool.x[1];
  const Tensor x = values_with_ties(dtype, pool.x), scale = numbers_of_channels(wide, channels);
  const Result y{dtype, pool.y}, taps{DType::kU8, of_taps(pool.y)};
  const Call forward{kOwn, "MaxPool", {x, scale}, pool.attributes(), {y, taps}};
  check_bits(forward);
  const Tensor kept = on_cpu(forward)[1];
  if (test::tested_device() != "none") {
    EXPECT_TRUE(identical(on_device(forward)[1], kept));
  }
  const auto numbers = [&](double least, double most, uint64_t seed) {
    return random(wide, {channels}, least, most, seed);
  };
  const Call backward{kOwn,
                      "NormalizedMaxPoolGrad",
                      {random(dtype, pool.y, -1, 1, 2), kept, random(dtype, pool.x, -3, 3), scale,
                       numbers(-1, 1, 5), numbers(0.5, 2, 6), numbers(-4, 4, 7), numbers(-4, 4, 8)},
                      pool.attributes(),
                      {{dtype, pool.x}}};
  check(backward);
  const bool lies_last = channels > 1 && element_count(pool.x) > pool.x[0] * channels;
  if (dtype == DType::kF64 || !lies_last) return;
  check_last(forward);
  check_last(backward);
}

TEST(CudaKeptMaxPool, OfWhatIsNormalizedBehindIt) {
  for (const Pool& pool : kPools) {
    if (!has_taps_of_a_byte(pool)) continue;
    for (const DType dtype : kFloats) check_normalized(pool, dtype);
  }
  // Some channels at a time, in slices, with 32-bit places and others.
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    check_normalized({{3, 16, 11, 13}, {3, 16, 6, 7}, {3, 3}, {2, 2}, {1, 1, 1, 1}}, dtype);
    check_normalized({{2, 16, 9, 10}, {2, 16, 4, 5}, {4, 4}, {2, 2}, {1, 1, 1, 1}}, dtype);
    check_normalized({{1, 8, 10, 7}, {1, 8, 5, 4}, {3, 2}, {2, 2}, {0, 1, 1, 0}}, dtype);
    // Of all windows up to 4 x 4 that are two apart.
    for (const int64_t high : {1, 2, 3, 4}) {
      for (const int64_t wide : {1, 2, 3, 4}) {
        const Shape y = {2, 8, (11 - high) / 2 + 1, (12 - wide) / 2 + 1};
        check_normalized({{2, 8, 11, 12}, y, {high, wide}, {2, 2}, {0, 0, 0, 0}}, dtype);
      }
    }
    check_normalized({{2, 24, 33, 40}, {2, 24, 16, 20}, {2, 2}, {2, 2}, {0, 0, 0, 0}}, dtype);
    check_normalized({{1, 8, 4, 5, 6}, {1, 8, 2, 3, 3}, {3, 2, 2}, {2, 2, 2}, {1, 0, 0, 0, 1, 0}},
                     dtype);
  }
}

TEST(CudaKeptMaxPool, HasTheBitsOfTheReference) {
  for (const Pool& pool : kPools) {
    if (!has_taps_of_a_byte(pool)) continue;
    for (const DType dtype : kFloats) check_kept(pool, dtype);
  }
}

TEST(CudaKeptMaxPool, GoesOverMoreElementsThanAGridHasThreads) {
  check_kept({{2, 3, 130, 131}, {2, 3, 65, 65}, {2, 2}, {2, 2}, {0, 0, 0, 0}}, DType::kF32);
  check_kept({{2, 7, 200, 201}, {2, 7, 100, 101}, {3, 3}, {2, 2}, {1, 1, 1, 1}}, DType::kBF16);
}

TEST(CudaPoolGrad, HasTheBitsOfTheReference) {
  for (const Pool& pool : kPools) {
    for (const DType dtype : kFloats) check_gradients(pool, dtype);
  }
}

TEST(CudaPoolGrad, GoesOverMoreElementsThanAGridHasThreads) {
  // Of all three ways: cells, 32-bit places, places of any size.
  check_gradients({{2, 3, 130, 131}, {2, 3, 65, 65}, {2, 2}, {2, 2}, {0, 0, 0, 0}}, DType::kF32);
  check_gradients({{2, 7, 200, 201}, {2, 7, 100, 101}, {3, 3}, {2, 2}, {1, 1, 1, 1}}, DType::kF32);
  check_gradients({{2, 3, 11, 43, 53}, {2, 3, 5, 21, 26}, {3, 3, 3}, {2, 2, 2}, {0, 0, 0, 0, 0, 0}},
                  DType::kBF16);
}

TEST(CudaPool, HasTheBitsOfTheReference) {
  for (const Pool& pool : kPools) {
    for (const DType dtype : kFloats) {
      const Tensor x = values_with_ties(dtype, pool.x);
      const Result y{dtype, pool.y}, indices{DType::kI64, pool.y};
      Attributes attributes = pool.attributes();
      for (const int64_t order : {0, 1}) {
        attributes.set("storage_order", order);
        check_bits({"", "MaxPool", {x}, attributes, {y, indices}});
      }
      attributes = pool.attributes();
      for (const int64_t include_pad : {0, 1}) {
        attributes.set("count_include_pad", include_pad);
        // Of finite numbers: what is no number has a sign that nothing decides.
        check_bits({"", "AveragePool", {random(dtype, pool.x)}, attributes, {y}});
      }
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
