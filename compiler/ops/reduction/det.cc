// The gradient of Det: dA = dY times the cofactors of A, the transpose of its adjugate.
//
// Faddeev and LeVerrier's recurrence gives the adjugate of an n x n matrix by products alone, so
// singular matrices have theirs: M = I, then n − 1 times M ← A·M − tr(A·M)/k·I; adj A = ±M. In f64:
// its error is some 1e-15 of the largest cofactor at n = 8 and 1e-11 at n = 16.
#include "base/error.h"
#include "compiler/ops/reduction/parts.h"
#include "compiler/ops/rule_support.h"

namespace halfnote::reduction {
namespace {

constexpr int64_t kMostRows = 16;

}  // namespace

std::vector<Expr> det_gradient(GradientContext& rule) {
  Builder& b = rule.b;
  const Expr x = rule.inputs[0];
  const int rank = x.rank();
  if (rank < 2) {
    throw Error(ErrorCode::kModel, "Det of what is no matrix")
        .expected("two equal last dims", to_string(x.type()));
  }
  const std::vector<int64_t> sizes =
      require_static(x.shape(), static_cast<size_t>(rank - 2), "the gradient of Det");
  const int64_t n = sizes[0];
  if (sizes[1] != n) {
    throw Error(ErrorCode::kModel, "Det of a matrix that is not square")
        .expected("two equal last dims", to_string(x.type()));
  }
  if (n > kMostRows) {
    throw Error(ErrorCode::kUnsupported, "no gradient of Det for matrices as large as this")
        .expected("at most " + std::to_string(kMostRows) + " rows", std::to_string(n));
  }
  Tensor identity(DType::kF64, {n, n});
  for (int64_t i = 0; i < n; ++i) {
    identity.mutable_data<double>()[static_cast<size_t>(i * n + i)] = 1;
  }
  const Expr one = b.constant(std::move(identity), "identity");
  const Expr a = b.cast(x, DType::kF64);
  Expr adjugate = one;
  for (int64_t k = 1; k < n; ++k) {
    const Expr product = k == 1 ? a : b.op("MatMul", {a, adjugate});
    const Expr trace = b.reduce_sum(product * one, {rank - 2, rank - 1}, true);
    adjugate = product - trace * (1.0 / static_cast<double>(k)) * one;
  }
  std::vector<int64_t> swapped = axes_between(0, n <= 1 ? 2 : rank);
  std::swap(swapped[swapped.size() - 2], swapped[swapped.size() - 1]);
  const Expr cofactors = b.transpose(adjugate, swapped) * (n % 2 == 0 ? -1.0 : 1.0);
  const Expr dy = unsqueeze(b.cast(rule.grads[0], DType::kF64), {rank - 2, rank - 1});
  return {b.cast(dy * cofactors, x.dtype())};
}

}  // namespace halfnote::reduction
