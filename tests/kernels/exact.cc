#include "exact.h"

#include <gtest/gtest.h>

#include <cmath>

namespace halfnote::test {

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kF32:
      return 0x1p-24;
    case DType::kF16:
      return 0x1p-11;
    default:
      return 0x1p-8;  // bf16
  }
}

std::vector<double> doubles(const Tensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.size()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = tensor.at_as_double(static_cast<int64_t>(i));
  return values;
}

void expect_sums(const Tensor& got, const Exact& exact, DType input) {
  ASSERT_EQ(got.shape(), exact.shape);
  const double math = unit_roundoff(input == DType::kF64 ? DType::kF64 : DType::kF32);
  const double store = unit_roundoff(got.dtype());
  const double subnormal = got.dtype() == DType::kF16 ? 0x1p-25 : 0;  // half the smallest one
  for (int64_t i = 0; i < got.size(); ++i) {
    const double value = exact.value[static_cast<size_t>(i)];
    const double bound =
        static_cast<double>(exact.terms + 2) * math * exact.magnitude[static_cast<size_t>(i)];
    ASSERT_LE(std::fabs(got.at_as_double(i) - value),
              bound + store * (std::fabs(value) + bound) + subnormal)
        << "element " << i << " of " << to_string(got.shape()) << ", " << short_name(got.dtype());
  }
}

double inner_product(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += a.at_as_double(i) * b.at_as_double(i);
  return sum;
}

void expect_gradient(const std::function<double(const std::vector<Tensor>&)>& loss,
                     const std::vector<Tensor>& inputs, size_t input, const Tensor& gradient) {
  ASSERT_EQ(gradient.shape(), inputs[input].shape());
  // The error of the difference is about step² ≈ 1e-10, that of rounding 1e-16 / step ≈ 1e-11.
  constexpr double kStep = 1e-5;
  double error = 0, norm = 0;
  for (int64_t i = 0; i < gradient.size(); ++i) {
    std::vector<Tensor> moved = inputs;
    const auto loss_at = [&](double distance) {
      moved[input] = inputs[input].deep_copy();
      moved[input].mutable_data<double>()[static_cast<size_t>(i)] += distance;
      return loss(moved);
    };
    const double numeric = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
    const double analytic = gradient.at_as_double(i);
    error += (numeric - analytic) * (numeric - analytic);
    norm += analytic * analytic;
  }
  EXPECT_LE(std::sqrt(error), 1e-6 * std::sqrt(norm)) << "input " << input;
}

Exact exact_product(const Tensor& a, const Tensor& b, bool trans_a, bool trans_b, const Shape& y) {
  const auto stacked = [](Shape shape, size_t rank) {
    shape.insert(shape.begin(), rank - shape.size(), 1);
    return shape;
  };
  const size_t rank = std::max(a.shape().size(), b.shape().size());
  const Shape sa = stacked(a.shape(), rank), sb = stacked(b.shape(), rank);
  const std::vector<double> va = doubles(a), vb = doubles(b);
  const int64_t m = trans_a ? sa[rank - 1] : sa[rank - 2],
                k = trans_a ? sa[rank - 2] : sa[rank - 1];
  const int64_t n = trans_b ? sb[rank - 2] : sb[rank - 1];
  Exact exact(y);
  exact.terms = k;
  for (int64_t index = 0; index < element_count(y); ++index) {
    const int64_t i = index / n % m, j = index % n;
    int64_t rest = index / n / m, batch_a = 0, batch_b = 0, step_a = 1, step_b = 1;
    for (size_t d = rank - 2; d-- > 0;) {
      const int64_t size = std::max(sa[d], sb[d]);
      batch_a += (sa[d] == 1 ? 0 : rest % size) * step_a;
      batch_b += (sb[d] == 1 ? 0 : rest % size) * step_b;
      step_a *= sa[d];
      step_b *= sb[d];
      rest /= size;
    }
    for (int64_t l = 0; l < k; ++l) {
      const int64_t at_a = batch_a * m * k + (trans_a ? l * m + i : i * k + l);
      const int64_t at_b = batch_b * k * n + (trans_b ? j * k + l : l * n + j);
      exact.add(index, va[static_cast<size_t>(at_a)] * vb[static_cast<size_t>(at_b)]);
    }
  }
  return exact;
}

}  // namespace halfnote::test
