// Rows that indices name, moved whole, against the reference.
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/kernels/exact.h"

namespace halfnote::test {
namespace {

const RunOptions kRows{.kernel = "fast.indexed_rows", .constants = false};
const RunOptions kElements{.constants = false, .check_device = false};

/// Row numbers below `dim`, some of them counted from the end; every third row mixes them.
template <class I>
Tensor row_numbers(const Shape& shape, int64_t dim) {
  const int64_t width =
      shape.size() < 2 ? 1 : element_count(shape) / std::max<int64_t>(1, shape[0]);
  std::vector<I> numbers;
  for (int64_t i = 0; i < element_count(shape); ++i) {
    const int64_t row = i / width, number = (row * 7 + (row % 3 == 2 ? i % 5 : 0)) % dim;
    numbers.push_back(static_cast<I>(row % 4 == 1 ? number - dim : number));
  }
  return Tensor::of<I>(shape, std::span<const I>(numbers));
}

TEST(FastIndexedRows, GathersAndAddsAsTheReference) {
  const Attributes add{{"axis", int64_t{0}}, {"reduction", std::string("add")}};
  for (const Shape& data :
       {Shape{9, 8}, Shape{5, 64}, Shape{1, 33}, Shape{7, 3, 10}, Shape{6, 300}}) {
    for (const int64_t rows : {0, 1, 23}) {
      SCOPED_TRACE(to_string(data) + " " + std::to_string(rows));
      Shape shape = data;
      shape[0] = rows;
      for (const Tensor& indices :
           {row_numbers<int64_t>(shape, data[0]), row_numbers<int32_t>(shape, data[0])}) {
        for (const DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kI64}) {
          const std::vector<Tensor> inputs{random_tensor(type, data, -9, 9, 1), indices};
          const OutputSpec y{type, shape};
          EXPECT_TRUE(identical(run_one("", "GatherElements", inputs, {}, y, kRows),
                                run_one("", "GatherElements", inputs, {}, y, kElements)));
        }
        const std::vector<Tensor> inputs{random_tensor(DType::kF32, data, -9, 9, 1), indices,
                                         random_tensor(DType::kF32, shape, -9, 9, 2)};
        const OutputSpec y{DType::kF32, data};
        EXPECT_TRUE(identical(run_one("", "ScatterElements", inputs, add, y, kRows),
                              run_one("", "ScatterElements", inputs, add, y, kElements)));
      }
      const Attributes sum{{"reduction", std::string("add")}};
      const std::vector<Tensor> inputs{random_tensor(DType::kF32, data, -9, 9, 1),
                                       row_numbers<int64_t>({rows, 1}, data[0]),
                                       random_tensor(DType::kF32, shape, -9, 9, 2)};
      const OutputSpec y{DType::kF32, data};
      EXPECT_TRUE(identical(run_one("", "ScatterND", inputs, sum, y, kRows),
                            run_one("", "ScatterND", inputs, sum, y, kElements)));
    }
  }
}

TEST(FastIndexedRows, RefusesIndicesOutOfRange) {
  const Tensor data(DType::kF32, {4, 8});
  for (const int64_t wrong : {4, -5}) {
    const Tensor indices = Tensor::full(DType::kI64, {3, 8}, static_cast<double>(wrong));
    EXPECT_THROW(run_one("", "GatherElements", {data, indices}, {}, {DType::kF32, {3, 8}}, kRows),
                 Error);
  }
}

TEST(FastIndexedRows, SaysWhatItDoesNotTake) {
  const auto reason = [](const Shape& data, const Shape& indices, int64_t axis) {
    return refusals("", "GatherElements", {Tensor(DType::kF32, data), Tensor(DType::kI64, indices)},
                    {{"axis", axis}}, {{DType::kF32, indices}}, kRows);
  };
  EXPECT_NE(reason({4, 9}, {4, 3}, 1).find("not along the first axis"), std::string::npos);
  EXPECT_NE(reason({4, 9}, {3, 8}, 0).find("parts of rows"), std::string::npos);
  EXPECT_NE(reason({4, 3}, {2, 3}, 0).find("narrow rows"), std::string::npos);
}

}  // namespace
}  // namespace halfnote::test
