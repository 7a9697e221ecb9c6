// What Group- and InstanceNormalization compute with the sums of a group, for every walk that takes
// them.
#pragma once

#include "kernels/cuda/normalization/line_norm.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

/// The moments of `count` elements by the sum of their distances from `origin` and its squares.
__device__ inline Moments<double> moments_of_sums(double origin, double sum, double squares,
                                                  double count, double epsilon) {
  const double mean = sum / count, variance = squares / count - mean * mean;
  return {origin + mean, 1 / math::sqrt((variance > 0 ? variance : 0) + epsilon)};
}

/// What each (image, channel) gives to the gradients of scale and bias, added up over the images,
/// in order.
struct SumOverBatch {
  const double *d_scales, *d_biases;
  int64_t batch, channels;
  RealOutput d_scale, d_bias;
  __device__ void operator()(int64_t channel) const {
    double scale = 0, bias = 0;
    HN_UNROLL_BY_4
    for (int64_t n = 0; n < batch; ++n) {
      scale += d_scales[n * channels + channel];
      bias += d_biases[n * channels + channel];
    }
    if (d_scale.data != nullptr) d_scale.write(channel, scale);
    if (d_bias.data != nullptr) d_bias.write(channel, bias);
  }
};

}  // namespace halfnote::HN_CUDA
