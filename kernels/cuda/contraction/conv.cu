// Convolutions with plain loops, an element of the result a thread, sums in f64 in a fixed order:
// what is always there, and far from what cuDNN does.
#include "kernels/cpu/contraction/conv_rows.h"
#include "kernels/cuda/contraction/conv_place.h"
#include "kernels/cuda/contraction/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

template <class T>
struct ConvElement {
  DeviceConv p;
  const T *x, *w;
  RealPointer bias;
  RealOutput y;
  __device__ void operator()(int64_t i) const {
    const int64_t m = i / p.out_size % p.filters, n = i / p.out_size / p.filters;
    const Place o(i % p.out_size, p.out);
    const T* images = x + (n * p.channels + m / p.group_filters * p.group_channels) * p.in_size;
    const T* weights = w + m * p.group_channels * p.kernel_size;
    double sum = bias.data == nullptr ? 0 : bias[m];
    for (int64_t k = 0; k < p.kernel_size; ++k) {
      const int64_t at = p.input_index(o, Place(k, p.kernel));
      if (at < 0) continue;
      for (int64_t c = 0; c < p.group_channels; ++c) {
        sum += static_cast<double>(load_number(images[c * p.in_size + at])) *
               load_number(weights[c * p.kernel_size + k]);
      }
    }
    y.write(i, sum);
  }
};

template <class T>
struct InputGradientElement {
  DeviceConv p;
  const T *dy, *w;
  RealPointer bias;
  RealOutput dx;
  __device__ void operator()(int64_t i) const {
    const int64_t c = i / p.in_size % p.channels, n = i / p.in_size / p.channels;
    const Place at(i % p.in_size, p.in);
    const int64_t first = c / p.group_channels * p.group_filters, own = c % p.group_channels;
    double sum = bias.data == nullptr ? 0 : bias[c];
    for (int64_t k = 0; k < p.kernel_size; ++k) {
      const int64_t o = p.output_index(at, Place(k, p.kernel));
      if (o < 0) continue;
      for (int64_t m = first; m < first + p.group_filters; ++m) {
        sum += static_cast<double>(load_number(dy[(n * p.filters + m) * p.out_size + o])) *
               load_number(w[(m * p.group_channels + own) * p.kernel_size + k]);
      }
    }
    dx.write(i, sum);
  }
};

template <class T>
struct WeightGradientElement {
  DeviceConv p;
  const T *dy, *x;
  RealOutput dw;
  __device__ void operator()(int64_t i) const {
    const int64_t m = i / p.kernel_size / p.group_channels;
    const int64_t c = m / p.group_filters * p.group_channels + i / p.kernel_size % p.group_channels;
    const Place k(i % p.kernel_size, p.kernel);
    double sum = 0;
    for (int64_t o = 0; o < p.out_size; ++o) {
      const int64_t at = p.input_index(Place(o, p.out), k);
      if (at < 0) continue;
      for (int64_t n = 0; n < p.batch; ++n) {
        sum += static_cast<double>(load_number(dy[(n * p.filters + m) * p.out_size + o])) *
               load_number(x[(n * p.channels + c) * p.in_size + at]);
      }
    }
    dw.write(i, sum);
  }
};

/// Forward, or with `kTransposed` the gradient for the input, which is ConvTranspose too.
template <class T, bool kTransposed>
Prepared image_kernel(const KernelCall& call, const ConvPlan& plan) {
  const bool has_bias = call.domain.empty() && call.has_input(2);
  const DType bias_type = has_bias ? call.inputs[2].dtype : DType::kUndefined;
  const auto body = [=, count = call.outputs[0].size(), type = call.outputs[0].dtype,
                     conv = DeviceConv(plan)](const KernelBuffers& buffers) {
    using Element = std::conditional_t<kTransposed, InputGradientElement<T>, ConvElement<T>>;
    RealPointer bias;
    if (has_bias) bias = {buffers.inputs[2], bias_type};
    for_each(stream_of(buffers), count,
             Element{conv, buffers.in<T>(0), buffers.in<T>(1), bias,
                     RealOutput{buffers.outputs[0], type}});
  };
  return make_kernel(body);
}

template <bool kTransposed>
Prepared prepare_image(const KernelCall& call, ConvPlan (*plan)(const KernelCall&)) {
  if (call.has_input(0)) {
    if (std::string why = cpu::conv_rank_refusal(call.inputs[0].shape); !why.empty()) {
      return Prepared::no(why);
    }
  }
  const ConvPlan planned = plan(call);
  if (std::string why = cpu::conv_type_refusal(call); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype,
                        [&]<class T>() { return image_kernel<T, kTransposed>(call, planned); });
}

Prepared prepare_conv(const KernelCall& call) { return prepare_image<false>(call, cpu::plan_conv); }
Prepared prepare_transpose(const KernelCall& call) {
  return prepare_image<true>(call, cpu::plan_conv_transpose);
}
Prepared prepare_grad_input(const KernelCall& call) {
  return prepare_image<true>(call, cpu::plan_conv_grad_input);
}

Prepared prepare_grad_weight(const KernelCall& call) {
  if (call.has_input(0)) {
    if (std::string why = cpu::conv_rank_refusal(call.inputs[0].shape); !why.empty()) {
      return Prepared::no(why);
    }
  }
  const ConvPlan plan = cpu::plan_conv_grad_weight(call);
  if (std::string why = cpu::conv_type_refusal(call); !why.empty()) return Prepared::no(why);
  return for_float_type(call.inputs[0].dtype, [&]<class T>() {
    const auto body = [count = call.outputs[0].size(), type = call.outputs[0].dtype,
                       conv = DeviceConv(plan)](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               WeightGradientElement<T>{conv, buffers.in<T>(0), buffers.in<T>(1),
                                        RealOutput{buffers.outputs[0], type}});
    };
    return make_kernel(body);
  });
}

}  // namespace

std::vector<KernelRow> conv_rows() {
  constexpr RowUse kFallback = RowUse::kFallback;
  return {
      {"", "Conv", "own.conv", prepare_conv, {}, kFallback},
      {"", "ConvTranspose", "own.conv", prepare_transpose, {}, kFallback},
      {"ai.halfnote", "ConvGradInput", "own.conv", prepare_grad_input, {}, kFallback},
      {"ai.halfnote", "ConvGradWeight", "own.conv", prepare_grad_weight, {}, kFallback},
  };
}

}  // namespace halfnote::HN_CUDA
