// The tiled matrix product against sums in f64: every type, form and border of its tiles, the
// same bits on any number of threads (the harness runs each again with 2 and 3).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/cpu_info.h"
#include "tests/kernels/exact.h"

namespace halfnote::test {
namespace {

constexpr RunOptions kTiled{.kernel = "tiled"};

bool has_kernel() { return cpu::vector_isa() == cpu::VectorIsa::kAvx512; }

struct TiledCase {
  const char* name;
  int64_t m, n, k;
  std::vector<int> forms = {0, 1, 2, 3};  // 1: A transposed, 2: B
};

// Tiles are 14 × 32. k is one block up to 768 lanes (1536 if the result is of 16 bits; a lane is
// two elements of bf16), else in blocks of at most 384; then so are the rows.
const TiledCase kTiledCases[] = {
    {"borders", 61, 129, 401},
    {"whole_tiles", 28, 64, 384},
    {"blocks_of_k", 37, 40, 1601},
    {"one_more", 15, 33, 1537},
    {"wide", 9, 1000, 65},
    {"few_columns", 1000, 24, 30},
    {"one_row_left", 71, 385, 33},
    {"rows_on_the_same_lines", 30, 40, 1024},
    {"deep", 29, 33, 3100},
    {"blocks_of_b", 31, 400, 770, {0, 3}},
    {"blocks_of_rows", 1531, 24, 800, {1}},
    {"rows_of_sums", 520, 24, 1600, {0}},
};

Tensor operand(DType type, int64_t rows, int64_t columns, bool transposed, uint32_t seed) {
  const Shape shape = transposed ? Shape{columns, rows} : Shape{rows, columns};
  return random_tensor(type, shape, -1, 1, seed);
}

TEST(TiledProduct, IsTheSumOfProducts) {
  if (!has_kernel()) GTEST_SKIP() << "the CPU has no AVX-512";
  for (const TiledCase& entry : kTiledCases) {
    for (const DType in : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int form : entry.forms) {
        const bool trans_a = (form & 1) != 0, trans_b = (form & 2) != 0;
        SCOPED_TRACE(std::string(entry.name) + " " + std::string(short_name(in)) + " form " +
                     std::to_string(form));
        const Tensor a = operand(in, entry.m, entry.k, trans_a, 1);
        const Tensor b = operand(in, entry.k, entry.n, trans_b, 2);
        const Exact exact = exact_product(a, b, trans_a, trans_b, {entry.m, entry.n});
        for (const DType out : {in, DType::kF32}) {
          const Attributes attributes{{"transA", int64_t{trans_a}},
                                      {"transB", int64_t{trans_b}},
                                      {"out_dtype", static_cast<int64_t>(out)}};
          expect_sums(
              run_one(kOwn, "MatMul", {a, b}, attributes, {out, {entry.m, entry.n}}, kTiled), exact,
              DType::kF32);
        }
      }
    }
  }
}

TEST(TiledProduct, AddsEveryFormOfC) {
  if (!has_kernel()) GTEST_SKIP() << "the CPU has no AVX-512";
  const int64_t m = 45, n = 70, k = 900;
  for (const Shape& shape : {Shape{n}, Shape{1, n}, Shape{m, 1}, Shape{m, n}, Shape{}, Shape{1}}) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      SCOPED_TRACE(to_string(shape) + " " + std::string(short_name(type)));
      const Tensor a = operand(type, m, k, false, 1), b = operand(type, k, n, false, 2);
      const Tensor c = random_tensor(type, shape, -1, 1, 3);
      const float alpha = -0.75f;
      Exact exact = exact_product(a, b, false, false, {m, n});
      exact.terms += 2;
      for (int64_t i = 0; i < m * n; ++i) {
        exact.value[static_cast<size_t>(i)] *= alpha;
        exact.magnitude[static_cast<size_t>(i)] *= std::abs(alpha);
        const bool by_row = shape.size() == 2 && shape[0] == m;
        const bool by_column = !shape.empty() && shape.back() == n;
        const int64_t at = (by_row ? i / n * (by_column ? n : 1) : 0) + (by_column ? i % n : 0);
        exact.add(i, c.at_as_double(at));
      }
      expect_sums(run_one("", "Gemm", {a, b, c}, {{"alpha", alpha}}, {type, {m, n}}, kTiled), exact,
                  DType::kF32);
    }
  }
}

TEST(TiledProduct, TakesAStackOfAAsOneProduct) {
  if (!has_kernel()) GTEST_SKIP() << "the CPU has no AVX-512";
  const Tensor a = random_tensor(DType::kF32, {3, 50, 64}, -1, 1, 1);
  const Tensor b = random_tensor(DType::kF32, {64, 96}, -1, 1, 2);
  expect_sums(run_one("", "MatMul", {a, b}, {}, {DType::kF32, {3, 50, 96}}, kTiled),
              exact_product(a, b, false, false, {3, 50, 96}), DType::kF32);
}

TEST(TiledProduct, KeepsNonFiniteResults) {
  if (!has_kernel()) GTEST_SKIP() << "the CPU has no AVX-512";
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    Tensor a = Tensor(DType::kF32, {64, 128}), b = random_tensor(type, {128, 96}, 1, 2, 2);
    a.mutable_data<float>()[5 * 128] = std::numeric_limits<float>::infinity();
    a.mutable_data<float>()[7 * 128 + 3] = std::numeric_limits<float>::quiet_NaN();
    const Tensor y = run_one("", "MatMul", {a.cast_to(type), b}, {}, {type, {64, 96}}, kTiled);
    for (int64_t j = 0; j < 96; ++j) {
      EXPECT_EQ(y.at_as_double(4 * 96 + j), 0);
      EXPECT_EQ(y.at_as_double(5 * 96 + j), std::numeric_limits<double>::infinity());
      EXPECT_TRUE(std::isnan(y.at_as_double(7 * 96 + j)));
    }
  }
}

struct TiledForm {
  DType in, out;
  int64_t m, n, k;
  bool trans_a, trans_b;
};

std::string chosen_for(const TiledForm& form) {
  const Attributes attributes{{"transA", int64_t{form.trans_a}},
                              {"transB", int64_t{form.trans_b}},
                              {"out_dtype", static_cast<int64_t>(form.out)}};
  const Shape a = form.trans_a ? Shape{form.k, form.m} : Shape{form.m, form.k};
  const Shape b = form.trans_b ? Shape{form.n, form.k} : Shape{form.k, form.n};
  KernelCall call{.domain = kOwn, .op = "MatMul", .attributes = &attributes};
  call.inputs = {{.dtype = form.in, .shape = a}, {.dtype = form.in, .shape = b}};
  call.outputs = {{.dtype = form.out, .shape = {form.m, form.n}}};
  return std::string(cpu_kernels().choose(call).row->name);
}

TEST(TiledProduct, StandsBeforeOneDnnWhereItPays) {
  if (!has_kernel()) GTEST_SKIP() << "the CPU has no AVX-512";
  constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;
  for (const TiledForm& form : {TiledForm{kF32, kF32, 1024, 768, 768, false, false},
                                TiledForm{kF32, kF32, 1024, 768, 768, false, true},
                                TiledForm{kF32, kF32, 768, 3072, 1024, true, false},
                                TiledForm{kBF16, kBF16, 512, 768, 768, false, true},
                                TiledForm{kBF16, kF32, 30522, 768, 512, true, false},
                                TiledForm{kF32, kF32, 50257, 768, 512, true, false},
                                TiledForm{kF16, kF32, 768, 768, 512, true, false}}) {
    // Tiles of AMX are oneDNN's.
    const bool pays = form.in != kBF16 || cpu::bf16_dots() != cpu::Bf16Dots::kTiles;
    EXPECT_EQ(chosen_for(form) == "tiled.matmul", pays)
        << form.m << " x " << form.n << " x " << form.k;
  }
  for (const TiledForm& form : {TiledForm{kF32, kF32, 3072, 768, 1024, true, false},
                                TiledForm{kBF16, kBF16, 256, 256, 256, false, false},
                                TiledForm{kBF16, kBF16, 32, 2048, 4096, false, false}}) {
    EXPECT_NE(chosen_for(form), "tiled.matmul") << form.m << " x " << form.n << " x " << form.k;
  }
}

TEST(TiledProduct, LeavesOtherCallsToOtherRows) {
  const auto why = [](const Shape& a, const Shape& b, const Shape& y, DType type) {
    return refusals("", "MatMul", {Tensor(type, a), Tensor(type, b)}, {}, {{type, y}}, kTiled);
  };
  EXPECT_NE(why({64, 64}, {64, 64}, {64, 64}, DType::kF64).find("f64"), std::string::npos);
  if (!has_kernel()) return;
  EXPECT_NE(why({4, 512}, {512, 512}, {4, 512}, DType::kF32).find("thin"), std::string::npos);
  EXPECT_NE(why({64, 64}, {64, 64}, {64, 64}, DType::kF32).find("small"), std::string::npos);
  EXPECT_NE(why({9, 64, 64}, {9, 64, 64}, {9, 64, 64}, DType::kF32).find("stack"),
            std::string::npos);
}

}  // namespace
}  // namespace halfnote::test
