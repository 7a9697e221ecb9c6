// Results computed independently of the kernels: plain loops in f64, with the bound that any order
// of summation in the kernel's math precision keeps.
#pragma once

#include <functional>
#include <vector>

#include "base/tensor.h"
#include "harness.h"

namespace halfnote::test {

/// Sums of `terms` products, each with the sum of its terms' absolute values.
struct Exact {
  Shape shape;
  int64_t terms = 0;
  std::vector<double> value, magnitude;

  explicit Exact(Shape of) : shape(std::move(of)) {
    value.resize(static_cast<size_t>(element_count(shape)));
    magnitude.resize(value.size());
  }
  void add(int64_t index, double term) {
    value[static_cast<size_t>(index)] += term;
    magnitude[static_cast<size_t>(index)] += std::abs(term);
  }
};

/// Half the distance between 1 and the next number.
double unit_roundoff(DType dtype);
/// All elements as doubles.
std::vector<double> doubles(const Tensor& tensor);

/// Expects |got − value| ≤ (terms + 2)·u·magnitude + u'·|value|, with u of the math (f32, or f64
/// for f64 inputs) and u' of the output's type; the first is the standard bound for a sum in any
/// order, the second the one rounding at the end.
void expect_sums(const Tensor& got, const Exact& exact, DType input);
/// The type that a row whose name starts with `kernel` sums products of `type` in: the own fast
/// rows, f64.
inline DType sum_type(std::string_view kernel, DType type) {
  return kernel == "fast" ? DType::kF64 : type;
}

/// op(A)·op(B) over broadcast batch dims, straight from the definition; `y` is its shape.
Exact exact_product(const Tensor& a, const Tensor& b, bool trans_a, bool trans_b, const Shape& y);

/// Expects `gradient` to be that of the scalar function `loss` of f64 tensors for its input
/// `input`: central differences, norm of the error at most 1e-6 of the norm of the gradient.
void expect_gradient(const std::function<double(const std::vector<Tensor>&)>& loss,
                     const std::vector<Tensor>& inputs, size_t input, const Tensor& gradient);

/// Σ a·b over all elements of two tensors of one shape.
double inner_product(const Tensor& a, const Tensor& b);

/// f64, f32, f16, bf16.
inline constexpr DType kFloatTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};

}  // namespace halfnote::test
