#include "kernels/cpu/contraction/recurrent/product.h"

#include <array>

namespace halfnote::cpu {

InnerProduct InnerProduct::prepare(const ProductShape& shape, DType type, DType out, int threads,
                                   std::string_view only) {
  Attributes attributes = {{"out_dtype", static_cast<int64_t>(out)}};
  if (shape.trans_a) attributes.set("transA", int64_t{1});
  if (shape.trans_b) attributes.set("transB", int64_t{1});
  KernelCall call;
  call.domain = "ai.halfnote";
  call.op = "MatMul";
  call.attributes = &attributes;
  call.threads = threads;
  const auto operand = [](DType dtype, int64_t rows, int64_t columns, bool transposed) {
    Operand result;
    result.dtype = dtype;
    result.shape = transposed ? Shape{columns, rows} : Shape{rows, columns};
    return result;
  };
  call.inputs = {operand(type, shape.m, shape.k, shape.trans_a),
                 operand(type, shape.k, shape.n, shape.trans_b)};
  call.outputs = {operand(out, shape.m, shape.n, false)};

  InnerProduct product;
  KernelChoice choice = cpu_kernels().choose(call, only);
  for (const Refusal& refusal : choice.refusals) {
    product.refusal_ += std::string(refusal.kernel) + ": " + refusal.reason + "; ";
  }
  if (choice.kernel == nullptr) return product;
  product.kernel_ = std::move(choice.kernel);
  return product;
}

void InnerProduct::run(const void* a, const void* b, void* y, std::byte* workspace) const {
  const std::array<const std::byte*, 2> inputs = {static_cast<const std::byte*>(a),
                                                  static_cast<const std::byte*>(b)};
  const std::array<std::byte*, 1> outputs = {static_cast<std::byte*>(y)};
  kernel_->run({inputs, outputs, workspace});
}

}  // namespace halfnote::cpu
