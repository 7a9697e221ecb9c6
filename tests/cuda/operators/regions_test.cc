// RoiAlign, its gradient, and DeformConv on a device: what reads between pixels.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/error.h"
#include "tests/cuda/operators/types.h"

namespace halfnote::cuda_emulated {
namespace {

struct Align {
  Shape image;
  int64_t height, width;  // in bins
  int64_t ratio = 0;
  float scale = 1;
};

const Align kAligns[] = {{{1, 1, 1, 1}, 1, 1},
                         {{2, 3, 9, 7}, 2, 3, 2, 0.5f},
                         {{2, 2, 16, 5}, 3, 1},
                         {{1, 0, 4, 4}, 2, 2},
                         {{2, 1, 33, 40}, 5, 4, 1}};

/// Inside, half outside, outside, turned round, empty, one pixel, a thin one, and one without
/// place.
Tensor regions(DType dtype) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double corners[] = {1, 2, 5, 6, -3, -2, 3, 4, 50, 60, 70, 80, 6, 5, 1,   1,
                            3, 3, 3, 3, 2,  2,  3, 3, 0,  1,  9,  2,  1, 1, nan, 4};
  return Tensor::of<double>({8, 4}, std::span<const double>(corners)).cast_to(dtype);
}

Attributes align_attributes(const Align& c, const std::string& mode, bool half_pixel) {
  return {{"mode", mode},
          {"coordinate_transformation_mode",
           std::string(half_pixel ? "half_pixel" : "output_half_pixel")},
          {"output_height", c.height},
          {"output_width", c.width},
          {"sampling_ratio", c.ratio},
          {"spatial_scale", c.scale}};
}

TEST(CudaRegions, RoiAlignAndItsGradient) {
  for (const DType dtype : kFloats) {
    for (const Align& c : kAligns) {
      const Shape pooled = {8, c.image[1], c.height, c.width};
      const Tensor rois = regions(dtype == DType::kF64 ? dtype : DType::kF32);
      const int64_t last = c.image[0] - 1;
      const Tensor images = integers({0, last, 0, last, last, 0, last, 0}, {8});
      for (const bool half_pixel : {false, true}) {
        for (const std::string mode : {"avg", "max"}) {
          check({"",
                 "RoiAlign",
                 {random(dtype, c.image), rois, images},
                 align_attributes(c, mode, half_pixel),
                 {{dtype, pooled}}});
        }
        check({kOwn,
               "RoiAlignGrad",
               {random(dtype, pooled), rois, images, integers(c.image, {4})},
               align_attributes(c, "avg", half_pixel),
               {{dtype, c.image}}});
      }
    }
  }
}

TEST(CudaRegions, NoRegions) {
  const Align c = {{2, 3, 9, 7}, 2, 3};
  const Tensor rois(DType::kF32, {0, 4}), images(DType::kI64, {0});
  const Attributes how = align_attributes(c, "avg", true);
  check({"",
         "RoiAlign",
         {random(DType::kF32, c.image), rois, images},
         how,
         {{DType::kF32, {0, 3, 2, 3}}}});
  check({kOwn,
         "RoiAlignGrad",
         {Tensor(DType::kF32, {0, 3, 2, 3}), rois, images, integers(c.image, {4})},
         how,
         {{DType::kF32, c.image}}});
}

TEST(CudaRegions, BadDataIsNoted) {
  const Align c = {{1, 1, 4, 4}, 1, 1};
  const Tensor x = random(DType::kF32, c.image);
  const Result result = {DType::kF32, {1, 1, 1, 1}};
  const auto align = [&](float right, int64_t image) -> Call {
    return {"",
            "RoiAlign",
            {x, Tensor::of<float>({1, 4}, {0, 0, right, right}), integers({image}, {1})},
            align_attributes(c, "avg", true),
            {result}};
  };
  check(align(3, 0));
  EXPECT_THROW(on_device(align(3, 1)), Error);     // no such image
  EXPECT_THROW(on_device(align(1e9f, 0)), Error);  // too many samples
  EXPECT_THROW(on_cpu(align(1e9f, 0)), Error);
}

struct Deform {
  Shape image, weight, out;  // of Y only the spatial dims
  int64_t groups = 1, offset_groups = 1, stride = 1, dilation = 1, pad = 0;
};

const Deform kDeforms[] = {
    {{1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1}},
    {{2, 3, 7, 5}, {4, 3, 3, 2}, {5, 4}},
    {{1, 4, 9, 9}, {6, 2, 3, 3}, {5, 5}, 2, 2, 2, 1, 1},
    {{1, 2, 8, 7}, {3, 2, 2, 3}, {8, 5}, 1, 2, 1, 2, 1},
    {{0, 2, 4, 4}, {1, 2, 3, 3}, {2, 2}},
};

Call deform_call(const Deform& c, DType dtype, bool with_bias, bool with_mask) {
  const int64_t taps = c.weight[2] * c.weight[3], places = c.offset_groups * taps;
  const Shape y = {c.image[0], c.weight[0], c.out[0], c.out[1]};
  const Shape offsets = {c.image[0], 2 * places, c.out[0], c.out[1]};
  const Shape mask = {c.image[0], places, c.out[0], c.out[1]};
  return {
      "",
      "DeformConv",
      {random(dtype, c.image), random(dtype, c.weight, -1, 1, 2), random(dtype, offsets, -3, 3, 3),
       with_bias ? random(dtype, {c.weight[0]}, -1, 1, 4) : Tensor(),
       with_mask ? random(dtype, mask, 0, 1, 5) : Tensor()},
      {{"group", c.groups},
       {"offset_group", c.offset_groups},
       {"strides", std::vector<int64_t>{c.stride, c.stride}},
       {"dilations", std::vector<int64_t>{c.dilation, c.dilation}},
       {"pads", std::vector<int64_t>{c.pad, c.pad, c.pad, c.pad}}},
      {{dtype, y}}};
}

TEST(CudaRegions, DeformConv) {
  for (const DType dtype : kFloats) {
    for (const Deform& c : kDeforms) {
      check(deform_call(c, dtype, false, false));
      check(deform_call(c, dtype, true, true));
    }
  }
}

TEST(CudaRegions, OffsetsWithoutPlace) {
  Call call = deform_call(kDeforms[1], DType::kF32, true, false);
  Tensor offsets = call.inputs[2].deep_copy();
  offsets.mutable_data<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  offsets.mutable_data<float>()[9] = std::numeric_limits<float>::infinity();
  offsets.mutable_data<float>()[17] = -1e30f;
  call.inputs[2] = offsets;
  check(call);
}

}  // namespace
}  // namespace halfnote::cuda_emulated
