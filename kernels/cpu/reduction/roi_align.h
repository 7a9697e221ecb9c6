// What RoiAlign and its gradient do, checked, and where their samples lie: for the kernels of every
// device.
#pragma once

#include <string>

#include "base/error.h"
#include "kernels/kernel.h"
#include "kernels/math/host_device.h"

namespace halfnote::cpu {

/// A sample between pixels: four of them with their weights, all zero outside of the image.
struct RoiSample {
  int64_t at[4] = {};
  double weight[4] = {};
};

/// A region in pixels, its bins, and how many samples each has.
struct RoiRegion {
  double top = 0, left = 0, bin_h = 0, bin_w = 0;
  int64_t rows = 0, columns = 0;  // of samples
  bool is_too_large = false;      // then without samples

  HN_HD int64_t samples() const { return rows * columns; }
};

// A bin of more samples is none of an image: each takes time.
inline constexpr int64_t kMostRoiSamples = int64_t{1} << 22;

struct RoiPlan {
  int64_t channels = 0, height = 0, width = 0, out_height = 0, out_width = 0, ratio = 0;
  double scale = 1, offset = 0;
  bool half_pixel = true, largest = false;

  HN_HD int64_t bins() const { return out_height * out_width; }
  HN_HD int64_t area() const { return height * width; }

  /// Samples along one side of a bin; what is nowhere has one, which gives NaN.
  HN_HD int64_t samples_along(double bin) const {
    if (ratio > 0) return ratio;
    if (bin != bin) return 1;
    if (bin > static_cast<double>(kMostRoiSamples)) return kMostRoiSamples + 1;
    return bin > 0 ? static_cast<int64_t>(math::ceil(bin)) : 0;
  }
  /// From the corners x1, y1, x2, y2.
  HN_HD RoiRegion region(const double (&corners)[4]) const {
    RoiRegion region;
    region.left = corners[0] * scale - offset;
    region.top = corners[1] * scale - offset;
    double w = corners[2] * scale - offset - region.left;
    double h = corners[3] * scale - offset - region.top;
    if (!half_pixel) {  // NaN stays
      w = w < 1 ? 1.0 : w;
      h = h < 1 ? 1.0 : h;
    }
    region.bin_h = h / static_cast<double>(out_height);
    region.bin_w = w / static_cast<double>(out_width);
    region.rows = samples_along(region.bin_h);
    region.columns = samples_along(region.bin_w);
    if (region.rows > kMostRoiSamples || region.columns > kMostRoiSamples ||
        region.samples() > kMostRoiSamples) {
      region.rows = region.columns = 0;
      region.is_too_large = true;
    }
    return region;
  }
  /// Where a row or a column of bins begins.
  HN_HD static double first_y(const RoiRegion& region, int64_t row) {
    return region.top + static_cast<double>(row) * region.bin_h;
  }
  HN_HD static double first_x(const RoiRegion& region, int64_t column) {
    return region.left + static_cast<double>(column) * region.bin_w;
  }
  /// Sample `i` of a bin, row by row.
  HN_HD RoiSample sample(const RoiRegion& region, int64_t bin, int64_t i) const {
    const int64_t row = i / region.columns, column = i % region.columns;
    return between(
        first_y(region, bin / out_width) +
            (static_cast<double>(row) + 0.5) * region.bin_h / static_cast<double>(region.rows),
        first_x(region, bin % out_width) + (static_cast<double>(column) + 0.5) * region.bin_w /
                                               static_cast<double>(region.columns));
  }

 private:
  /// Up to one pixel outside counts as the border, further out as nothing. What is nowhere is NaN.
  HN_HD RoiSample between(double y, double x) const {
    RoiSample sample;
    if (y != y || x != x) {
      for (double& weight : sample.weight) weight = y + x;
      return sample;
    }
    if (y < -1 || y > static_cast<double>(height) || x < -1 || x > static_cast<double>(width)) {
      return sample;
    }
    int64_t top = 0, bottom = 0, left = 0, right = 0;
    const double down = split(y, height, top, bottom), along = split(x, width, left, right);
    sample.at[0] = top * width + left;
    sample.at[1] = top * width + right;
    sample.at[2] = bottom * width + left;
    sample.at[3] = bottom * width + right;
    sample.weight[0] = (1 - down) * (1 - along);
    sample.weight[1] = (1 - down) * along;
    sample.weight[2] = down * (1 - along);
    sample.weight[3] = down * along;
    return sample;
  }
  HN_HD static double split(double position, int64_t size, int64_t& low, int64_t& high) {
    position = position < 0 ? 0.0 : position;
    low = static_cast<int64_t>(position) < size - 1 ? static_cast<int64_t>(position) : size - 1;
    high = low + 1 < size - 1 ? low + 1 : size - 1;
    return low == high ? 0.0 : position - static_cast<double>(low);
  }
};

/// Of a region with more samples of a bin than kMostRoiSamples.
Error too_many_samples();

/// Of RoiAlign's operands, and of its gradient's (dY, regions, images, shape of X): the reason why
/// there is no kernel, or an empty string; Error(kData) for too many samples.
std::string plan_roi_align(const KernelCall& call, RoiPlan& plan);
std::string plan_roi_align_grad(const KernelCall& call, RoiPlan& plan);

}  // namespace halfnote::cpu
