// A matrix product inside a kernel: prepared once from the rows of ai.halfnote.MatMul, so that it
// runs on the best kernel there is for its type (or on the reference, for the reference).
#pragma once

#include <memory>
#include <string>

#include "kernels/kernel.h"

namespace halfnote::cpu {

/// Y (m, n) = op(A)·op(B), op the transpose where the flag is set; the sum runs over k.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
};

class InnerProduct {
 public:
  /// A and B in `type`, Y in `out`. `only` restricts the rows (KernelTable::choose). On refusal
  /// ready() is false and refusal() says why.
  static InnerProduct prepare(const ProductShape& shape, DType type, DType out, int threads,
                              std::string_view only);

  bool ready() const { return kernel_ != nullptr; }
  const std::string& refusal() const { return refusal_; }
  size_t workspace_bytes() const { return kernel_ ? kernel_->workspace_bytes() : 0; }
  void run(const void* a, const void* b, void* y, std::byte* workspace) const;

 private:
  std::shared_ptr<const Kernel> kernel_;  // shared: lambdas that hold a kernel are copied
  std::string refusal_;
};

}  // namespace halfnote::cpu
