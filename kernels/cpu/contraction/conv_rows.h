// Kernels that make their output row by row: a convolution, and its gradient for the input, which
// is also ConvTranspose. Inputs of 16 bits are converted to math precision in the workspace; a row
// is rounded once.
#pragma once

#include <array>
#include <utility>

#include "kernels/cpu/contraction/conv_loops.h"
#include "kernels/cpu/reals.h"

namespace halfnote::cpu {

/// Inputs 0, 1 (and 2) and output 0 must be floats; without out_dtype all of one type.
inline std::string conv_type_refusal(const KernelCall& call) {
  const DType type = call.inputs[0].dtype;
  if (!is_real(type)) return "no float type: " + std::string(short_name(type));
  if (call.inputs[1].dtype != type) return "operands of different types";
  if (call.domain.empty() && call.has_input(2) && call.inputs[2].dtype != type) {
    return "a bias of another type";
  }
  if (!is_real(call.outputs[0].dtype)) {
    return "no float type: " + std::string(short_name(call.outputs[0].dtype));
  }
  return {};
}

/// The output is (batch, planes, dims…). `add(a, w, n, plane, d, h, column, count, sums)` adds to a
/// piece of a row; `a` and `w` are inputs 0 and 1 in M. Input 2, if the op is one of ONNX's, is a
/// bias for each plane.
template <class M, class Add>
Prepared row_kernel(const KernelCall& call, const ConvPlan& plan, int64_t planes,
                    const ConvPlan::Dims& dims, Add add) {
  WorkspacePlan workspace;
  const Operand a = call.inputs[0], w = call.inputs[1];
  const DType bias =
      call.domain.empty() && call.has_input(2) ? call.inputs[2].dtype : DType::kUndefined;
  const size_t a_room = workspace.add_elements<M>(room_for_reals<M>(a));
  const size_t w_room = workspace.add_elements<M>(room_for_reals<M>(w));
  const auto body = [=, type = call.outputs[0].dtype, threads = call.threads,
                     batch = plan.batch](const KernelBuffers& buffers) {
    const M* left =
        all_reals(buffers.inputs[0], a.dtype, a.size(), part<M>(buffers, a_room), threads);
    const M* right =
        all_reals(buffers.inputs[1], w.dtype, w.size(), part<M>(buffers, w_room), threads);
    const int64_t lines = dims[0] * dims[1];
    parallel_blocks(batch * planes, 1, threads, [&](int64_t block, int64_t) {
      std::array<M, kRowPiece> sums;
      const int64_t n = block / planes, plane = block % planes;
      const M start = bias == DType::kUndefined
                          ? M(0)
                          : static_cast<M>(read_real(buffers.inputs[2], bias, plane));
      for (int64_t line = 0; line < lines; ++line) {
        for (int64_t column = 0; column < dims[2]; column += kRowPiece) {
          const int64_t count = std::min(kRowPiece, dims[2] - column);
          std::fill_n(sums.data(), count, start);
          add(left, right, n, plane, line / dims[1], line % dims[1], column, count, sums.data());
          store_reals(sums.data(), count, type, buffers.outputs[0],
                      (block * lines + line) * dims[2] + column);
        }
      }
    });
  };
  return make_kernel(body, workspace.size());
}

/// Input 0 is dY, input 1 the weights, output 0 has the shape of x.
template <class M>
Prepared input_gradient_kernel(const KernelCall& call, const ConvPlan& plan) {
  return row_kernel<M>(call, plan, plan.channels, plan.in,
                       [plan](const M* dy, const M* w, int64_t n, int64_t c, int64_t d, int64_t h,
                              int64_t column, int64_t count, M* sums) {
                         const int64_t channels = plan.group_channels(),
                                       filters = plan.group_filters();
                         const int64_t first = c / channels * filters;
                         for (int64_t m = first; m < first + filters; ++m) {
                           add_filter(plan, dy + (n * plan.filters + m) * plan.out_size(),
                                      w + (m * channels + c % channels) * plan.kernel_size(), d, h,
                                      column, count, sums);
                         }
                       });
}

}  // namespace halfnote::cpu
