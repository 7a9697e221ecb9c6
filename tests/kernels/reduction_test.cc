// Reductions and pools beyond ONNX's node tests: every set of axes against a plain sum, many units,
// empty sets, the gradients of the pools against central differences.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "exact.h"
#include "harness.h"

namespace halfnote::test {
namespace {

Tensor axes_tensor(const std::vector<int64_t>& axes) {
  return Tensor::of<int64_t>({static_cast<int64_t>(axes.size())}, std::span<const int64_t>(axes));
}

Shape reduced_shape(const Shape& shape, const std::vector<int64_t>& axes) {
  Shape reduced = shape;
  for (const int64_t axis : axes) reduced[static_cast<size_t>(axis)] = 1;
  return reduced;
}

/// The sum over `axes`, element by element in f64.
std::vector<double> plain_sum(const Tensor& x, const std::vector<int64_t>& axes) {
  const Shape reduced = reduced_shape(x.shape(), axes);
  const Shape strides = strides_of(x.shape()), to = strides_of(reduced);
  std::vector<double> sums(static_cast<size_t>(element_count(reduced)), 0.0);
  for (int64_t i = 0; i < x.size(); ++i) {
    int64_t at = 0;
    for (size_t d = 0; d < strides.size(); ++d) {
      const int64_t index = i / strides[d] % x.shape()[d];
      if (reduced[d] != 1) at += index * to[d];
    }
    sums[static_cast<size_t>(at)] += x.at_as_double(i);
  }
  return sums;
}

void expect_sum(const Shape& shape, const std::vector<int64_t>& axes) {
  SCOPED_TRACE(to_string(shape) + " over " + to_string(axes));
  const Tensor x = random_tensor(DType::kF32, shape, -1, 1);
  const Tensor y = run_one("", "ReduceSum", {x, axes_tensor(axes)}, {},
                           {DType::kF32, reduced_shape(shape, axes)});
  const std::vector<double> wanted = plain_sum(x, axes);
  for (int64_t i = 0; i < y.size(); ++i) {
    // Summed in f64, so one rounding to f32 is the error.
    const double sum = wanted[static_cast<size_t>(i)];
    ASSERT_NEAR(y.at_as_double(i), sum, 0x1p-24 * std::fabs(sum) + 1e-10);
  }
}

TEST(Reduce, TakesEverySetOfAxes) {
  for (int64_t mask = 1; mask < 16; ++mask) {
    std::vector<int64_t> axes;
    for (int64_t d = 0; d < 4; ++d) {
      if (mask >> d & 1) axes.push_back(d);
    }
    expect_sum({3, 4, 5, 7}, axes);
    expect_sum({3, 1, 5, 1}, axes);
  }
}

TEST(Reduce, CutsLargeSumsIntoUnits) {
  expect_sum({300007}, {0});
  expect_sum({40001, 3}, {0});
  expect_sum({3, 40001}, {1});
  expect_sum({1201, 300}, {0});
  expect_sum({64, 17, 31, 31}, {0, 2, 3});
  expect_sum({7, 2000, 5, 9}, {1, 3});
}

/// The fast row is another spelling of the same sums: the same bits, on any number of threads.
TEST(Reduce, FastSumsAreThoseOfTheReference) {
  struct Case {
    Shape shape;
    std::vector<int64_t> axes;
  };
  const std::vector<Case> cases = {
      {{}, {}},
      {{5}, {0}},
      {{0, 3}, {0}},
      {{3, 0}, {1}},
      {{70, 9}, {0}},
      {{70, 9}, {1}},
      {{4, 700, 30}, {0, 1}},
      {{1500, 777}, {0}},
      {{9, 4, 33}, {0, 2}},
      {{40, 6, 17, 13}, {0, 2, 3}},
      {{7, 1, 5}, {1}},
      {{3, 90000}, {1}},
      {{2, 3, 4, 5}, {1, 3}},
      {{100000}, {0}},
  };
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Case& c : cases) {
      SCOPED_TRACE(std::string(short_name(type)) + to_string(c.shape) + " over " +
                   to_string(c.axes));
      const std::vector<Tensor> inputs = {random_tensor(type, c.shape, -1, 1), axes_tensor(c.axes)};
      const OutputSpec output{type, reduced_shape(c.shape, c.axes)};
      const auto run = [&](std::string_view kernel) {
        return run_one("", "ReduceSum", inputs, {}, output, {.kernel = kernel});
      };
      EXPECT_TRUE(identical(run("fast.reduce_sum"), run("reference")));
      const auto mean = [&](std::string_view kernel) {
        return run_one("", "ReduceMean", inputs, {}, output, {.kernel = kernel});
      };
      if (element_count(c.shape) > 0) {
        EXPECT_TRUE(identical(mean("fast.reduce_sum"), mean("reference")));
      }
      // Ours writes f32 from 16 bits: as if it were cast before.
      const OutputSpec wide{DType::kF32, output.shape};
      const auto own = [&](std::string_view kernel) {
        return run_one("ai.halfnote", "ReduceSum", {inputs[0]}, {{"axes", c.axes}}, wide,
                       {.kernel = kernel});
      };
      const Tensor cast =
          run_one("", "ReduceSum", {inputs[0].cast_to(DType::kF32), inputs[1]}, {}, wide);
      if (c.axes.empty()) continue;  // an empty tensor of axes and an empty attribute both mean all
      EXPECT_TRUE(identical(own("fast.reduce_sum"), cast));
      EXPECT_TRUE(identical(own("reference"), cast));
    }
  }
}

TEST(Reduce, LeavesWideElementsToTheReference) {
  const auto why = [](DType type, const Shape& shape, const std::vector<int64_t>& axes) {
    return refusals("", "ReduceSum", {random_tensor(type, shape, -1, 1), axes_tensor(axes)}, {},
                    {{type, reduced_shape(shape, axes)}}, {.kernel = "fast"});
  };
  EXPECT_NE(why(DType::kF64, {3, 4}, {0}).find("f64"), std::string::npos);
  EXPECT_EQ(why(DType::kF32, {3, 4}, {0}), "");
}

TEST(Reduce, GivesTheNeutralElementOfNothing) {
  const Tensor none(DType::kF32, {2, 0});
  const auto over_nothing = [&](const char* op) {
    return run_one("", op, {none, axes_tensor({1})}, {}, {DType::kF32, {2, 1}}).at_as_double(1);
  };
  EXPECT_EQ(over_nothing("ReduceSum"), 0);
  EXPECT_EQ(over_nothing("ReduceProd"), 1);
  EXPECT_EQ(over_nothing("ReduceMax"), -INFINITY);
  EXPECT_EQ(over_nothing("ReduceMin"), INFINITY);
  EXPECT_EQ(over_nothing("ReduceLogSumExp"), -INFINITY);
  EXPECT_TRUE(std::isnan(over_nothing("ReduceMean")));
  EXPECT_EQ(run_one("", "ReduceSum", {none, axes_tensor({0})}, {}, {DType::kF32, {1, 0}}).size(),
            0);
}

TEST(Reduce, SumsIntegersInTheirOwnType) {
  const Tensor x = Tensor::of<int64_t>({3}, {(int64_t{1} << 60) + 1, 5, -(int64_t{1} << 60)});
  EXPECT_EQ(run_one("", "ReduceSum", {x}, {}, {DType::kI64, {1}}).at_as_int(0), 6);
  const Tensor four = Tensor::of<int32_t>({4}, {1, 2, 3, 5});
  EXPECT_EQ(run_one("", "ReduceMean", {four}, {}, {DType::kI32, {1}}).at_as_int(0), 2);
}

TEST(Reduce, LogSumExpNeitherOverflowsNorLosesInfinities) {
  const auto of = [](std::initializer_list<float> values) {
    const Tensor x = Tensor::of<float>({static_cast<int64_t>(values.size())}, values);
    return run_one("", "ReduceLogSumExp", {x}, {}, {DType::kF32, {1}}).at_as_double(0);
  };
  EXPECT_NEAR(of({1000, 1000}), 1000 + std::log(2.0), 1e-4);
  EXPECT_NEAR(of({-1000, -1000}), -1000 + std::log(2.0), 1e-4);
  EXPECT_EQ(of({-INFINITY, -INFINITY}), -INFINITY);
  EXPECT_EQ(of({1, INFINITY}), INFINITY);
  EXPECT_TRUE(std::isnan(of({1, NAN})));
}

TEST(Arg, CountsNanAsAnExtreme) {
  const Tensor x = Tensor::of<float>({5}, {1, NAN, 3, NAN, 0});
  for (const char* op : {"ArgMax", "ArgMin"}) {
    const auto pick = [&](int64_t last) {
      return run_one("", op, {x}, {{"select_last_index", last}}, {DType::kI64, {1}}).at_as_int(0);
    };
    EXPECT_EQ(pick(0), 1) << op;
    EXPECT_EQ(pick(1), 3) << op;
  }
}

/// A pool and its gradient; X has distinct elements far apart, so that no step changes a maximum.
struct PoolCase {
  const char* op;
  Shape in, out;
  Attributes attributes;
};

Attributes window(std::vector<int64_t> kernel, std::vector<int64_t> strides = {},
                  std::vector<int64_t> pads = {}) {
  Attributes attributes = {{"kernel_shape", kernel}};
  if (!strides.empty()) attributes.set("strides", strides);
  if (!pads.empty()) attributes.set("pads", pads);
  return attributes;
}

Attributes with(Attributes attributes, const char* name, Attribute value) {
  attributes.set(name, std::move(value));
  return attributes;
}

using Ints = std::vector<int64_t>;

const PoolCase kPools[] = {
    {"MaxPool", {2, 3, 7}, {2, 3, 3}, window({3}, {2})},
    {"MaxPool", {1, 2, 6, 7}, {1, 2, 3, 4}, window({2, 3}, {2, 2}, {0, 1, 0, 1})},
    {"MaxPool", {1, 2, 7, 7}, {1, 2, 3, 3}, with(window({2, 2}, {2, 2}), "dilations", Ints{2, 2})},
    {"MaxPool", {1, 1, 4, 5, 4}, {1, 1, 2, 2, 2}, window({2, 2, 2}, {2, 2, 2})},
    {"MaxPool", {1, 2, 5, 5}, {1, 2, 3, 3}, with(window({2, 2}, {2, 2}), "ceil_mode", int64_t{1})},
    {"AveragePool", {2, 3, 7}, {2, 3, 3}, window({3}, {2})},
    {"AveragePool", {1, 2, 6, 7}, {1, 2, 3, 4}, window({2, 3}, {2, 2}, {0, 1, 0, 1})},
    {"AveragePool",
     {1, 2, 6, 7},
     {1, 2, 3, 4},
     with(window({2, 3}, {2, 2}, {0, 1, 0, 1}), "count_include_pad", int64_t{1})},
    {"AveragePool",
     {1, 2, 5, 5},
     {1, 2, 3, 3},
     with(window({2, 2}, {2, 2}), "ceil_mode", int64_t{1})},
    {"AveragePool",
     {1, 1, 5, 5},
     {1, 1, 3, 3},
     with(window({3, 3}, {2, 2}), "auto_pad", std::string("SAME_UPPER"))},
    {"AveragePool",
     {1, 1, 4, 4},
     {1, 1, 2, 2},
     with(window({3, 3}, {2, 2}), "auto_pad", std::string("SAME_LOWER"))},
};

/// The dot product of dY and the pool of X.
double weighted(const PoolCase& test, const Tensor& x, const Tensor& dy) {
  RunOptions once;
  once.check_repeats = false;  // called very often
  const Tensor y = run_one("", test.op, {x}, test.attributes, {DType::kF64, test.out}, once);
  double sum = 0;
  for (int64_t i = 0; i < y.size(); ++i) sum += y.at_as_double(i) * dy.at_as_double(i);
  return sum;
}

TEST(PoolGrad, AgreesWithCentralDifferences) {
  constexpr double kStep = 1e-4;  // the pools are linear at this scale
  for (const PoolCase& test : kPools) {
    SCOPED_TRACE(std::string(test.op) + to_string(test.in));
    const Tensor x = random_tensor(DType::kF64, test.in, -100, 100);
    const Tensor dy = random_tensor(DType::kF64, test.out, -1, 1, 2);
    const bool max = std::string_view(test.op) == "MaxPool";
    const Tensor second = max ? x : axes_tensor(test.in);
    const Tensor dx = run_one("ai.halfnote", std::string(test.op) + "Grad", {dy, second},
                              test.attributes, {DType::kF64, test.in});
    for (int64_t i = 0; i < x.size(); ++i) {
      Tensor above = x.deep_copy(), below = x.deep_copy();
      above.mutable_data<double>()[static_cast<size_t>(i)] += kStep;
      below.mutable_data<double>()[static_cast<size_t>(i)] -= kStep;
      const double slope = (weighted(test, above, dy) - weighted(test, below, dy)) / (2 * kStep);
      ASSERT_NEAR(dx.at_as_double(i), slope, 1e-6 * std::max(1.0, std::fabs(slope))) << i;
    }
  }
}

TEST(PoolGrad, GoesToTheFirstOfEqualMaxima) {
  const Tensor x = Tensor::full(DType::kF32, {1, 1, 2, 2}, 3),
               dy = Tensor::full(DType::kF32, {1, 1, 1, 1}, 5);
  const Tensor dx =
      run_one("ai.halfnote", "MaxPoolGrad", {dy, x}, window({2, 2}), {DType::kF32, {1, 1, 2, 2}});
  EXPECT_TRUE(identical(dx, Tensor::of<float>({1, 1, 2, 2}, {5, 0, 0, 0})));
}

TEST(GlobalNorm, SumsAllSquaresInF64) {
  const Tensor a = random_tensor(DType::kF32, {40001}, -1, 1),
               b = random_tensor(DType::kF32, {3}, -9, 9);
  double sum = 0;
  for (const Tensor& x : {a, b}) {
    for (int64_t i = 0; i < x.size(); ++i) sum += x.at_as_double(i) * x.at_as_double(i);
  }
  const Tensor norm = run_one("ai.halfnote", "GlobalNorm", {a, b}, {}, {DType::kF32, {}});
  EXPECT_NEAR(norm.at_as_double(0), std::sqrt(sum), 0x1p-23 * std::sqrt(sum));
  const Tensor huge = Tensor::of<float>({2}, {3e38f, 0});
  EXPECT_EQ(run_one("ai.halfnote", "GlobalNorm", {huge}, {}, {DType::kF32, {}}).at_as_double(0),
            3e38f);
}

// Only a file asks for that, and each element of a window takes its time.
TEST(Pool, WindowsFarLargerThanTheInputAreRefused) {
  constexpr int64_t kHuge = int64_t{1} << 60;
  const Tensor x = random_tensor(DType::kF32, {1, 1, 8}, -1, 1);
  const Tensor dy = random_tensor(DType::kF32, {1, 1, 4}, -1, 1);
  const auto same = [](int64_t size) {
    return with(window({size}, {2}), "auto_pad", std::string("SAME_LOWER"));
  };
  EXPECT_NO_THROW(run_one("", "MaxPool", {x}, same(4096), {DType::kF32, {1, 1, 4}}));
  EXPECT_THROW(run_one("", "MaxPool", {x}, same(kHuge), {DType::kF32, {1, 1, 4}}), Error);
  EXPECT_THROW(run_one("ai.halfnote", "MaxPoolGrad", {dy, x}, window({kHuge}, {2}),
                       {DType::kF32, {1, 1, 8}}),
               Error);
  for (const char* name : {"strides", "dilations"}) {
    EXPECT_THROW(run_one("", "MaxPool", {x}, with(window({2}, {2}), name, Ints{kHuge * 7}),
                         {DType::kF32, {1, 1, 4}}),
                 Error)
        << name;
  }
}

TEST(AllFinite, LooksAtEveryElementOfEveryType) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      Tensor x = random_tensor(DType::kF64, {20001}, -1, 1);
      const Tensor fine = Tensor::full(DType::kF32, {5}, 1);
      const auto is_finite = [&](const Tensor& tensor) {
        return run_one("ai.halfnote", "AllFinite", {fine, tensor}, {}, {DType::kBool, {}})
                   .at_as_int(0) != 0;
      };
      EXPECT_TRUE(is_finite(x.cast_to(dtype)));
      x.mutable_data<double>()[20000] = bad;
      EXPECT_FALSE(is_finite(x.cast_to(dtype))) << short_name(dtype) << " " << bad;
    }
  }
}

}  // namespace
}  // namespace halfnote::test
