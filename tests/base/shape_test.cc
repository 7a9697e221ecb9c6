// Sizes that cannot overflow silently, broadcasting, axes, symbolic dims.
#include "base/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace halfnote {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

/// Runs `body`, which must throw Error(kModel), and gives its message.
template <class Body>
std::string model_error(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModel);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(CheckedArithmetic, GivesWhatFits) {
  EXPECT_EQ(checked_mul(int64_t{1} << 31, int64_t{1} << 31), int64_t{1} << 62);
  EXPECT_EQ(checked_mul(kMax, 1), kMax);
  EXPECT_EQ(checked_mul(kMin, 1), kMin);
  EXPECT_EQ(checked_mul(0, kMin), 0);
  EXPECT_EQ(checked_add(kMax, kMin), -1);
  EXPECT_EQ(checked_add(kMax - 1, 1), kMax);
}

TEST(CheckedArithmetic, RefusesWhatDoesNot) {
  const std::pair<int64_t, int64_t> products[] = {
      {int64_t{1} << 32, int64_t{1} << 31}, {kMax, 2}, {kMin, -1}, {-1, kMin}, {kMax, kMax}};
  for (const auto& [a, b] : products) {
    EXPECT_THAT(model_error([&, x = a, y = b] { checked_mul(x, y); }),
                testing::HasSubstr("does not fit into 64 bits"));
  }
  const std::pair<int64_t, int64_t> sums[] = {{kMax, 1}, {1, kMax}, {kMin, -1}, {kMin, kMin}};
  for (const auto& [a, b] : sums) {
    EXPECT_THAT(model_error([&, x = a, y = b] { checked_add(x, y); }),
                testing::HasSubstr(std::to_string(a) + " plus " + std::to_string(b)));
  }
}

TEST(ElementCount, CountsAndLimits) {
  EXPECT_EQ(element_count(Shape{}), 1);
  EXPECT_EQ(element_count(Shape{2, 3, 4}), 24);
  EXPECT_EQ(element_count(Shape{5, 0, 7}), 0);
  EXPECT_EQ(element_count(Shape{kMaxElements}), kMaxElements);
  EXPECT_EQ(element_count(Shape{1 << 20, 1 << 20}), kMaxElements);
}

TEST(ElementCount, RefusesNegativeAndHugeShapes) {
  EXPECT_EQ(model_error([] { element_count(Shape{2, -1}); }), "a negative dim in shape [2,-1]");
  EXPECT_THAT(model_error([] { element_count(Shape{0, -1}); }), testing::HasSubstr("negative"));
  EXPECT_THAT(model_error([] { element_count(Shape{kMaxElements + 1}); }),
              testing::HasSubstr("expected at most 2^40 elements, got shape [1099511627777]"));
  for (const Shape& shape : {Shape{kMax, kMax}, Shape{int64_t{1} << 32, int64_t{1} << 32},
                             Shape{1 << 20, 1 << 20, 2}, Shape{3, kMax, kMin + 1}}) {
    EXPECT_THROW(element_count(shape), Error) << to_string(shape);
  }
}

TEST(ElementCount, ZeroDimHidesNoOverflowOfTheOthers) {
  EXPECT_THROW(element_count(Shape{0, int64_t{1} << 41}), Error);
  EXPECT_THROW(element_count(Shape{int64_t{1} << 41, 0}), Error);
  EXPECT_EQ(element_count(Shape{0, int64_t{1} << 40}), 0);
}

TEST(Strides, AreRowMajor) {
  EXPECT_EQ(strides_of(Shape{}), Shape{});
  EXPECT_EQ(strides_of(Shape{7}), Shape{1});
  EXPECT_EQ(strides_of(Shape{2, 3, 4}), (Shape{12, 4, 1}));
  EXPECT_THROW(strides_of(Shape{1, kMax, kMax}), Error);
}

TEST(NormalizeAxis, CountsFromEitherEnd) {
  EXPECT_EQ(normalize_axis(0, 3), 0);
  EXPECT_EQ(normalize_axis(2, 3), 2);
  EXPECT_EQ(normalize_axis(-1, 3), 2);
  EXPECT_EQ(normalize_axis(-3, 3), 0);
}

TEST(NormalizeAxis, RefusesAxesOutside) {
  EXPECT_EQ(model_error([] { normalize_axis(3, 3); }),
            "axis out of range: expected an axis in [-3, 3), got 3");
  EXPECT_THROW(normalize_axis(-4, 3), Error);
  EXPECT_THROW(normalize_axis(0, 0), Error);
  EXPECT_THROW(normalize_axis(-1, 0), Error);
  EXPECT_THROW(normalize_axis(kMin, 2), Error);
}

TEST(Broadcast, FollowsNumPy) {
  const struct {
    Shape a, b, want;
  } cases[] = {{{}, {}, {}},
               {{2, 3}, {}, {2, 3}},
               {{2, 3}, {3}, {2, 3}},
               {{2, 1}, {1, 3}, {2, 3}},
               {{4, 1, 5}, {2, 1}, {4, 2, 5}},
               {{0}, {1}, {0}},
               {{1}, {0}, {0}},
               {{3, 0}, {3, 1}, {3, 0}},
               {{1, 1, 1}, {7}, {1, 1, 7}}};
  for (const auto& c : cases) {
    EXPECT_EQ(broadcast_shapes(c.a, c.b), c.want) << to_string(c.a) << " " << to_string(c.b);
    EXPECT_EQ(broadcast_shapes(c.b, c.a), c.want) << to_string(c.b) << " " << to_string(c.a);
  }
}

TEST(Broadcast, RefusesDifferentDims) {
  EXPECT_EQ(model_error([] {
              broadcast_shapes(Shape{2, 3}, Shape{2});
            }),
            "shapes do not broadcast: expected dims that are equal or 1, got [2,3] and [2]");
  EXPECT_THROW(broadcast_shapes(Shape{0}, Shape{2}), Error);
}

TEST(Dims, AreTheSameByNumberOrSymbol) {
  EXPECT_TRUE(Dim(3).same_as(Dim(3)));
  EXPECT_FALSE(Dim(3).same_as(Dim(4)));
  EXPECT_TRUE(Dim::named("N").same_as(Dim::named("N")));
  EXPECT_FALSE(Dim::named("N").same_as(Dim::named("M")));
  EXPECT_FALSE(Dim::named("N").same_as(Dim(3)));
  EXPECT_FALSE(Dim().same_as(Dim()));
  EXPECT_EQ(Dim(), Dim());
}

TEST(SymbolicShapes, ConvertAndPrint) {
  const SymbolicShape open = {Dim::named("N"), 3, Dim()};
  EXPECT_EQ(to_string(open), "[N,3,?]");
  EXPECT_FALSE(is_concrete(open));
  const SymbolicShape closed = symbolic(Shape{2, 3});
  EXPECT_TRUE(is_concrete(closed));
  EXPECT_EQ(concrete(closed), (Shape{2, 3}));
  EXPECT_TRUE(is_concrete(SymbolicShape{}));
  EXPECT_EQ(to_string(SymbolicShape{}), "[]");
  EXPECT_EQ(to_string(std::span<const int64_t>(Shape{2, 0})), "[2,0]");
}

}  // namespace
}  // namespace halfnote
