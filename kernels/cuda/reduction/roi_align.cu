// RoiAlign and the gradient of its mean, planned by kernels/cpu/reduction/roi_align.h: an element
// of the result a thread. The gradient has a thread look for the samples that touch its pixel,
// region by region, for some channels at once: nothing is added by atomics, and the sums are those
// of the CPU bit by bit.
#include "kernels/cpu/reduction/roi_align.h"

#include "kernels/cuda/reduction/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::RoiPlan;
using cpu::RoiRegion;
using cpu::RoiSample;

/// The regions, and the image that each lies in.
struct Regions {
  RoiPlan plan;
  RealPointer corners;
  IndexPointer image_of;
  int64_t count, images;
  FaultPlace fault;

  __device__ RoiRegion operator[](int64_t n) const {
    const double own[4] = {corners[n * 4], corners[n * 4 + 1], corners[n * 4 + 2],
                           corners[n * 4 + 3]};
    const RoiRegion region = plan.region(own);
    if (region.is_too_large) note_fault(fault, DeviceFault::kRegion, 0, 0);
    return region;
  }
  __device__ int64_t image(int64_t n) const { return image_of.read(n, images, fault); }
};

Regions regions_of(const KernelCall& call, const RoiPlan& plan, int64_t images) {
  return {plan,
          {nullptr, call.inputs[1].dtype},
          {nullptr, call.inputs[2].dtype == DType::kI64},
          call.inputs[1].shape[0],
          images,
          nullptr};
}

Regions placed(Regions regions, const KernelBuffers& buffers) {
  regions.corners.data = buffers.inputs[1];
  regions.image_of.data = buffers.inputs[2];
  regions.fault = stream_of(buffers).fault();
  return regions;
}

/// The mean of the samples, or the largest weighted pixel of all.
struct PoolElement {
  Regions regions;
  RealPointer x;
  RealOutput y;
  __device__ void operator()(int64_t i) const {
    const RoiPlan& plan = regions.plan;
    const int64_t bin = i % plan.bins(), c = i / plan.bins() % plan.channels;
    const int64_t n = i / plan.bins() / plan.channels;
    const RoiRegion region = regions[n];
    const int64_t plane = (regions.image(n) * plan.channels + c) * plan.area();
    double sum = 0, most = -INFINITY;
    for (int64_t s = 0; s < region.samples(); ++s) {
      const RoiSample sample = plan.sample(region, bin, s);
      for (int k = 0; k < 4; ++k) {
        const double part = sample.weight[k] * x[plane + sample.at[k]];
        sum += part;
        most = most < part ? part : most;
      }
    }
    const double mean = sum / static_cast<double>(region.samples());
    y.write(i, region.samples() == 0 ? 0.0 : plan.largest ? most : mean);
  }
};

/// A region with the image that it lies in.
struct PlacedRegion {
  RoiRegion region;
  int64_t image;
};

struct PlaceRegion {
  Regions regions;
  PlacedRegion* to;
  __device__ void operator()(int64_t n) const { to[n] = {regions[n], regions.image(n)}; }
};

/// The gradient of a pixel in kTogether channels, which share the search.
struct GradPixel {
  static constexpr int kTogether = 8;

  RoiPlan plan;
  const PlacedRegion* regions;
  int64_t count;
  RealPointer dy;
  RealOutput dx;

  /// Lie bins, or a region, so far from a row of pixels that no sample touches it? Samples outside
  /// of the image, and those that are nowhere, have pixel 0. (Exact up to coordinates of 1e15.)
  __device__ static bool is_far(double first, double length, int64_t at) {
    const double end = first + length, place = static_cast<double>(at);
    const double low = first < end ? first : end, high = first < end ? end : first;
    return place < low - 2 || place > high + 2;
  }
  /// `slopes`: the first channel's place in dY.
  __device__ void add_bin(const RoiRegion& region, int64_t bin, int64_t pixel, int64_t slopes,
                          int channels, double (&sums)[kTogether]) const {
    double shares[kTogether];
    HN_UNROLL
    for (int v = 0; v < kTogether; ++v) {
      shares[v] = v < channels
                      ? dy[slopes + v * plan.bins() + bin] / static_cast<double>(region.samples())
                      : 0;
    }
    for (int64_t s = 0; s < region.samples(); ++s) {
      const RoiSample sample = plan.sample(region, bin, s);
      HN_UNROLL
      for (int k = 0; k < 4; ++k) {
        if (sample.at[k] != pixel) continue;
        HN_UNROLL
        for (int v = 0; v < kTogether; ++v) sums[v] += sample.weight[k] * shares[v];
      }
    }
  }
  __device__ void operator()(int64_t i) const {
    const int64_t chunks = (plan.channels + kTogether - 1) / kTogether;
    const int64_t pixel = i % plan.area(), first = i / plan.area() % chunks * kTogether;
    const int64_t image = i / plan.area() / chunks;
    const int64_t row = pixel / plan.width, column = pixel % plan.width;
    const auto channels =
        static_cast<int>(plan.channels - first < kTogether ? plan.channels - first : kTogether);
    double sums[kTogether] = {};
    const auto misses = [pixel](double begin, double length, int64_t at) {
      return pixel != 0 && is_far(begin, length, at);
    };
    const auto bin_rows = static_cast<double>(plan.out_height);
    const auto bin_columns = static_cast<double>(plan.out_width);
    for (int64_t n = 0; n < count; ++n) {
      const RoiRegion& region = regions[n].region;
      if (regions[n].image != image) continue;
      if (misses(region.top, bin_rows * region.bin_h, row)) continue;
      if (misses(region.left, bin_columns * region.bin_w, column)) continue;
      for (int64_t y = 0; y < plan.out_height; ++y) {
        if (misses(RoiPlan::first_y(region, y), region.bin_h, row)) continue;
        for (int64_t x = 0; x < plan.out_width; ++x) {
          if (misses(RoiPlan::first_x(region, x), region.bin_w, column)) continue;
          add_bin(region, y * plan.out_width + x, pixel, (n * plan.channels + first) * plan.bins(),
                  channels, sums);
        }
      }
    }
    for (int v = 0; v < channels; ++v)
      dx.write((image * plan.channels + first + v) * plan.area() + pixel, sums[v]);
  }
};

Prepared prepare_roi_align(const KernelCall& call) {
  RoiPlan plan;
  if (std::string why = cpu::plan_roi_align(call, plan); !why.empty()) return Prepared::no(why);
  return make_kernel([regions = regions_of(call, plan, call.inputs[0].shape[0]),
                      type = call.inputs[0].dtype,
                      count = call.outputs[0].size()](const KernelBuffers& buffers) {
    for_each(stream_of(buffers), count,
             PoolElement{
                 placed(regions, buffers), {buffers.inputs[0], type}, {buffers.outputs[0], type}});
  });
}

Prepared prepare_roi_align_grad(const KernelCall& call) {
  RoiPlan plan;
  if (std::string why = cpu::plan_roi_align_grad(call, plan); !why.empty()) {
    return Prepared::no(why);
  }
  const int64_t images = call.outputs[0].shape[0];
  const int64_t chunks = (plan.channels + GradPixel::kTogether - 1) / GradPixel::kTogether;
  const Regions regions = regions_of(call, plan, images);
  const auto body = [=, type = call.inputs[0].dtype](const KernelBuffers& buffers) {
    Stream& stream = stream_of(buffers);
    auto* found = reinterpret_cast<PlacedRegion*>(buffers.workspace);
    for_each(stream, regions.count, PlaceRegion{placed(regions, buffers), found});
    for_each(
        stream, images * chunks * plan.area(),
        GradPixel{
            plan, found, regions.count, {buffers.inputs[0], type}, {buffers.outputs[0], type}});
  };
  return make_kernel(body, static_cast<size_t>(regions.count) * sizeof(PlacedRegion));
}

}  // namespace

std::vector<KernelRow> roi_align_rows() {
  return {
      {"", "RoiAlign", "own.roi", prepare_roi_align},
      {"ai.halfnote", "RoiAlignGrad", "own.roi", prepare_roi_align_grad},
  };
}

}  // namespace halfnote::HN_CUDA
