// RoiAlign and the gradient of its mean: regions of an image, each pooled to one size from samples
// between the pixels.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/cpu/movement/parts.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/parts.h"

namespace halfnote::cpu {

namespace {

/// A sample: four pixels with their weights, all zero outside of the image.
struct Sample {
  std::array<int64_t, 4> at{};
  std::array<double, 4> weight{};
};

/// Up to one pixel outside counts as the border, further out as nothing. What is nowhere is NaN.
Sample sample_at(double y, double x, int64_t height, int64_t width) {
  Sample sample;
  if (std::isnan(y) || std::isnan(x)) {
    sample.weight.fill(std::numeric_limits<double>::quiet_NaN());
    return sample;
  }
  if (y < -1 || y > static_cast<double>(height) || x < -1 || x > static_cast<double>(width)) {
    return sample;
  }
  const auto split = [](double position, int64_t size, int64_t& low, int64_t& high) {
    position = std::max(position, 0.0);
    low = std::min(static_cast<int64_t>(position), size - 1);
    high = std::min(low + 1, size - 1);
    return low == high ? 0.0 : position - static_cast<double>(low);
  };
  int64_t top = 0, bottom = 0, left = 0, right = 0;
  const double down = split(y, height, top, bottom), along = split(x, width, left, right);
  sample.at = {top * width + left, top * width + right, bottom * width + left,
               bottom * width + right};
  sample.weight = {(1 - down) * (1 - along), (1 - down) * along, down * (1 - along), down * along};
  return sample;
}

// A bin of more samples is none of an image: each takes time, and 72 bytes.
constexpr int64_t kMostSamples = int64_t{1} << 22;

Error too_many_samples() {
  return Error(ErrorCode::kData, "a region is too large")
      .at({.op = "RoiAlign"})
      .expected("at most " + std::to_string(kMostSamples) + " samples of a bin", "more");
}

struct RoiPlan {
  int64_t channels = 0, height = 0, width = 0, out_height = 0, out_width = 0, ratio = 0;
  double scale = 1, offset = 0;
  bool half_pixel = true, largest = false;

  /// A region from its corners x1, y1, x2, y2; `pool(bin, samples)` gets the samples of each bin.
  template <class Pool>
  void walk(const std::array<double, 4>& corners, Pool&& pool) const {
    const double left = corners[0] * scale - offset, top = corners[1] * scale - offset;
    double w = corners[2] * scale - offset - left, h = corners[3] * scale - offset - top;
    if (!half_pixel) {
      w = std::max(w, 1.0);
      h = std::max(h, 1.0);
    }
    const double bin_h = h / static_cast<double>(out_height);
    const double bin_w = w / static_cast<double>(out_width);
    const auto count = [this](double bin) {
      if (ratio > 0) return ratio;
      if (std::isnan(bin)) return int64_t{1};  // which gives NaN
      if (bin > static_cast<double>(kMostSamples)) throw too_many_samples();
      return bin > 0 ? static_cast<int64_t>(std::ceil(bin)) : 0;
    };
    const int64_t rows = count(bin_h), columns = count(bin_w);
    if (rows * columns > kMostSamples) throw too_many_samples();
    std::vector<Sample> samples;
    for (int64_t bin = 0; bin < out_height * out_width; ++bin) {
      samples.clear();
      const double y0 = top + static_cast<double>(bin / out_width) * bin_h;
      const double x0 = left + static_cast<double>(bin % out_width) * bin_w;
      for (int64_t i = 0; i < rows; ++i) {
        const double y = y0 + (static_cast<double>(i) + 0.5) * bin_h / static_cast<double>(rows);
        for (int64_t j = 0; j < columns; ++j) {
          const double x =
              x0 + (static_cast<double>(j) + 0.5) * bin_w / static_cast<double>(columns);
          samples.push_back(sample_at(y, x, height, width));
        }
      }
      pool(bin, samples);
    }
  }

  /// The mean of the samples, or the largest weighted pixel of all, as ONNX's reference has it.
  double pooled(const std::vector<Sample>& samples, const std::byte* x, DType type,
                int64_t plane) const {
    double sum = 0, most = -std::numeric_limits<double>::infinity();
    for (const Sample& sample : samples) {
      for (size_t k = 0; k < 4; ++k) {
        const double part = sample.weight[k] * read_real(x, type, plane + sample.at[k]);
        sum += part;
        most = std::max(most, part);
      }
    }
    if (samples.empty()) return 0;
    return largest ? most : sum / static_cast<double>(samples.size());
  }
};

/// `x` and `y` are the types of image and result, or of their gradients.
Prepared plan_roi(const KernelCall& call, const Operand& image, const Operand& result,
                  RoiPlan& plan) {
  if (!call.has_input(2) || !call.has_output(0)) return Prepared::no("an operand is missing");
  const Shape &x = image.shape, &rois = call.inputs[1].shape, &y = result.shape;
  const bool typed =
      is_real(image.dtype) && is_real(call.inputs[1].dtype) && result.dtype == image.dtype;
  if (!typed) return Prepared::no("no floats");
  if (std::string reason = unfit_indices(call, 2); !reason.empty()) return Prepared::no(reason);
  if (x.size() != 4 || rois.size() != 2 || rois[1] != 4 || y.size() != 4 || y[0] != rois[0] ||
      y[1] != x[1] || call.inputs[2].shape != Shape{rois[0]} || x[2] < 1 || x[3] < 1) {
    return Prepared::no("image, regions and output do not fit");
  }
  const Attributes& attributes = attributes_of(call);
  const std::string mode = attributes.get_string("mode", "avg");
  if (mode != "avg" && mode != "max") return Prepared::no("unknown mode '" + mode + "'");
  plan.half_pixel =
      attributes.get_string("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  plan.offset = plan.half_pixel ? 0.5 : 0;
  plan.largest = mode == "max";
  plan.ratio = attributes.get_int("sampling_ratio", 0);
  if (plan.ratio > kMostSamples) throw too_many_samples();
  plan.scale = attributes.get_float("spatial_scale", 1);
  plan.channels = x[1];
  plan.height = x[2];
  plan.width = x[3];
  plan.out_height = y[2];
  plan.out_width = y[3];
  return {};
}

Prepared prepare_roi_align(const KernelCall& call) {
  RoiPlan plan;
  if (Prepared refused = plan_roi(call, call.inputs[0], call.outputs[0], plan);
      !refused.refusal.empty())
    return refused;
  return make_kernel([plan, type = call.inputs[0].dtype, corner_type = call.inputs[1].dtype,
                      images = call.inputs[0].shape[0], regions = call.inputs[1].shape[0],
                      reader = IndexReader(call, 2)](const KernelBuffers& buffers) {
    const int64_t bins = plan.out_height * plan.out_width, area = plan.height * plan.width;
    for (int64_t n = 0; n < regions; ++n) {
      std::array<double, 4> corners{};
      load_reals(buffers.inputs[1], corner_type, n * 4, 4, corners.data());
      const int64_t image = reader.read(buffers, n, images);
      plan.walk(corners, [&](int64_t bin, const std::vector<Sample>& samples) {
        for (int64_t c = 0; c < plan.channels; ++c) {
          const double value =
              plan.pooled(samples, buffers.inputs[0], type, (image * plan.channels + c) * area);
          write_real(value, buffers.outputs[0], type, (n * plan.channels + c) * bins + bin);
        }
      });
    }
  });
}

/// Operands: dY, regions, images, shape of X. Sums in f64.
Prepared prepare_roi_align_grad(const KernelCall& call) {
  if (!call.has_input(0) || !call.has_output(0)) return Prepared::no("an operand is missing");
  RoiPlan plan;
  Prepared refused = plan_roi(call, call.outputs[0], call.inputs[0], plan);
  if (!refused.refusal.empty()) return refused;
  if (plan.largest) return Prepared::no("mode 'max'");
  const int64_t size = call.outputs[0].size();
  const auto body = [plan, size, type = call.inputs[0].dtype, corner_type = call.inputs[1].dtype,
                     images = call.outputs[0].shape[0], regions = call.inputs[1].shape[0],
                     reader = IndexReader(call, 2)](const KernelBuffers& buffers) {
    const int64_t bins = plan.out_height * plan.out_width, area = plan.height * plan.width;
    auto* sums = reinterpret_cast<double*>(buffers.workspace);
    std::fill(sums, sums + size, 0.0);
    for (int64_t n = 0; n < regions; ++n) {
      std::array<double, 4> corners{};
      load_reals(buffers.inputs[1], corner_type, n * 4, 4, corners.data());
      double* image = sums + reader.read(buffers, n, images) * plan.channels * area;
      plan.walk(corners, [&](int64_t bin, const std::vector<Sample>& samples) {
        for (int64_t c = 0; c < plan.channels; ++c) {
          const int64_t at = (n * plan.channels + c) * bins + bin;
          const double share =
              read_real(buffers.inputs[0], type, at) / static_cast<double>(samples.size());
          for (const Sample& sample : samples) {
            for (size_t k = 0; k < 4; ++k)
              image[c * area + sample.at[k]] += sample.weight[k] * share;
          }
        }
      });
    }
    for (int64_t i = 0; i < size; ++i) write_real(sums[i], buffers.outputs[0], type, i);
  };
  return make_kernel(body, static_cast<size_t>(size) * sizeof(double));
}

}  // namespace

std::vector<KernelRow> roi_align_rows() {
  return {
      {"", "RoiAlign", "reference", prepare_roi_align},
      {"ai.halfnote", "RoiAlignGrad", "reference", prepare_roi_align_grad},
  };
}

}  // namespace halfnote::cpu
