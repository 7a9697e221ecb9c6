// RoiAlign and the gradient of its mean: regions of an image, each pooled to one size from samples
// between the pixels.
#include "kernels/cpu/reduction/roi_align.h"

#include <algorithm>
#include <limits>

#include "kernels/cpu/movement/parts.h"
#include "kernels/cpu/reals.h"
#include "kernels/cpu/reduction/parts.h"

namespace halfnote::cpu {

namespace {

/// `pool(bin, samples)` gets the samples of each bin of region `n`.
template <class Pool>
void walk(const RoiPlan& plan, const std::byte* regions, DType type, int64_t n, Pool&& pool) {
  double corners[4] = {};
  load_reals(regions, type, n * 4, 4, corners);
  const RoiRegion region = plan.region(corners);
  if (region.is_too_large) throw too_many_samples();
  std::vector<RoiSample> samples;
  for (int64_t bin = 0; bin < plan.bins(); ++bin) {
    samples.clear();
    for (int64_t i = 0; i < region.samples(); ++i) {
      samples.push_back(plan.sample(region, bin, i));
    }
    pool(bin, samples);
  }
}

/// The mean of the samples, or the largest weighted pixel of all, as ONNX's reference has it.
double pooled(const RoiPlan& plan, const std::vector<RoiSample>& samples, const std::byte* x,
              DType type, int64_t plane) {
  double sum = 0, most = -std::numeric_limits<double>::infinity();
  for (const RoiSample& sample : samples) {
    for (size_t k = 0; k < 4; ++k) {
      const double part = sample.weight[k] * read_real(x, type, plane + sample.at[k]);
      sum += part;
      most = std::max(most, part);
    }
  }
  if (samples.empty()) return 0;
  return plan.largest ? most : sum / static_cast<double>(samples.size());
}

/// `image` and `result` are X and Y, or their gradients.
std::string plan_operands(const KernelCall& call, const Operand& image, const Operand& result,
                          RoiPlan& plan) {
  const Shape &x = image.shape, &rois = call.inputs[1].shape, &y = result.shape;
  const bool typed =
      is_real(image.dtype) && is_real(call.inputs[1].dtype) && result.dtype == image.dtype;
  if (!typed) return "no floats";
  if (std::string reason = unfit_indices(call, 2); !reason.empty()) return reason;
  if (x.size() != 4 || rois.size() != 2 || rois[1] != 4 || y.size() != 4 || y[0] != rois[0] ||
      y[1] != x[1] || call.inputs[2].shape != Shape{rois[0]} || x[2] < 1 || x[3] < 1) {
    return "image, regions and output do not fit";
  }
  const Attributes& attributes = attributes_of(call);
  const std::string mode = attributes.get_string("mode", "avg");
  if (mode != "avg" && mode != "max") return "unknown mode '" + mode + "'";
  plan.half_pixel =
      attributes.get_string("coordinate_transformation_mode", "half_pixel") == "half_pixel";
  plan.offset = plan.half_pixel ? 0.5 : 0;
  plan.largest = mode == "max";
  plan.ratio = attributes.get_int("sampling_ratio", 0);
  if (plan.ratio > kMostRoiSamples) throw too_many_samples();
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
  if (std::string why = plan_roi_align(call, plan); !why.empty()) return Prepared::no(why);
  return make_kernel([plan, type = call.inputs[0].dtype, corner_type = call.inputs[1].dtype,
                      images = call.inputs[0].shape[0], regions = call.inputs[1].shape[0],
                      reader = IndexReader(call, 2)](const KernelBuffers& buffers) {
    for (int64_t n = 0; n < regions; ++n) {
      const int64_t image = reader.read(buffers, n, images);
      walk(plan, buffers.inputs[1], corner_type, n,
           [&](int64_t bin, const std::vector<RoiSample>& samples) {
             for (int64_t c = 0; c < plan.channels; ++c) {
               const double value = pooled(plan, samples, buffers.inputs[0], type,
                                           (image * plan.channels + c) * plan.area());
               write_real(value, buffers.outputs[0], type,
                          (n * plan.channels + c) * plan.bins() + bin);
             }
           });
    }
  });
}

/// Sums in f64.
Prepared prepare_roi_align_grad(const KernelCall& call) {
  RoiPlan plan;
  if (std::string why = plan_roi_align_grad(call, plan); !why.empty()) return Prepared::no(why);
  const int64_t size = call.outputs[0].size();
  const auto body = [plan, size, type = call.inputs[0].dtype, corner_type = call.inputs[1].dtype,
                     images = call.outputs[0].shape[0], regions = call.inputs[1].shape[0],
                     reader = IndexReader(call, 2)](const KernelBuffers& buffers) {
    const int64_t bins = plan.bins(), area = plan.area();
    auto* sums = reinterpret_cast<double*>(buffers.workspace);
    std::fill(sums, sums + size, 0.0);
    for (int64_t n = 0; n < regions; ++n) {
      double* image = sums + reader.read(buffers, n, images) * plan.channels * area;
      const auto pool = [&](int64_t bin, const std::vector<RoiSample>& samples) {
        for (int64_t c = 0; c < plan.channels; ++c) {
          const int64_t at = (n * plan.channels + c) * bins + bin;
          const double share =
              read_real(buffers.inputs[0], type, at) / static_cast<double>(samples.size());
          for (const RoiSample& sample : samples) {
            for (size_t k = 0; k < 4; ++k)
              image[c * area + sample.at[k]] += sample.weight[k] * share;
          }
        }
      };
      walk(plan, buffers.inputs[1], corner_type, n, pool);
    }
    for (int64_t i = 0; i < size; ++i) write_real(sums[i], buffers.outputs[0], type, i);
  };
  return make_kernel(body, static_cast<size_t>(size) * sizeof(double));
}

}  // namespace

Error too_many_samples() {
  return Error(ErrorCode::kData, "a region is too large")
      .at({.op = "RoiAlign"})
      .expected("at most " + std::to_string(kMostRoiSamples) + " samples of a bin", "more");
}

std::string plan_roi_align(const KernelCall& call, RoiPlan& plan) {
  if (!call.has_input(0) || !call.has_input(2) || !call.has_output(0)) {
    return "an operand is missing";
  }
  return plan_operands(call, call.inputs[0], call.outputs[0], plan);
}

std::string plan_roi_align_grad(const KernelCall& call, RoiPlan& plan) {
  if (!call.has_input(0) || !call.has_input(2) || !call.has_output(0)) {
    return "an operand is missing";
  }
  if (std::string why = plan_operands(call, call.outputs[0], call.inputs[0], plan); !why.empty()) {
    return why;
  }
  return plan.largest ? "mode 'max'" : "";
}

std::vector<KernelRow> roi_align_rows() {
  return {
      {"", "RoiAlign", "reference", prepare_roi_align},
      {"ai.halfnote", "RoiAlignGrad", "reference", prepare_roi_align_grad},
  };
}

}  // namespace halfnote::cpu
