// DeformConv, planned by kernels/cpu/contraction/deform_conv.h: an element of the result a thread,
// its sum in f64 in the order of the CPU.
#include "kernels/cpu/contraction/deform_conv.h"

#include "kernels/cuda/contraction/conv_place.h"
#include "kernels/cuda/contraction/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

struct DeformElement {
  DeviceConv p;
  int64_t offset_groups;
  RealPointer x, w, offsets, bias, mask;
  RealOutput y;

  /// What a tap reads of a channel.
  __device__ double read(int64_t n, int64_t channel, int64_t tap, int64_t place) const {
    const int64_t group = n * offset_groups + channel / (p.channels / offset_groups);
    const int64_t at = group * p.kernel_size + tap;
    const int64_t kh = tap / p.kernel[2], kw = tap % p.kernel[2];
    const int64_t oh = place / p.out[2], ow = place % p.out[2];
    const double down = static_cast<double>(oh * p.stride[1] + kh * p.dilation[1] - p.pad[1]) +
                        offsets[at * 2 * p.out_size + place];
    const double along = static_cast<double>(ow * p.stride[2] + kw * p.dilation[2] - p.pad[2]) +
                         offsets[(at * 2 + 1) * p.out_size + place];
    const int64_t image = (n * p.channels + channel) * p.in_size;
    return cpu::between_pixels([&](int64_t i) { return x[image + i]; }, p.in[1], p.in[2], down,
                               along);
  }
  __device__ void operator()(int64_t i) const {
    const int64_t place = i % p.out_size, m = i / p.out_size % p.filters;
    const int64_t n = i / p.out_size / p.filters;
    const int64_t first = m / p.group_filters * p.group_channels;
    double sum = bias.data == nullptr ? 0 : bias[m];
    for (int64_t c = 0; c < p.group_channels; ++c) {
      const int64_t group = n * offset_groups + (first + c) / (p.channels / offset_groups);
      for (int64_t tap = 0; tap < p.kernel_size; ++tap) {
        const int64_t at = (group * p.kernel_size + tap) * p.out_size + place;
        const double factor = mask.data == nullptr ? 1 : mask[at];
        sum += w[(m * p.group_channels + c) * p.kernel_size + tap] * factor *
               read(n, first + c, tap, place);
      }
    }
    y.write(i, sum);
  }
};

Prepared prepare_deform_conv(const KernelCall& call) {
  cpu::DeformPlan plan;
  if (std::string why = cpu::plan_deform(call, plan); !why.empty()) return Prepared::no(why);
  return make_kernel([conv = DeviceConv(plan.conv), groups = plan.offset_groups, type = plan.type,
                      count = call.outputs[0].size()](const KernelBuffers& buffers) {
    const auto operand = [&](size_t i) { return RealPointer{buffers.in<std::byte>(i), type}; };
    for_each(stream_of(buffers), count,
             DeformElement{conv,
                           groups,
                           operand(0),
                           operand(1),
                           operand(2),
                           operand(3),
                           operand(4),
                           {buffers.outputs[0], type}});
  });
}

}  // namespace

std::vector<KernelRow> deform_conv_rows() {
  return {{"", "DeformConv", "own.deform_conv", prepare_deform_conv}};
}

}  // namespace halfnote::HN_CUDA
