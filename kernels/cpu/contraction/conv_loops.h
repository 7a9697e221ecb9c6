// The three reference loops of a convolution on plain row-major data in math type M. Each output
// element is summed by one thread in a fixed order.
#pragma once

#include "kernels/cpu/contraction/conv_plan.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

/// Columns of a row that are summed at a time.
inline constexpr int64_t kRowPiece = 512;

/// Adds w[k]·x to `sums`, the outputs [column, column + count) of row (od, oh) of one filter; `x`
/// is one channel.
template <class M>
void add_channel(const ConvPlan& p, const M* x, const M* w, int64_t od, int64_t oh, int64_t column,
                 int64_t count, M* sums) {
  for (int64_t kd = 0; kd < p.kernel[0]; ++kd) {
    const int64_t d = od * p.stride[0] + p.offset(0, kd);
    if (d < 0 || d >= p.in[0]) continue;
    for (int64_t kh = 0; kh < p.kernel[1]; ++kh) {
      const int64_t h = oh * p.stride[1] + p.offset(1, kh);
      if (h < 0 || h >= p.in[1]) continue;
      const M* line = x + (d * p.in[1] + h) * p.in[2];
      for (int64_t kw = 0; kw < p.kernel[2]; ++kw) {
        const M factor = w[(kd * p.kernel[1] + kh) * p.kernel[2] + kw];
        const int64_t stride = p.stride[2];
        const int64_t offset = p.offset(2, kw) + column * stride;
        const Range range = outputs_within(0, p.in[2], stride, offset, count);
        if (stride == 1) {
          for (int64_t i = range.first; i < range.last; ++i) sums[i] += factor * line[i + offset];
        } else {
          for (int64_t i = range.first; i < range.last; ++i) {
            sums[i] += factor * line[i * stride + offset];
          }
        }
      }
    }
  }
}

/// Adds w[k]·dy to `sums`, the elements [column, column + count) of row (d, h) of one channel of x;
/// `dy` is one filter.
template <class M>
void add_filter(const ConvPlan& p, const M* dy, const M* w, int64_t d, int64_t h, int64_t column,
                int64_t count, M* sums) {
  const auto output = [&p](size_t dim, int64_t position, int64_t k) -> int64_t {
    const int64_t at = position - p.offset(dim, k);
    if (at < 0 || at % p.stride[dim] != 0 || at / p.stride[dim] >= p.out[dim]) return -1;
    return at / p.stride[dim];
  };
  for (int64_t kd = 0; kd < p.kernel[0]; ++kd) {
    const int64_t od = output(0, d, kd);
    if (od < 0) continue;
    for (int64_t kh = 0; kh < p.kernel[1]; ++kh) {
      const int64_t oh = output(1, h, kh);
      if (oh < 0) continue;
      const M* line = dy + (od * p.out[1] + oh) * p.out[2];
      for (int64_t kw = 0; kw < p.kernel[2]; ++kw) {
        const M factor = w[(kd * p.kernel[1] + kh) * p.kernel[2] + kw];
        const int64_t stride = p.stride[2];
        const int64_t offset = p.offset(2, kw) - column;
        const Range range = outputs_within(0, count, stride, offset, p.out[2]);
        if (stride == 1) {
          for (int64_t o = range.first; o < range.last; ++o) sums[o + offset] += factor * line[o];
        } else {
          for (int64_t o = range.first; o < range.last; ++o) {
            sums[o * stride + offset] += factor * line[o];
          }
        }
      }
    }
  }
}

/// The sum of a[i]·b[i·stride], in eight interleaved partial sums so that the compiler may use
/// vectors.
template <class M>
M strided_dot(const M* a, const M* b, int64_t stride, int64_t count) {
  constexpr int64_t kLanes = 8;
  M lanes[kLanes] = {};
  int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= count; i += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) lanes[l] += a[i + l] * b[i + l];
    }
  }
  for (; i < count; ++i) lanes[i % kLanes] += a[i] * b[i * stride];
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
         ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

/// The gradient of weight element `k` from one image: `dy` is one filter, `x` one channel. Rows are
/// summed in M, and added up in double.
template <class M>
double weight_gradient(const ConvPlan& p, const M* dy, const M* x, const ConvPlan::Dims& k) {
  double sum = 0;
  const auto range = [&p, &k](size_t d) {
    return outputs_within(0, p.in[d], p.stride[d], p.offset(d, k[d]), p.out[d]);
  };
  const Range depth = range(0), height = range(1), width = range(2);
  if (width.empty()) return 0;
  for (int64_t od = depth.first; od < depth.last; ++od) {
    const int64_t d = od * p.stride[0] + p.offset(0, k[0]);
    for (int64_t oh = height.first; oh < height.last; ++oh) {
      const int64_t h = oh * p.stride[1] + p.offset(1, k[1]);
      const M* left = dy + (od * p.out[1] + oh) * p.out[2] + width.first;
      const M* right =
          x + (d * p.in[1] + h) * p.in[2] + width.first * p.stride[2] + p.offset(2, k[2]);
      sum += strided_dot(left, right, p.stride[2], width.last - width.first);
    }
  }
  return sum;
}

}  // namespace halfnote::cpu
