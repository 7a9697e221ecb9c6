// The quantized family: QuantizeLinear and DequantizeLinear between all types that hold numbers, an
// element a thread. Types are told when the kernels run.
#include "kernels/cpu/quantized/linear.h"
#include "kernels/cpu/quantized/parts.h"
#include "kernels/cpu/reals.h"
#include "kernels/cuda/any_number.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/quantized/parts.h"
#include "kernels/cuda/support.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::LinearPlan;

struct QuantizeElement {
  AnyPointer x, scale, zero;  // without data: 0
  AnyOutput y;
  cpu::ScaleMap map;
  bool rounds;  // y is no float
  __device__ void operator()(int64_t i) const {
    const int64_t k = map.index(i);
    const double from = x.load<double>(i), by = scale.load<double>(k);
    const double ratio =
        x.dtype == DType::kF64
            ? from / by
            : static_cast<double>(static_cast<float>(from) / static_cast<float>(by));
    const double offset = zero.data == nullptr ? 0 : zero.load<double>(k);
    if (rounds) {
      write_clipped(math::rint(ratio) + offset, y, i);
    } else {
      y.write(i, ratio + offset);
    }
  }
};

struct DequantizeElement {
  AnyPointer x, scale, zero;
  RealOutput y;
  cpu::ScaleMap map;
  __device__ void operator()(int64_t i) const {
    const int64_t k = map.index(i);
    const double offset = zero.data == nullptr ? 0 : zero.load<double>(k);
    y.write(i, (x.load<double>(i) - offset) * scale.load<double>(k));
  }
};

Prepared prepare_quantize(const KernelCall& call) {
  LinearPlan plan;
  if (std::string why = cpu::plan_linear(call, plan); !why.empty()) return Prepared::no(why);
  const bool saturate = attributes_of(call).get_int("saturate", 1) != 0;
  return make_kernel([=, overflow = saturate ? Overflow::kSaturate : Overflow::kInfinity,
                      count = call.inputs[0].size()](const KernelBuffers& buffers) {
    for_each(stream_of(buffers), count,
             QuantizeElement{{buffers.inputs[0], plan.from},
                             {buffers.inputs[1], plan.scale},
                             {buffers.in<std::byte>(2), plan.zero},
                             {buffers.outputs[0], plan.to, overflow},
                             plan.map,
                             !is_float(plan.to)});
  });
}

Prepared prepare_dequantize(const KernelCall& call) {
  LinearPlan plan;
  if (std::string why = cpu::plan_linear(call, plan); !why.empty()) return Prepared::no(why);
  if (!cpu::is_real(plan.to)) return Prepared::no("the result is no float");
  return make_kernel([plan, count = call.inputs[0].size()](const KernelBuffers& buffers) {
    for_each(stream_of(buffers), count,
             DequantizeElement{{buffers.inputs[0], plan.from},
                               {buffers.inputs[1], plan.scale},
                               {buffers.in<std::byte>(2), plan.zero},
                               {buffers.outputs[0], plan.to},
                               plan.map});
  });
}

}  // namespace

std::vector<KernelRow> quantized_kernels() {
  std::vector<KernelRow> rows = {
      {"", "DequantizeLinear", "own.quantize", prepare_dequantize},
      {"", "QuantizeLinear", "own.quantize", prepare_quantize},
  };
  const std::vector<KernelRow> products = product_rows();
  rows.insert(rows.end(), products.begin(), products.end());
  return rows;
}

}  // namespace halfnote::HN_CUDA
