// Products on a device of types that no library multiplies.
#include <gtest/gtest.h>

#include "tests/cuda/operators/types.h"

namespace halfnote::cuda_emulated {
namespace {

struct Sizes {
  Shape a, b, y;
};

const Sizes kSizes[] = {
    {{1, 1}, {1, 1}, {1, 1}},
    {{5, 7}, {7, 3}, {5, 3}},
    {{9}, {9, 4}, {4}},
    {{5, 9}, {9}, {5}},
    {{0, 4}, {4, 3}, {0, 3}},
    {{3, 0}, {0, 5}, {3, 5}},
    {{3}, {3}, {}},
    {{2, 1, 5, 9}, {3, 9, 4}, {2, 3, 5, 4}},
    {{2, 3}, {3, 33000}, {2, 33000}},
};

TEST(CudaPlainProduct, IntegersWrapAround) {
  int checked = 0;
  for (const DType dtype : kWhole) {
    for (const Sizes& s : kSizes) {
      checked += check_as_on_cpu(
          {"", "MatMul", {ugly(dtype, s.a), ugly(dtype, s.b, 2)}, {}, {{dtype, s.y}}});
    }
  }
  EXPECT_EQ(checked, 4 * 9);  // of 32 and 64 bits
}

TEST(CudaPlainProduct, AWideSummandIsRoundedOnce) {
  const struct {
    DType ab, c, y;
  } types[] = {{DType::kF16, DType::kF32, DType::kF16},
               {DType::kBF16, DType::kF64, DType::kF32},
               {DType::kF32, DType::kF64, DType::kF32},
               {DType::kF32, DType::kF32, DType::kBF16}};
  for (const auto& [ab, c, y] : types) {
    for (const int64_t transposed : {0, 1}) {
      for (const Shape& shape : {Shape{}, {3}, {5, 1}, {5, 3}}) {
        for (const int64_t k : {7, 0}) {
          const Shape a = transposed != 0 ? Shape{k, 5} : Shape{5, k};
          const Shape b = transposed != 0 ? Shape{3, k} : Shape{k, 3};
          const Call call{kOwn,
                          "Gemm",
                          {random(ab, a), random(ab, b, -1, 1, 2), random(c, shape, -1, 1, 3)},
                          {{"transA", transposed}, {"transB", transposed}, {"beta", 0.5f}},
                          {{y, {5, 3}}}};
          check(call);
          EXPECT_EQ(row_of(call), "own.wide_gemm");
        }
      }
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
