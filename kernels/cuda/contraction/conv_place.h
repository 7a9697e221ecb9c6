// A convolution as a kernel's argument: which elements meet which.
#pragma once

#include "kernels/cpu/contraction/conv_plan.h"
#include "kernels/cuda/cuda.h"

namespace halfnote::HN_CUDA {

using cpu::ConvPlan;

/// An index of three dims, from its position.
struct Place {
  int64_t d, h, w;
  __device__ Place(int64_t at, const int64_t (&dims)[3])
      : d(at / dims[2] / dims[1]), h(at / dims[2] % dims[1]), w(at % dims[2]) {}
};

/// A ConvPlan as a kernel's argument.
struct DeviceConv {
  int64_t batch, channels, filters, group_channels, group_filters;
  int64_t in[3], out[3], kernel[3], stride[3], dilation[3], pad[3];
  int64_t in_size, out_size, kernel_size;

  explicit DeviceConv(const ConvPlan& p)
      : batch(p.batch),
        channels(p.channels),
        filters(p.filters),
        group_channels(p.group_channels()),
        group_filters(p.group_filters()),
        in_size(p.in_size()),
        out_size(p.out_size()),
        kernel_size(p.kernel_size()) {
    for (size_t d = 0; d < 3; ++d) {
      in[d] = p.in[d];
      out[d] = p.out[d];
      kernel[d] = p.kernel[d];
      stride[d] = p.stride[d];
      dilation[d] = p.dilation[d];
      pad[d] = p.pad_begin[d];
    }
  }

  /// Where output `o` meets kernel element `k` in x along dim d; -1 in the padding.
  __device__ int64_t input_at(int d, int64_t o, int64_t k) const {
    const int64_t at = o * stride[d] + k * dilation[d] - pad[d];
    return at >= 0 && at < in[d] ? at : -1;
  }
  /// The output that meets input `i` at kernel element `k`; -1 if none does.
  __device__ int64_t output_at(int d, int64_t i, int64_t k) const {
    const int64_t at = i + pad[d] - k * dilation[d];
    if (at < 0 || at % stride[d] != 0 || at / stride[d] >= out[d]) return -1;
    return at / stride[d];
  }
  __device__ int64_t input_index(const Place& o, const Place& k) const {
    const int64_t d = input_at(0, o.d, k.d), h = input_at(1, o.h, k.h), w = input_at(2, o.w, k.w);
    return d < 0 || h < 0 || w < 0 ? -1 : (d * in[1] + h) * in[2] + w;
  }
  __device__ int64_t output_index(const Place& i, const Place& k) const {
    const int64_t d = output_at(0, i.d, k.d), h = output_at(1, i.h, k.h),
                  w = output_at(2, i.w, k.w);
    return d < 0 || h < 0 || w < 0 ? -1 : (d * out[1] + h) * out[2] + w;
  }
};

}  // namespace halfnote::HN_CUDA
