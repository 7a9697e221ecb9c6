// The quantized family: QuantizeLinear and DequantizeLinear between floats and integers of 8, 16
// and 32 bits, an element a thread.
#include "kernels/cpu/quantized/linear.h"
#include "kernels/cpu/reals.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/support.h"
#include "kernels/math/convert.h"

namespace halfnote::HN_CUDA {

namespace {

using cpu::LinearPlan;

/// Calls `body.template operator()<Q>()` for the types of quantized elements.
template <class Body>
Prepared for_quantized_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kI8:
      return body.template operator()<int8_t>();
    case DType::kU8:
      return body.template operator()<uint8_t>();
    case DType::kI16:
      return body.template operator()<int16_t>();
    case DType::kU16:
      return body.template operator()<uint16_t>();
    case DType::kI32:
      return body.template operator()<int32_t>();
    default:
      return Prepared::no("no kernel for elements of type " + std::string(short_name(dtype)));
  }
}

template <class Q>
struct QuantizeElement {
  RealPointer x, scale;
  const Q* zero;  // null: 0
  Q* y;
  cpu::ScaleMap map;
  bool wide;  // divides in f64
  __device__ void operator()(int64_t i) const {
    const int64_t k = map.index(i);
    const double ratio =
        wide ? x[i] / scale[k]
             : static_cast<double>(static_cast<float>(x[i]) / static_cast<float>(scale[k]));
    const double offset = zero == nullptr ? 0 : static_cast<double>(zero[k]);
    y[i] = math::truncate_saturating<Q>(math::rint(ratio) + offset);
  }
};

template <class Q>
struct DequantizeElement {
  const Q* x;
  RealPointer scale;
  const Q* zero;
  RealOutput y;
  cpu::ScaleMap map;
  __device__ void operator()(int64_t i) const {
    const int64_t k = map.index(i);
    const double offset = zero == nullptr ? 0 : static_cast<double>(zero[k]);
    y.write(i, (static_cast<double>(x[i]) - offset) * scale[k]);
  }
};

/// Why scale, zero point and float side have no kernel, or an empty string.
std::string unfit_types(const LinearPlan& plan, DType real, DType integer) {
  if (!cpu::is_real(real)) return "no float type: " + std::string(short_name(real));
  if (!cpu::is_real(plan.scale)) return "a scale of type " + std::string(short_name(plan.scale));
  return plan.zero == DType::kUndefined || plan.zero == integer
             ? ""
             : "a zero point of type " + std::string(short_name(plan.zero));
}

Prepared prepare_quantize(const KernelCall& call) {
  LinearPlan plan;
  if (std::string why = cpu::plan_linear(call, plan); !why.empty()) return Prepared::no(why);
  if (std::string why = unfit_types(plan, plan.from, plan.to); !why.empty()) {
    return Prepared::no(why);
  }
  return for_quantized_type(plan.to, [&]<class Q>() {
    return make_kernel([plan, count = call.inputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               QuantizeElement<Q>{{buffers.inputs[0], plan.from},
                                  {buffers.inputs[1], plan.scale},
                                  buffers.in<Q>(2),
                                  buffers.out<Q>(0),
                                  plan.map,
                                  plan.from == DType::kF64});
    });
  });
}

Prepared prepare_dequantize(const KernelCall& call) {
  LinearPlan plan;
  if (std::string why = cpu::plan_linear(call, plan); !why.empty()) return Prepared::no(why);
  if (std::string why = unfit_types(plan, plan.to, plan.from); !why.empty()) {
    return Prepared::no(why);
  }
  return for_quantized_type(plan.from, [&]<class Q>() {
    return make_kernel([plan, count = call.inputs[0].size()](const KernelBuffers& buffers) {
      for_each(stream_of(buffers), count,
               DequantizeElement<Q>{buffers.in<Q>(0),
                                    {buffers.inputs[1], plan.scale},
                                    buffers.in<Q>(2),
                                    {buffers.outputs[0], plan.to},
                                    plan.map});
    });
  });
}

}  // namespace

std::vector<KernelRow> quantized_kernels() {
  return {
      {"", "DequantizeLinear", "own.quantize", prepare_dequantize},
      {"", "QuantizeLinear", "own.quantize", prepare_quantize},
  };
}

}  // namespace halfnote::HN_CUDA
