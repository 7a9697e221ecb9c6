// AddStrided: a part is added to every stride-th pixel of X. Reference.
#include "kernels/cpu/movement/strided_sum.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/movement/parts.h"

namespace halfnote::cpu {

namespace {

template <class T>
void add_to_plane(const StridedSum& p, const T* part, T* plane) {
  int64_t from = 0;
  for (int64_t d = 0; d < p.part[0]; ++d) {
    for (int64_t h = 0; h < p.part[1]; ++h) {
      T* line = plane + (d * p.strides[0] * p.size[1] + h * p.strides[1]) * p.size[2];
      for (int64_t w = 0; w < p.part[2]; ++w) {
        T& element = line[w * p.strides[2]];
        element = store<T>(load(element) + load(part[from++]));
      }
    }
  }
}

Prepared prepare_strided_sum(const KernelCall& call) {
  StridedSum plan;
  if (std::string why = plan_strided_sum(call, plan); !why.empty()) return Prepared::no(why);
  return for_float_type(call.outputs[0].dtype, [&]<class T>() {
    const auto body = [plan, threads = call.threads](const KernelBuffers& buffers) {
      parallel_blocks(plan.planes, 1, threads, [&](int64_t plane, int64_t) {
        const T* x = buffers.in<T>(0) + plane * plan.pixels();
        T* y = buffers.out<T>(0) + plane * plan.pixels();
        if (x != y) std::copy_n(x, plan.pixels(), y);
        add_to_plane(plan, buffers.in<T>(1) + plane * plan.part_pixels(), y);
      });
    };
    return make_kernel(body, 0, strided_sum_in_place);
  });
}

}  // namespace

std::string plan_strided_sum(const KernelCall& call, StridedSum& plan) {
  if (!call.has_input(0) || !call.has_input(1) || !call.has_output(0))
    return "an operand is missing";
  const Operand &x = call.inputs[0], &part = call.inputs[1], &y = call.outputs[0];
  if (x.dtype != y.dtype || part.dtype != y.dtype) return "operands of different types";
  const size_t rank = x.shape.size();
  if (rank < 3 || rank > 5) return "neither 1, 2 nor 3 spatial dims";
  const std::vector<int64_t> strides = attributes_of(call).get_ints("strides");
  bool fits = x.shape == y.shape && part.shape.size() == rank && strides.size() == rank - 2 &&
              part.shape[0] == x.shape[0] && part.shape[1] == x.shape[1];
  for (size_t i = 2; fits && i < rank; ++i) {
    const int64_t stride = strides[i - 2], size = x.shape[i];
    const size_t at = i - 2 + (5 - rank);
    fits = stride >= 1 && part.shape[i] == (size == 0 ? 0 : (size - 1) / stride + 1);
    plan.size[at] = size;
    plan.part[at] = part.shape[i];
    // Where there is one pixel, a step leads nowhere, however long it is.
    plan.strides[at] = part.shape[i] > 1 ? stride : 1;
  }
  if (!fits) {
    throw Error(ErrorCode::kModel, "a part of other pixels than those at the strides")
        .at({.op = std::string(call.op)})
        .expected("a pixel for each stride of " + to_string(x.shape), to_string(part.shape));
  }
  plan.planes = checked_mul(x.shape[0], x.shape[1]);
  plan.channels = x.shape[1];
  return "";
}

bool strided_sum_in_place(size_t input, size_t output) { return input == 0 && output == 0; }

std::vector<KernelRow> strided_sum_rows() {
  return {{"ai.halfnote", "AddStrided", "reference.strided_sum", prepare_strided_sum}};
}

}  // namespace halfnote::cpu
