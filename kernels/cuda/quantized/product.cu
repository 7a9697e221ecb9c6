// Products of 8-bit operands, planned by kernels/cpu/quantized/product.h: an element of the result
// a thread. Sums in f64 hold every one of them exactly.
#include "kernels/cpu/quantized/product.h"

#include "kernels/cuda/contraction/batches.h"
#include "kernels/cuda/contraction/conv_place.h"
#include "kernels/cuda/quantized/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::MatmulPlan;
using cpu::ProductPlan;

/// A parameter as a kernel's argument.
struct Parameter {
  AnyPointer values;
  int64_t step;
  double fallback;
  __device__ double operator[](int64_t i) const {
    return values.data == nullptr ? fallback : values.load<double>(i * step);
  }
};

/// The operands of a product as a kernel's argument.
struct ProductOperands {
  AnyPointer a, b;
  AnyOutput y;
  Parameter a_scale, b_scale, y_scale, a_zero, b_zero, y_zero, bias;

  __device__ void write(int64_t at, double sum, int64_t row, int64_t column) const {
    if (y.dtype == DType::kI32) {
      static_cast<int32_t*>(y.data)[at] = static_cast<int32_t>(sum);
      return;
    }
    const double factor = a_scale[row] * b_scale[column] / y_scale[0];
    write_clipped(math::rint(sum * factor) + y_zero[0], y, at);
  }
};

ProductOperands operands_of(const ProductPlan& plan, const KernelBuffers& buffers) {
  const auto parameter = [&](const cpu::ProductParameter& of) -> Parameter {
    if (of.dtype == DType::kUndefined) return {{}, 0, of.fallback};
    return {{buffers.inputs[of.slot], of.dtype}, of.count == 1 ? 0 : 1, 0};
  };
  return {{buffers.inputs[plan.a], plan.a_type},
          {buffers.inputs[plan.b], plan.b_type},
          {buffers.outputs[0], plan.y_type},
          parameter(plan.a_scale),
          parameter(plan.b_scale),
          parameter(plan.y_scale),
          parameter(plan.a_zero),
          parameter(plan.b_zero),
          parameter(plan.y_zero),
          parameter(plan.bias)};
}

struct MatmulElement {
  ProductOperands of;
  Strided<2> batches;  // matrices of a and b
  int64_t m, n, k;
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / n % m, column = i % n;
    int64_t offset[2];
    batches.offsets(i / n / m, offset);
    const int64_t first_a = (offset[0] * m + row) * k, first_b = offset[1] * k * n + column;
    const double zero_a = of.a_zero[row], zero_b = of.b_zero[column];
    double sum = 0;
    for (int64_t at = 0; at < k; ++at) {
      sum += (of.a.load<double>(first_a + at) - zero_a) *
             (of.b.load<double>(first_b + at * n) - zero_b);
    }
    of.write(i, sum, row, column);
  }
};

Prepared prepare_matmul(const KernelCall& call) {
  ProductPlan plan;
  MatmulPlan p;
  if (std::string why = cpu::plan_quantized_matmul(call, plan, p); !why.empty()) {
    return Prepared::no(why);
  }
  Strided<2> batches;
  const Runs runs = cpu::plan_runs(p.y_batch, {batch_strides(p.a_batch), batch_strides(p.b_batch)});
  if (!as_strided(runs, batches)) return Prepared::no(too_many_dims());
  return make_kernel([plan, batches, m = p.m, n = p.n, k = p.k,
                      count = call.outputs[0].size()](const KernelBuffers& buffers) {
    for_each(stream_of(buffers), count,
             MatmulElement{operands_of(plan, buffers), batches, m, n, k});
  });
}

struct ConvElement {
  ProductOperands of;
  DeviceConv p;
  __device__ void operator()(int64_t i) const {
    const int64_t m = i / p.out_size % p.filters, n = i / p.out_size / p.filters;
    const Place o(i % p.out_size, p.out);
    const int64_t images = (n * p.channels + m / p.group_filters * p.group_channels) * p.in_size;
    const int64_t weights = m * p.group_channels * p.kernel_size;
    const double zero_a = of.a_zero[0], zero_b = of.b_zero[m];
    double sum = of.bias[m];
    for (int64_t c = 0; c < p.group_channels; ++c) {
      for (int64_t k = 0; k < p.kernel_size; ++k) {
        const int64_t at = p.input_index(o, Place(k, p.kernel));
        if (at < 0) continue;
        sum += (of.a.load<double>(images + c * p.in_size + at) - zero_a) *
               (of.b.load<double>(weights + c * p.kernel_size + k) - zero_b);
      }
    }
    of.write(i, sum, 0, m);
  }
};

Prepared prepare_conv(const KernelCall& call) {
  ProductPlan plan;
  ConvPlan p;
  if (std::string why = cpu::plan_quantized_conv(call, plan, p); !why.empty()) {
    return Prepared::no(why);
  }
  return make_kernel(
      [plan, conv = DeviceConv(p), count = call.outputs[0].size()](const KernelBuffers& buffers) {
        for_each(stream_of(buffers), count, ConvElement{operands_of(plan, buffers), conv});
      });
}

}  // namespace

std::vector<KernelRow> product_rows() {
  return {
      {"", "ConvInteger", "own.integers", prepare_conv},
      {"", "MatMulInteger", "own.integers", prepare_matmul},
      {"", "QLinearConv", "own.integers", prepare_conv},
      {"", "QLinearMatMul", "own.integers", prepare_matmul},
  };
}

}  // namespace halfnote::HN_CUDA
