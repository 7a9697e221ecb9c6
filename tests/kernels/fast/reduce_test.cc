// Our own reductions over the last axes, and ArgMax and ArgMin, against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/pointwise/loops.h"
#include "tests/kernels/exact.h"

namespace halfnote::test {
namespace {

struct ReduceCase {
  Shape x;
  std::vector<int64_t> axes;
};

const ReduceCase kReductions[] = {
    {{1}, {0}},          {{5}, {0}},       {{3, 1}, {1}},          {{7, 2}, {1}},
    {{3, 5, 4}, {2}},    {{9, 7}, {1}},    {{2, 3, 8}, {-1}},      {{33, 15}, {1}},
    {{4, 16}, {1}},      {{3, 17}, {1}},   {{2, 3, 63}, {2}},      {{5, 64}, {1}},
    {{5, 65}, {1}},      {{3, 200}, {1}},  {{2, 3, 5, 7}, {2, 3}}, {{2, 3, 5, 7}, {1, 2, 3}},
    {{6, 5, 1, 3}, {3}}, {{4, 9, 1}, {1}}, {{2, 4097}, {1}},       {{1300, 3}, {1}},
    {{37, 6}, {1}},      {{21, 9}, {1}},   {{33, 10}, {1}},        {{19, 11}, {1}},
    {{18, 12}, {1}},     {{17, 13}, {1}},  {{16, 14}, {1}},
};

Shape reduced(const ReduceCase& c) {
  Shape y = c.x;
  for (const int64_t axis : c.axes) y[axis < 0 ? y.size() - 1 : static_cast<size_t>(axis)] = 1;
  return y;
}

Tensor axes_tensor(const ReduceCase& c) {
  return Tensor::of<int64_t>({static_cast<int64_t>(c.axes.size())},
                             std::span<const int64_t>(c.axes));
}

/// Ties, zeros of either sign, NaN and infinities; mostly finite rows.
Tensor with_specials(DType type, const Shape& shape) {
  Tensor x = random_tensor(DType::kF64, shape, -3, 3, 1);
  auto all = x.mutable_data<double>();
  for (size_t i = 0; i < all.size(); ++i) {
    all[i] = std::round(all[i]);
    if (i % 61 == 5) all[i] = std::nan("");
    if (i % 53 == 7) all[i] = -std::numeric_limits<double>::infinity();
    if (i % 97 == 9) all[i] = std::numeric_limits<double>::infinity();
  }
  return x.cast_to(type);
}

/// The reference alone: the device has tests of its own, and its emulation takes its time.
const RunOptions kPlain{.check_device = false};

TEST(FastReduce, HasTheBitsOfTheReference) {
  for (const ReduceCase& c : kReductions) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const std::string_view op :
           {"ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceProd"}) {
        SCOPED_TRACE(std::string(op) + to_string(c.x) + " " + std::string(short_name(type)));
        const std::vector<Tensor> inputs{random_tensor(type, c.x, -1.5, 1.5, 1), axes_tensor(c)};
        const OutputSpec y{type, reduced(c)};
        EXPECT_TRUE(identical(run_one("", op, inputs, {}, y, {.kernel = "fast.reduce_rows"}),
                              run_one("", op, inputs, {}, y, kPlain)));
      }
    }
  }
}

TEST(FastReduce, SumsSixteenBitsIntoF32) {
  for (const ReduceCase& c : kReductions) {
    const std::vector<Tensor> inputs{random_tensor(DType::kBF16, c.x, -1, 1, 1), axes_tensor(c)};
    const OutputSpec y{DType::kF32, reduced(c)};
    EXPECT_TRUE(identical(run_one(kOwn, "ReduceSum", inputs, {}, y, {.kernel = "fast.reduce_rows"}),
                          run_one(kOwn, "ReduceSum", inputs, {}, y, kPlain)))
        << to_string(c.x);
  }
}

TEST(FastReduce, FindsTheExtremesAndLetsNonFiniteNumbersThrough) {
  for (const ReduceCase& c : kReductions) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const std::string_view op :
           {"ReduceMax", "ReduceMin", "ReduceSum", "ReduceL2", "ReduceProd"}) {
        SCOPED_TRACE(std::string(op) + to_string(c.x) + " " + std::string(short_name(type)));
        const std::vector<Tensor> inputs{with_specials(type, c.x), axes_tensor(c)};
        const OutputSpec y{type, reduced(c)};
        expect_close(run_one("", op, inputs, {}, y, {.kernel = "fast.reduce_rows"}),
                     run_one("", op, inputs, {}, y, kPlain), 0, 0);
      }
    }
  }
}

TEST(FastReduce, LogSumExpIsWithinAFewSpacings) {
  if (!cpu::pointwise::vector_loops()) GTEST_SKIP() << "this CPU has only the baseline";
  for (const ReduceCase& c : kReductions) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(to_string(c.x) + " " + std::string(short_name(type)));
      for (const Tensor& x : {with_specials(type, c.x), random_tensor(type, c.x, -90, 90, 2),
                              random_tensor(type, c.x, -4, 4, 3)}) {
        const OutputSpec y{type, reduced(c)};
        // Exponentials to 2 spacings, so the logarithm of their sum to 4·2^-24; one rounding.
        expect_close(run_one("", "ReduceLogSumExp", {x, axes_tensor(c)}, {}, y,
                             {.kernel = "fast.reduce_rows"}),
                     run_one("", "ReduceLogSumExp", {x, axes_tensor(c)}, {}, y, kPlain),
                     2 * unit_roundoff(type), 8 * 0x1p-24);
      }
    }
  }
}

TEST(FastReduce, PoolsWholePlanes) {
  for (const Shape& x : {Shape{2, 3, 7, 7}, Shape{3, 5, 2, 2}, Shape{2, 3, 33},
                         Shape{1, 2, 3, 4, 5}, Shape{2, 3, 1, 1}}) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(to_string(x) + " " + std::string(short_name(type)));
      Shape pooled = x;
      for (size_t d = 2; d < pooled.size(); ++d) pooled[d] = 1;
      const OutputSpec y{type, pooled};
      const Tensor data = with_specials(type, x);
      for (const std::string_view op : {"GlobalMaxPool", "GlobalAveragePool"}) {
        expect_close(run_one("", op, {data}, {}, y, {.kernel = "fast"}),
                     run_one("", op, {data}, {}, y), 0, 0);
      }
    }
  }
}

TEST(FastReduce, SaysWhatItDoesNotTake) {
  const auto reason = [](const Shape& x, const Shape& y, std::vector<int64_t> axes) {
    return refusals("", "ReduceMax", {Tensor(DType::kF32, x), axes_tensor({x, std::move(axes)})},
                    {}, {{DType::kF32, y}}, {.kernel = "fast"});
  };
  EXPECT_NE(reason({3, 4}, {1, 4}, {0}).find("not the last axes"), std::string::npos);
  EXPECT_NE(reason({2, 40000}, {2, 1}, {1}).find("several units"), std::string::npos);
  EXPECT_NE(reason({0, 4}, {0, 1}, {1}).find("no elements"), std::string::npos);
  EXPECT_NE(reason({3, 0}, {3, 1}, {1}).find("no elements"), std::string::npos);
}

/// ArgMax and ArgMin along every axis.
TEST(FastReduce, FindsThePlaces) {
  for (const Shape& x : {Shape{8}, Shape{5, 9}, Shape{2, 17, 10}, Shape{3, 64, 33},
                         Shape{8, 9, 700}, Shape{70, 16}, Shape{4, 11, 1}}) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (size_t axis = 0; axis < x.size(); ++axis) {
        if (x[axis] == 1) continue;
        for (const int64_t last : {0, 1}) {
          SCOPED_TRACE(to_string(x) + " " + std::string(short_name(type)) + " " +
                       std::to_string(axis) + " " + std::to_string(last));
          Shape y = x;
          y[axis] = 1;
          const Attributes attributes{{"axis", static_cast<int64_t>(axis)},
                                      {"select_last_index", last}};
          const Tensor data = with_specials(type, x);
          for (const std::string_view op : {"ArgMax", "ArgMin"}) {
            const OutputSpec places{DType::kI64, y};
            EXPECT_TRUE(identical(run_one("", op, {data}, attributes, places, {.kernel = "fast"}),
                                  run_one("", op, {data}, attributes, places, kPlain)));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace halfnote::test
