// What a convolution computes, with one to three spatial dims (padded with leading ones to three).
// The forward op, its two gradients and ConvTranspose (the gradient for the input, used as a
// forward op) share one plan:
//   y[n, m, o] = sum over c, k of x[n, c, o·stride + k·dilation - pad] · w[m, c, k]   (per group)
#pragma once

#include <array>
#include <cstdint>

#include "kernels/kernel.h"

namespace halfnote::cpu {

struct ConvPlan {
  using Dims = std::array<int64_t, 3>;
  int64_t batch = 0, channels = 0, filters = 0, groups = 1;  // C of x, M of y
  size_t spatial = 0;                                        // dims in use, the last ones
  Dims in{1, 1, 1}, out{1, 1, 1}, kernel{1, 1, 1}, stride{1, 1, 1}, dilation{1, 1, 1};
  Dims pad_begin{0, 0, 0}, pad_end{0, 0, 0};

  int64_t in_size() const { return in[0] * in[1] * in[2]; }
  int64_t out_size() const { return out[0] * out[1] * out[2]; }
  int64_t kernel_size() const { return kernel[0] * kernel[1] * kernel[2]; }
  int64_t group_channels() const { return channels / groups; }
  int64_t group_filters() const { return filters / groups; }
  int64_t x_size() const { return batch * channels * in_size(); }
  int64_t y_size() const { return batch * filters * out_size(); }
  int64_t w_size() const { return filters * group_channels() * kernel_size(); }
  /// Multiply-adds of the whole op.
  int64_t work() const { return y_size() * group_channels() * kernel_size(); }

  /// Where in x, along dim d, output 0 meets kernel element k.
  int64_t offset(size_t d, int64_t k) const { return k * dilation[d] - pad_begin[d]; }
};

/// Indices [first, last) along one dim.
struct Range {
  int64_t first = 0, last = 0;
  bool empty() const { return first >= last; }
};

/// The outputs in [0, outputs) whose position o·stride + offset lies in [begin, end).
Range outputs_within(int64_t begin, int64_t end, int64_t stride, int64_t offset, int64_t outputs);

/// Each throws Error(kModel) if shapes and attributes do not fit.
ConvPlan plan_conv(const KernelCall& call);
ConvPlan plan_conv_transpose(const KernelCall& call);
ConvPlan plan_conv_grad_input(const KernelCall& call);
ConvPlan plan_conv_grad_weight(const KernelCall& call);

/// Why the rank is not supported; empty if it is.
std::string conv_rank_refusal(const Shape& shape);

}  // namespace halfnote::cpu
