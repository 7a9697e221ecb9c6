#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/cuda/channels_last/last.h"
#include "tests/sanitizer.h"

namespace halfnote::cuda_emulated {
namespace {

/// The normalization and its gradient, in each way to form groups.
void check_groups(const Tensor& x, const Tensor& dy, DType parameters) {
  const Shape& shape = x.shape();
  const Shape c{shape[1]};
  const Result full{x.dtype(), shape}, f32{DType::kF32, c};
  const Tensor scale = random(parameters, c, 0.5, 2, 3), bias = random(parameters, c, -1, 1, 4);
  for (const int64_t groups : {int64_t{1}, shape[1] / 2, shape[1]}) {
    if (shape[1] % groups != 0) continue;
    Attributes attributes;
    attributes.set("num_groups", groups);
    check_last({"", "GroupNormalization", {x, scale, bias}, attributes, {full}});
    check_last({kOwn, "GroupNormalizationGrad", {dy, x, scale}, attributes, {full, f32, f32}});
    check_last({kOwn, "GroupNormalizationGrad", {dy, x, scale}, attributes, {{}, f32, f32}});
  }
  check_last({"", "InstanceNormalization", {x, scale, bias}, {}, {full}});
  check_last({kOwn, "GroupNormalizationGrad", {dy, x, scale}, {}, {full, f32, f32}});
}

/// One slice of an image and several, channels in packs and alone, groups that a block merges
/// together and one by one.
TEST(ChannelsLastGroups, UglyImages) {
  for (const Shape& shape : {Shape{3, 6, 2, 5},
                             {2, 16, 70, 65},
                             {1, 7, 40, 41},
                             {2, 520, 3, 4},
                             {3, 2, 90, 91},
                             {5, 24, 3, 2, 7},
                             {1, 64, 129}}) {
    for (const DType dtype : kStored) {
      // Large images of one type are enough for the sanitizer.
      const bool large = element_count(shape) > 10000;
      if (under_address_sanitizer() && large && dtype != DType::kBF16) continue;
      const Tensor x = random(dtype, shape, 4, 7), dy = random(dtype, shape, -1, 1, 2);
      check_groups(x, dy, DType::kF32);
      if (dtype == DType::kBF16) check_groups(x, dy, dtype);
    }
  }
}

/// Channels of a group whose means are far from each other.
TEST(ChannelsLastGroups, ChannelsFarApart) {
  const Shape shape{2, 8, 31, 33};
  const int64_t plane = shape[2] * shape[3];
  Tensor x = random(DType::kF32, shape, -1, 1);
  auto elements = x.mutable_data<float>();
  for (size_t i = 0; i < elements.size(); ++i)
    elements[i] += 5 * static_cast<float>(static_cast<int64_t>(i) / plane % 8);
  check_groups(x, random(DType::kF32, shape, -1, 1, 2), DType::kF32);
}

/// The reference in f32 rounds the mean, as much as 5e-4 here: that in f64 says what is right.
TEST(ChannelsLastGroups, FarFromZeroIsAsInF64) {
  if (test::tested_device() == "none") GTEST_SKIP() << "no device";
  const Shape shape{2, 8, 31, 33}, c{8};
  const Tensor x = random(DType::kF32, shape, 9999, 10001), dy = random(DType::kF32, shape, -1, 1),
               scale = random(DType::kF32, c, 0.5, 2, 3), bias = random(DType::kF32, c, -1, 1, 4);
  Attributes attributes;
  attributes.set("num_groups", int64_t{2});
  const auto both = [&](std::string_view domain, std::string_view op, std::vector<Tensor> operands,
                        size_t results) {
    Call call{domain, op, operands, attributes, {{DType::kF32, shape}}};
    for (size_t i = 1; i < results; ++i) call.outputs.push_back({DType::kF32, c});
    const std::vector<Tensor> got = run_last(call, ~0u, ~0u, false);
    for (Tensor& operand : call.inputs) operand = operand.cast_to(DType::kF64);
    for (Result& result : call.outputs) result.dtype = DType::kF64;
    const std::vector<Tensor> wanted = on_cpu(call);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < got.size(); ++i) {
      for (int64_t at = 0; at < got[i].size(); ++at) {
        const double want = wanted[i].at_as_double(at);
        // Results are rounded once; sums in f64 of a thousand numbers of 1e4 lose 1e-9 of them.
        ASSERT_NEAR(got[i].at_as_double(at), want, 1e-6 * std::max(1.0, std::fabs(want)))
            << op << ", result " << i << ", element " << at;
      }
    }
  };
  both("", "GroupNormalization", {x, scale, bias}, 1);
  both(kOwn, "GroupNormalizationGrad", {dy, x, scale}, 3);
}

TEST(ChannelsLastGroups, OthersStayPlain) {
  if (test::tested_device() == "none") GTEST_SKIP();
  const auto expect_plain = [](const Call& call) {
    EXPECT_TRUE(run_last(call, ~0u, ~0u, false).empty());
  };
  const Tensor scale = random(DType::kF32, {4}, 0.5, 2, 3), bias = random(DType::kF32, {4}, 0, 1);
  for (const Shape& shape : {Shape{0, 4, 3, 3}, {2, 4, 1, 1}, {2, 4, 0, 3}}) {
    expect_plain({"",
                  "InstanceNormalization",
                  {random(DType::kBF16, shape), scale, bias},
                  {},
                  {{DType::kBF16, shape}}});
  }
  const Tensor wide = random(DType::kF64, {2, 4, 3, 3});
  expect_plain(
      {"", "InstanceNormalization", {wide, scale, bias}, {}, {{DType::kF64, wide.shape()}}});
}

}  // namespace
}  // namespace halfnote::cuda_emulated
