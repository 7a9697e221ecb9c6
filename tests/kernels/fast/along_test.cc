// Our own CumSum and TopK against the reference, and running sums against exact ones.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/exact.h"

namespace halfnote::test {
namespace {

constexpr DType kAlongTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

/// The reference alone: the device has tests of its own, and its emulation takes its time.
const RunOptions kAlongPlain{.check_device = false};

Tensor one_number(size_t axis) {
  const std::vector<int64_t> one{static_cast<int64_t>(axis)};
  return Tensor::of<int64_t>({}, std::span<const int64_t>(one));
}

Attributes sum_directions(int64_t flags) {
  return {{"exclusive", flags & 1}, {"reverse", flags >> 1}};
}

/// Calls `check(x, axis, flags)` for every axis and direction.
template <class Check>
void for_directions(const Shape& x, const Check& check) {
  for (size_t axis = 0; axis < x.size(); ++axis) {
    for (int64_t flags = 0; flags < 4; ++flags) {
      SCOPED_TRACE(to_string(x) + " axis " + std::to_string(axis) + " flags " +
                   std::to_string(flags));
      check(axis, flags);
    }
  }
}

/// Widths of all the loops (64, 16, 8, 4, 3, 2, 1 columns), rows that are turned and few that are
/// not, lines of several blocks, several blocks of columns.
const Shape kSummed[] = {{1},           {7},       {4097},     {5, 1},       {1, 5},
                         {3, 4},        {4, 3},    {19, 33},   {2, 9, 8},    {3, 5, 31},
                         {17, 257},     {16, 256}, {35, 300},  {2, 63, 95},  {9, 1100},
                         {2, 40, 1025}, {4, 1, 6}, {70, 2, 3}, {6, 5, 7, 11}};

TEST(FastCumSum, HasTheBitsOfTheReference) {
  for (const Shape& shape : kSummed) {
    for (const DType type : kAlongTypes) {
      SCOPED_TRACE(short_name(type));
      const Tensor x = random_tensor(type, shape, -3, 4, 1);
      for_directions(shape, [&](size_t axis, int64_t flags) {
        const std::vector<Tensor> inputs{x, one_number(axis)};
        EXPECT_TRUE(identical(
            run_one("", "CumSum", inputs, sum_directions(flags), {}, {.kernel = "fast.cum_sum"}),
            run_one("", "CumSum", inputs, sum_directions(flags), {}, kAlongPlain)));
      });
    }
  }
}

TEST(FastCumSum, IsAsExactAsItsTypeAllows) {
  for (const Shape& shape : {Shape{5000}, Shape{20, 700}, Shape{2, 300, 37}}) {
    for (const DType type : kAlongTypes) {
      SCOPED_TRACE(short_name(type));
      const Tensor x = random_tensor(type, shape, -1, 1, 2);
      const std::vector<double> all = doubles(x);
      for_directions(shape, [&](size_t axis, int64_t flags) {
        const bool exclusive = (flags & 1) != 0, reverse = flags >> 1 != 0;
        int64_t inner = 1;
        for (size_t d = axis + 1; d < shape.size(); ++d) inner *= shape[d];
        const std::vector<double> got = doubles(run_one(
            "", "CumSum", {x, one_number(axis)}, sum_directions(flags), {}, {.kernel = "fast"}));
        const int64_t dim = shape[axis], step = reverse ? -inner : inner;
        int64_t wrong = 0;
        for (int64_t line = 0; line < x.size() / dim; ++line) {
          int64_t at =
              line / inner * dim * inner + line % inner + (reverse ? (dim - 1) * inner : 0);
          long double sum = 0;
          for (int64_t i = 0; i < dim; ++i, at += step) {
            const long double before = sum;
            sum += static_cast<long double>(all[static_cast<size_t>(at)]);
            const auto exact = static_cast<double>(exclusive ? before : sum);
            // Two roundings, of f32 and of the type; the sums in f64 add 2^-53 of a few thousand.
            const double bound = (unit_roundoff(type) + 0x1p-24) * std::abs(exact) + 0x1p-38;
            wrong += std::abs(got[static_cast<size_t>(at)] - exact) > bound ? 1 : 0;
          }
        }
        EXPECT_EQ(wrong, 0);
      });
    }
  }
}

TEST(FastCumSum, LetsNonFiniteNumbersThrough) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType type : kAlongTypes) {
    Tensor x = random_tensor(DType::kF64, {18, 40}, -1, 1, 3);
    auto all = x.mutable_data<double>();
    all[7] = std::nan("");
    all[50] = inf;
    all[131] = -inf;
    all[135] = inf;
    all[301] = -0.0;
    x = x.cast_to(type);
    for_directions({18, 40}, [&](size_t axis, int64_t flags) {
      const std::vector<Tensor> inputs{x, one_number(axis)};
      expect_close(run_one("", "CumSum", inputs, sum_directions(flags), {}, {.kernel = "fast"}),
                   run_one("", "CumSum", inputs, sum_directions(flags), {}, kAlongPlain), 0, 0);
    });
  }
}

TEST(FastCumSum, SaysWhatItDoesNotTake) {
  const auto reason = [](DType type, const Shape& x, bool constants) {
    return refusals("", "CumSum", {Tensor(type, x), one_number(0)}, {}, {{type, x}},
                    {.kernel = "fast", .constants = constants});
  };
  EXPECT_NE(reason(DType::kF32, {0, 3}, true).find("no elements"), std::string::npos);
  EXPECT_NE(reason(DType::kF32, {3, 0}, true).find("no elements"), std::string::npos);
  EXPECT_NE(reason(DType::kF64, {3}, true).find("f64"), std::string::npos);
  EXPECT_NE(reason(DType::kI64, {3}, true).find("i64"), std::string::npos);
  EXPECT_NE(reason(DType::kF32, {3}, false).find("axis is not known"), std::string::npos);
}

/// Ties, zeros of either sign, NaN and infinities.
Tensor with_ties(DType type, const Shape& shape) {
  Tensor x = random_tensor(DType::kF64, shape, -40, 40, 4);
  auto all = x.mutable_data<double>();
  for (size_t i = 0; i < all.size(); ++i) {
    if (i % 3 != 0) all[i] = std::round(all[i] / 8);
    if (i % 61 == 5) all[i] = std::nan("");
    if (i % 53 == 7) all[i] = -std::numeric_limits<double>::infinity();
    if (i % 97 == 9) all[i] = std::numeric_limits<double>::infinity();
  }
  return x.cast_to(type);
}

/// Heaps, short lines and counted ones.
TEST(FastTopK, PicksWhatTheReferencePicks) {
  for (const Shape& shape : {Shape{1}, Shape{2}, Shape{9, 5}, Shape{3, 128}, Shape{3, 129},
                             Shape{2, 1000}, Shape{4, 300, 3}, Shape{70000}}) {
    for (const DType type : kAlongTypes) {
      const Tensor x = with_ties(type, shape);
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        for (const int64_t k : {int64_t{1}, shape[axis] / 16, shape[axis] / 2, shape[axis]}) {
          if (k < 1) continue;
          Shape y = shape;
          y[axis] = k;
          for (const int64_t largest : {0, 1}) {
            SCOPED_TRACE(to_string(shape) + " axis " + std::to_string(axis) + " k " +
                         std::to_string(k) + " largest " + std::to_string(largest) + " " +
                         std::string(short_name(type)));
            const Attributes attributes{{"axis", static_cast<int64_t>(axis)}, {"largest", largest}};
            const std::vector<OutputSpec> outputs{{type, y}, {DType::kI64, y}};
            const std::vector<Tensor> inputs{x, one_number(static_cast<size_t>(k))};
            const auto got =
                run_kernel("", "TopK", inputs, attributes, outputs, {.kernel = "fast.top_k"});
            const auto wanted = run_kernel("", "TopK", inputs, attributes, outputs, kAlongPlain);
            EXPECT_TRUE(identical(got[0], wanted[0]));
            EXPECT_TRUE(identical(got[1], wanted[1]));
          }
        }
      }
    }
  }
}

TEST(FastTopK, SaysWhatItDoesNotTake) {
  const auto reason = [](DType type, const Shape& x, const Shape& y) {
    return refusals("", "TopK", {Tensor(type, x), one_number(0)}, {}, {{type, y}, {DType::kI64, y}},
                    {.kernel = "fast"});
  };
  EXPECT_NE(reason(DType::kF32, {3, 4}, {3, 0}).find("no elements"), std::string::npos);
  EXPECT_NE(reason(DType::kF32, {0, 4}, {0, 2}).find("no elements"), std::string::npos);
  EXPECT_NE(reason(DType::kF64, {4}, {2}).find("f64"), std::string::npos);
}

}  // namespace
}  // namespace halfnote::test
