// The rows of the movement family, file by file, and what they share.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/runs.h"
#include "kernels/cpu/support.h"
#include "kernels/kernel.h"

namespace halfnote::cpu {

/// A kernel of which output 0 is the first bytes of input 0: a view, where both may share a buffer.
Prepared same_bytes(const KernelCall& call);  // reshape.cc

std::vector<KernelRow> reshape_rows();      // reshape.cc: same bytes under another shape
std::vector<KernelRow> copy_rows();         // copy.cc: strided copies
std::vector<KernelRow> pad_rows();          // pad.cc
std::vector<KernelRow> patches_rows();      // patches.cc
std::vector<KernelRow> strided_sum_rows();  // strided_sum.cc
std::vector<KernelRow> gather_rows();       // gather.cc: Gather*, ReverseSequence
std::vector<KernelRow> scatter_rows();      // scatter.cc: Scatter*
std::vector<KernelRow>
generate_rows();  // generate.cc: elements made from shapes, attributes or scalars

/// The elements of an integer input that must be known before the first step; nothing if it is not.
inline bool known_ints(const KernelCall& call, size_t index, std::vector<int64_t>& values) {
  if (!call.has_input(index) || !call.inputs[index].constant) return false;
  values = call.inputs[index].constant->to_ints();
  return true;
}

/// A shape that the model states and the operator contradicts.
inline Error shape_error(const KernelCall& call, const std::string& problem,
                         std::span<const int64_t> expected, std::span<const int64_t> got) {
  return Error(ErrorCode::kModel, problem)
      .at({.op = std::string(call.op)})
      .expected(to_string(expected), to_string(got));
}

/// Reads i32 or i64 indices, wraps negative ones and checks the range.
class IndexReader {
 public:
  IndexReader(const KernelCall& call, size_t input)
      : op_(call.op), input_(input), wide_(call.inputs[input].dtype == DType::kI64) {}

  /// Element `at` of the index tensor as it is.
  int64_t raw(const KernelBuffers& buffers, int64_t at) const {
    return wide_ ? buffers.in<int64_t>(input_)[at] : buffers.in<int32_t>(input_)[at];
  }
  /// Element `at` of the index tensor, as an index into a dim of `size`.
  int64_t read(const KernelBuffers& buffers, int64_t at, int64_t size) const {
    const int64_t value = raw(buffers, at);
    if (value < -size || value >= size) throw out_of_range(value, size);
    return value < 0 ? value + size : value;
  }

 private:
  Error out_of_range(int64_t value, int64_t size) const {
    return Error(ErrorCode::kData, "index out of range")
        .at({.op = op_})
        .expected("an index in [" + std::to_string(-size) + ", " + std::to_string(size) + ")",
                  std::to_string(value));
  }

  std::string op_;
  size_t input_;
  bool wide_;
};

/// The reason why input `index` is no i32 or i64 tensor, or an empty string.
inline std::string unfit_indices(const KernelCall& call, size_t index) {
  if (!call.has_input(index)) return "an operand is missing";
  const DType dtype = call.inputs[index].dtype;
  return dtype == DType::kI64 || dtype == DType::kI32 ? "" : "indices are neither i32 nor i64";
}

}  // namespace halfnote::cpu
