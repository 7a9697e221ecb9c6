// Gradient rules of the reductions and of pooling against central differences.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/coverage.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

using Ints = std::vector<int64_t>;

constexpr const char* kReductions[] = {
    "ReduceSum", "ReduceMean",   "ReduceMax",       "ReduceMin",  "ReduceL1",
    "ReduceL2",  "ReduceLogSum", "ReduceLogSumExp", "ReduceProd", "ReduceSumSquare"};

/// Away from 0, where ReduceL1 has a kink, and without ties.
Tensor positive(const Shape& shape, uint64_t seed) {
  return random_tensor(DType::kF64, shape, seed, 0.5, 2);
}

TEST(ReductionGradient, OverAxes) {
  for (const char* op : kReductions) {
    for (const Ints& axes : {Ints{1}, Ints{0, -1}, Ints{-2}, Ints{0, 1, 2}}) {
      for (int64_t keepdims : {0, 1}) {
        const GradientCase test{
            to_string(axes), op, {{"keepdims", keepdims}}, {positive({3, 4, 2}, 1), ints(axes)}};
        expect_gradient(test);
        expect_gradient(test, Dims::kSymbolic);
      }
    }
    expect_gradient({"all axes", op, {}, {positive({3, 4}, 2)}});
    expect_gradient({"all axes", op, {{"keepdims", int64_t{0}}}, {positive({3, 4}, 3)}},
                    Dims::kSymbolic);
  }
}

TEST(ReductionGradient, NegativeOperands) {
  for (const char* op : {"ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceProd"}) {
    expect_gradient({"mixed signs",
                     op,
                     {},
                     {Tensor::of<double>({2, 3}, {-1.5, 0.5, 2, 1, -0.75, -2}), ints({1})}});
  }
}

TEST(ReductionGradient, OverNoAxes) {
  const Attributes noop = {{"noop_with_empty_axes", int64_t{1}}};
  for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceProd"}) {
    const Tensor dy = positive({2, 3}, 2);
    const auto got = rule_gradients({"no axes", op, noop, {positive({2, 3}, 1)}}, {dy});
    EXPECT_TRUE(identical(got[0], dy)) << op;
  }
  const GradientCase open{"no axes", "ReduceL2", noop, {positive({2, 3}, 1)}};
  EXPECT_THROW(rule_gradients(open, {positive({2, 3}, 2)}), Error);
}

TEST(ReductionGradient, ComputedAxesAreRefused) {
  GradientCase test{"computed", "ReduceSum", {}, {positive({2, 3}, 1), ints({1})}};
  test.computed = {1};
  EXPECT_THROW(rule_gradients(test, {positive({2, 1}, 2)}), Error);
}

TEST(ReductionGradient, TiesShareTheGradient) {
  const Tensor x = Tensor::of<double>({2, 3}, {1, 2, 2, 3, 0, 3});
  const Tensor dy = Tensor::of<double>({2, 1}, {1, 4});
  const auto most = rule_gradients({"ties", "ReduceMax", {}, {x, ints({1})}}, {dy});
  EXPECT_TRUE(identical(most[0], Tensor::of<double>({2, 3}, {0, 0.5, 0.5, 2, 0, 2})));
  const auto least = rule_gradients({"ties", "ReduceMin", {}, {x, ints({1})}}, {dy});
  EXPECT_TRUE(identical(least[0], Tensor::of<double>({2, 3}, {1, 0, 0, 0, 4, 0})));
}

TEST(ReductionGradient, ProductsWithZeros) {
  // One zero: only it has a gradient. Two: none has.
  const Tensor x = Tensor::of<double>({3, 3}, {2, 3, 4, 2, 0, 5, 0, 7, 0});
  const Tensor dy = Tensor::of<double>({3, 1}, {1, 1, 1});
  const auto got = rule_gradients({"zeros", "ReduceProd", {}, {x, ints({1})}}, {dy});
  EXPECT_TRUE(identical(got[0], Tensor::of<double>({3, 3}, {12, 8, 6, 0, 10, 0, 0, 0, 0})));
}

TEST(ReductionGradient, NormOfZeroHasNoGradient) {
  const Tensor x = Tensor::of<double>({2, 2}, {0, 0, 3, 4});
  const Tensor dy = Tensor::of<double>({2, 1}, {1, 5});
  const auto got = rule_gradients({"zero row", "ReduceL2", {}, {x, ints({1})}}, {dy});
  EXPECT_TRUE(identical(got[0], Tensor::of<double>({2, 2}, {0, 0, 3, 4})));
}

TEST(ReductionGradient, CumSum) {
  for (int64_t exclusive : {0, 1}) {
    for (int64_t reverse : {0, 1}) {
      const GradientCase test{"axis 1",
                              "CumSum",
                              {{"exclusive", exclusive}, {"reverse", reverse}},
                              {positive({2, 5, 3}, 1), Tensor::scalar<int64_t>(1)}};
      expect_gradient(test);
      expect_gradient(test, Dims::kSymbolic);
    }
  }
}

struct Pool {
  const char* name;
  Shape x;
  Attributes attributes;
};

const Pool kPools[] = {
    {"apart", {2, 2, 6, 4}, {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}}},
    {"overlapping, padded",
     {1, 2, 6, 5},
     {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 1}}, {"pads", Ints{1, 0, 1, 2}}}},
    {"ceil_mode",
     {1, 2, 8, 6},
     {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"ceil_mode", int64_t{1}}}},
    {"dilated", {2, 1, 9}, {{"kernel_shape", Ints{3}}, {"dilations", Ints{2}}}},
    {"same_lower",
     {1, 1, 7, 5},
     {{"kernel_shape", Ints{3, 2}},
      {"strides", Ints{2, 2}},
      {"auto_pad", std::string("SAME_LOWER")}}},
    {"3-D", {1, 1, 4, 3, 4}, {{"kernel_shape", Ints{2, 2, 2}}, {"strides", Ints{1, 1, 2}}}},
};

TEST(ReductionGradient, MaxPool) {
  for (const Pool& pool : kPools) {
    expect_gradient({pool.name, "MaxPool", pool.attributes, {positive(pool.x, 1)}});
  }
  const Tensor x = positive(kPools[0].x, 2);
  expect_gradient({"with Indices", "MaxPool", kPools[0].attributes, {x}, {0}, 2, {1}});
  expect_gradient({"symbolic", "MaxPool", kPools[0].attributes, {x}}, Dims::kSymbolic);
}

TEST(ReductionGradient, AveragePool) {
  for (const Pool& pool : kPools) {
    for (int64_t include_pad : {0, 1}) {
      Attributes attributes = pool.attributes;
      attributes.set("count_include_pad", include_pad);
      expect_gradient({pool.name, "AveragePool", attributes, {positive(pool.x, 1)}});
    }
  }
  expect_gradient({"symbolic", "AveragePool", kPools[0].attributes, {positive(kPools[0].x, 2)}},
                  Dims::kSymbolic);
}

TEST(ReductionGradient, GlobalPools) {
  for (const char* op : {"GlobalAveragePool", "GlobalMaxPool"}) {
    for (const Shape& shape : {Shape{2, 3, 5}, Shape{2, 3, 4, 5}}) {
      const GradientCase test{to_string(shape), op, {}, {positive(shape, 1)}};
      expect_gradient(test);
      expect_gradient(test, Dims::kSymbolic);
    }
  }
}

TEST(ReductionGradient, Det) {
  for (int64_t n : {0, 1, 2, 3, 4, 7}) {
    expect_gradient({"one", "Det", {}, {f64({n, n}, 1)}});
    expect_gradient({"batch", "Det", {}, {f64({2, 3, n, n}, 2)}});
  }
  EXPECT_THROW(rule_gradients({"large", "Det", {}, {f64({17, 17}, 1)}}, {f64({}, 2)}), Error);
}

/// n x n of this rank: the sum of as many products of a column and a line.
Tensor of_rank(int64_t n, int64_t rank) {
  const Tensor left = f64({n, rank}, 3), right = f64({rank, n}, 4);
  Tensor product(DType::kF64, {n, n});
  for (int64_t i = 0; i < n * n; ++i) {
    for (int64_t k = 0; k < rank; ++k) {
      product.mutable_data<double>()[static_cast<size_t>(i)] +=
          left.at_as_double(i / n * rank + k) * right.at_as_double(k * n + i % n);
    }
  }
  return product;
}

TEST(ReductionGradient, DetOfSingularMatrices) {
  for (int64_t n : {2, 3, 5}) {
    expect_gradient({"rank n - 1", "Det", {}, {of_rank(n, n - 1)}});
    const Tensor none = rule_gradients({"rank n - 2", "Det", {}, {of_rank(n, n - 2)}},
                                       {Tensor::full(DType::kF64, {}, 1)})[0];
    for (int64_t i = 0; i < n * n; ++i) EXPECT_NEAR(none.at_as_double(i), 0, 1e-14) << n;
  }
  // diag(2, 3, 0): only the last cofactor is not zero.
  const Tensor flat = Tensor::of<double>({3, 3}, {2, 0, 0, 0, 3, 0, 0, 0, 0});
  const Tensor want = Tensor::of<double>({3, 3}, {0, 0, 0, 0, 0, 0, 0, 0, 6});
  const Tensor got =
      rule_gradients({"flat", "Det", {}, {flat}}, {Tensor::full(DType::kF64, {}, 1)})[0];
  for (int64_t i = 0; i < 9; ++i) EXPECT_NEAR(got.at_as_double(i), want.at_as_double(i), 1e-14);
}

TEST(ReductionGradient, EveryRuleIsTested) {
  std::set<std::string> tested(std::begin(kReductions), std::end(kReductions));
  tested.insert({"AveragePool", "CumSum", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"});
  tested.insert("Det");
  tested.insert({"LpPool", "RoiAlign", "TopK"});  // lowering/sampling_test.cc
  tested.insert("Resize");                        // resize_test.cc
  EXPECT_EQ(with_gradient(reduction_rows()), tested);
}

}  // namespace
}  // namespace halfnote::test
