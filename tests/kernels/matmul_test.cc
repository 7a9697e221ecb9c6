// MatMul and Gemm: the reference kernels against plain loops in f64, the oneDNN rows against the
// reference's bounds.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "exact.h"

namespace halfnote::test {
namespace {

int64_t code(DType dtype) { return static_cast<int64_t>(dtype); }

struct ProductCase {
  const char* name;
  Shape a, b, y;
  bool trans_a = false, trans_b = false;
};

const ProductCase kProducts[] = {
    {"plain", {5, 7}, {7, 3}, {5, 3}},
    {"one", {1, 1}, {1, 1}, {1, 1}},
    {"tall", {133, 9}, {9, 1}, {133, 1}},
    {"wide", {2, 200}, {200, 67}, {2, 67}},
    {"batch", {4, 3, 6}, {4, 6, 5}, {4, 3, 5}},
    {"shared_b", {4, 3, 6}, {6, 5}, {4, 3, 5}},
    {"shared_a", {3, 6}, {4, 6, 5}, {4, 3, 5}},
    {"crossed", {2, 1, 3, 4}, {5, 4, 2}, {2, 5, 3, 2}},
    {"trans_a", {7, 5}, {7, 3}, {5, 3}, true, false},
    {"trans_b", {5, 7}, {3, 7}, {5, 3}, false, true},
    {"trans_both", {2, 7, 5}, {2, 3, 7}, {2, 5, 3}, true, true},
    {"trans_shared_b", {4, 3, 6}, {5, 6}, {4, 3, 5}, false, true},
};

void check_product(const ProductCase& entry, DType in, DType out, const RunOptions& options) {
  SCOPED_TRACE(std::string(entry.name) + " " + std::string(short_name(in)) + " to " +
               std::string(short_name(out)));
  const Tensor a = random_tensor(in, entry.a, -1, 1, 1), b = random_tensor(in, entry.b, -1, 1, 2);
  const bool own = entry.trans_a || entry.trans_b || in != out;
  Attributes attributes;
  if (own) {
    attributes = {{"transA", int64_t{entry.trans_a}},
                  {"transB", int64_t{entry.trans_b}},
                  {"out_dtype", code(out)}};
  }
  const Tensor y = run_one(own ? kOwn : "", "MatMul", {a, b}, attributes, {out, entry.y}, options);
  expect_sums(y, exact_product(a, b, entry.trans_a, entry.trans_b, entry.y),
              sum_type(options.kernel, in));
}

TEST(MatMul, ReferenceIsTheSumOfProducts) {
  for (const ProductCase& entry : kProducts) {
    for (const DType type : kFloatTypes) check_product(entry, type, type, {});
    check_product(entry, DType::kBF16, DType::kF32, {});
    check_product(entry, DType::kF16, DType::kF32, {});
    check_product(entry, DType::kF64, DType::kF16, {});
  }
}

TEST(MatMul, OneDnnAgrees) {
  for (const ProductCase& entry : kProducts) {
    for (const DType in : {DType::kF32, DType::kF16, DType::kBF16}) {
      // Blocking may follow the number of threads, so only equal numbers give equal bits.
      const RunOptions options{.kernel = "onednn", .threads = 2, .check_repeats = false};
      check_product(entry, in, in, options);
      check_product(entry, in, DType::kF32, options);
    }
  }
}

TEST(MatMul, SumsInF64RoundOnce) {
  for (const ProductCase& entry : kProducts) {
    check_product(entry, DType::kF32, DType::kF32, {.kernel = "fast", .threads = 2});
  }
  // A sum that f32 in any order but this one gets wrong.
  const Tensor a = Tensor::of<float>({1, 4}, {0x1p30f, 1, -0x1p30f, 0x1p-10f});
  const Tensor ones = Tensor::of<float>({4, 1}, {1, 1, 1, 1});
  const Tensor y = run_one("", "MatMul", {a, ones}, {}, {DType::kF32, {1, 1}}, {.kernel = "fast"});
  EXPECT_EQ(y.data<float>()[0], 1 + 0x1p-10f);
}

TEST(MatMul, SumsInF64OfTinyMatricesSeeNothingElse) {
  // Tiles are larger than these: what an earlier call left in their room counts nothing.
  const Tensor nan = Tensor::full(DType::kF32, {48, 48}, NAN);
  for (const Shape& size : {Shape{8, 8, 1}, {1, 3, 1}, {3, 5, 2}, {9, 140, 17}, {65, 129, 6}}) {
    const int64_t m = size[0], k = size[1], n = size[2];
    SCOPED_TRACE(to_string(size));
    run_one("", "MatMul", {nan, nan}, {}, {DType::kF32, {48, 48}}, {.kernel = "fast"});
    const Tensor a = random_tensor(DType::kF32, {2, m, k}, -1, 1, 1);
    const Tensor b = random_tensor(DType::kF32, {2, k, n}, -1, 1, 2);
    const Tensor y =
        run_one("", "MatMul", {a, b}, {}, {DType::kF32, {2, m, n}}, {.kernel = "fast"});
    const Exact exact = exact_product(a, b, false, false, {2, m, n});
    for (int64_t i = 0; i < y.size(); ++i)
      ASSERT_EQ(y.data<float>()[i], static_cast<float>(exact.value[static_cast<size_t>(i)])) << i;
  }
}

TEST(MatMul, SumsInF64AreForSmallCalls) {
  const auto reason = [](std::string_view domain, int64_t size) {
    const Tensor x(DType::kF32, {size, size});
    return refusals(domain, "MatMul", {x, x}, {}, {{DType::kF32, {size, size}}},
                    {.kernel = "fast"});
  };
  for (const std::string_view domain : {std::string_view(""), kOwn}) {
    EXPECT_EQ(reason(domain, 48), "");
    EXPECT_NE(reason(domain, 64).find("262144 multiply-adds, above the 131072"), std::string::npos);
  }
}

TEST(MatMul, OfVectors) {
  const Tensor matrix = random_tensor(DType::kF32, {4, 6}, -1, 1, 1);
  const Tensor left = random_tensor(DType::kF32, {4}, -1, 1, 2),
               right = random_tensor(DType::kF32, {6}, -1, 1, 3);
  for (const char* kernel : {"reference", "onednn", "fast"}) {
    const RunOptions options{.kernel = kernel};
    const Tensor y = run_one("", "MatMul", {left, matrix}, {}, {DType::kF32, {6}}, options);
    const Exact rows = exact_product(left.reshaped({1, 4}), matrix, false, false, {1, 6});
    expect_sums(y.reshaped({1, 6}), rows, DType::kF32);
    const Tensor z = run_one("", "MatMul", {matrix, right}, {}, {DType::kF32, {4}}, options);
    const Exact columns = exact_product(matrix, right.reshaped({6, 1}), false, false, {4, 1});
    expect_sums(z.reshaped({4, 1}), columns, DType::kF32);
    const Tensor dot = run_one("", "MatMul", {right, right}, {}, {DType::kF32, {}}, options);
    EXPECT_NEAR(dot.at_as_double(0), inner_product(right, right), 1e-6);
  }
}

TEST(MatMul, OfIntegersWrapsAround) {
  const Tensor a = Tensor::of<int32_t>({1, 2}, {INT32_MAX, 1}),
               b = Tensor::of<int32_t>({2, 1}, {1, 1});
  EXPECT_EQ(run_one("", "MatMul", {a, b}, {}, {DType::kI32, {1, 1}}).at_as_int(0), INT32_MIN);
  const Tensor c = Tensor::of<int64_t>({1, 2}, {int64_t{1} << 40, 3}),
               d = Tensor::of<int64_t>({2, 1}, {2, -5});
  EXPECT_EQ(run_one("", "MatMul", {c, d}, {}, {DType::kI64, {1, 1}}).at_as_int(0),
            (int64_t{1} << 41) - 15);
}

TEST(MatMul, OfNothing) {
  const Tensor none(DType::kF32, {2, 0}), flat(DType::kF32, {0, 3});
  const Tensor y = run_one("", "MatMul", {none, flat}, {}, {DType::kF32, {2, 3}});
  for (const float element : y.data<float>()) EXPECT_EQ(element, 0);
  EXPECT_EQ(
      run_one("", "MatMul", {flat, Tensor(DType::kF32, {3, 4})}, {}, {DType::kF32, {0, 4}}).size(),
      0);
  EXPECT_NE(refusals("", "MatMul", {none, flat}, {}, {{DType::kF32, {2, 3}}}, {.kernel = "onednn"})
                .find("without elements"),
            std::string::npos);
}

TEST(MatMul, RejectsShapesThatDoNotFit) {
  const Tensor a = random_tensor(DType::kF32, {2, 3}, -1, 1),
               b = random_tensor(DType::kF32, {4, 2}, -1, 1);
  EXPECT_THROW(run_one("", "MatMul", {a, b}, {}, {DType::kF32, {2, 2}}), Error);
  EXPECT_THROW(run_one("", "MatMul", {a, Tensor::scalar(1.0f)}, {}, {DType::kF32, {2}}), Error);
  EXPECT_THROW(run_one("", "MatMul", {a, a.reshaped({3, 2})}, {}, {DType::kF32, {2, 3}}), Error);
}

struct GemmCase {
  const char* name;
  Shape c;
  float alpha = 1, beta = 1;
  bool trans_a = false, trans_b = false;
};

const GemmCase kGemms[] = {
    {"bias", {3}},
    {"no_c", {0}},
    {"row", {1, 3}, 1, 1, false, true},
    {"column", {5, 1}},
    {"scalar", {}},
    {"full", {5, 3}, 1, 1, true, false},
    {"alpha", {3}, 0.5f, 1},
    {"alpha_only", {0}, -2, 1, true, true},
    {"beta", {3}, 2, 0.25f},
    {"beta_zero", {5, 3}, 1, 0},
};

/// Runs a Gemm of (5, 7) by (7, 3) with every kernel that takes it.
void check_gemm(const GemmCase& entry, DType type, std::string_view kernel) {
  SCOPED_TRACE(std::string(entry.name) + " " + std::string(short_name(type)) + " " +
               std::string(kernel));
  const Tensor a = random_tensor(type, entry.trans_a ? Shape{7, 5} : Shape{5, 7}, -1, 1, 1);
  const Tensor b = random_tensor(type, entry.trans_b ? Shape{3, 7} : Shape{7, 3}, -1, 1, 2);
  std::vector<Tensor> inputs{a, b};
  if (entry.c != Shape{0}) inputs.push_back(random_tensor(type, entry.c, -1, 1, 3));
  const Attributes attributes{{"alpha", entry.alpha},
                              {"beta", entry.beta},
                              {"transA", int64_t{entry.trans_a}},
                              {"transB", int64_t{entry.trans_b}}};
  Exact exact = exact_product(a, b, entry.trans_a, entry.trans_b, {5, 3});
  ++exact.terms;
  for (int64_t i = 0; i < 15; ++i) {
    exact.value[static_cast<size_t>(i)] *= entry.alpha;
    exact.magnitude[static_cast<size_t>(i)] *= std::abs(entry.alpha);
    if (inputs.size() < 3) continue;
    const Shape c = entry.c.size() == 2 ? entry.c : Shape{1, entry.c.empty() ? 1 : entry.c[0]};
    const int64_t row = c[0] == 1 ? 0 : i / 3, column = c[1] == 1 ? 0 : i % 3;
    exact.add(i, entry.beta * inputs[2].at_as_double(row * c[1] + column));
  }
  const RunOptions options{.kernel = kernel, .check_repeats = kernel != "onednn"};
  if (!refusals("", "Gemm", inputs, attributes, {{type, {5, 3}}}, options).empty()) {
    EXPECT_NE(kernel, "reference");
    return;
  }
  const DType math = sum_type(kernel, type);
  expect_sums(run_one("", "Gemm", inputs, attributes, {type, {5, 3}}, options), exact, math);
  expect_sums(run_one(kOwn, "Gemm", inputs, attributes, {DType::kF32, {5, 3}}, options), exact,
              math);
}

TEST(Gemm, ReferenceFollowsTheFormula) {
  for (const GemmCase& entry : kGemms) {
    for (const DType type : kFloatTypes) check_gemm(entry, type, "reference");
  }
}

TEST(Gemm, OneDnnAgreesWhereItAccepts) {
  for (const GemmCase& entry : kGemms) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16})
      check_gemm(entry, type, "onednn");
  }
}

TEST(Gemm, SumsInF64TakeEveryForm) {
  for (const GemmCase& entry : kGemms) check_gemm(entry, DType::kF32, "fast");
  const Tensor a(DType::kF32, {5, 7}), b(DType::kF32, {7, 3});
  EXPECT_EQ(refusals("", "Gemm", {a, b}, {}, {{DType::kF32, {5, 3}}}, {.kernel = "fast"}), "");
}

TEST(Gemm, OneDnnTakesTheCommonForms) {
  const Tensor a(DType::kF32, {5, 7}), b(DType::kF32, {3, 7}), bias(DType::kF32, {3});
  const Attributes attributes{{"transB", int64_t{1}}};
  EXPECT_EQ(
      refusals("", "Gemm", {a, b, bias}, attributes, {{DType::kF32, {5, 3}}}, {.kernel = "onednn"}),
      "");
  const Attributes beta{{"transB", int64_t{1}}, {"beta", 0.5f}};
  EXPECT_NE(refusals("", "Gemm", {a, b, bias}, beta, {{DType::kF32, {5, 3}}}, {.kernel = "onednn"})
                .find("beta"),
            std::string::npos);
}

TEST(Gemm, RejectsShapesThatDoNotFit) {
  const Tensor a(DType::kF32, {5, 7}), b(DType::kF32, {7, 3});
  const OutputSpec y{DType::kF32, {5, 3}};
  EXPECT_THROW(run_one("", "Gemm", {a, b, Tensor(DType::kF32, {5})}, {}, y), Error);
  EXPECT_THROW(run_one("", "Gemm", {a, b, Tensor(DType::kF32, {1, 5, 3})}, {}, y), Error);
  EXPECT_THROW(run_one("", "Gemm", {a, Tensor(DType::kF32, {7})}, {}, y), Error);
}

TEST(Gemm, SmallAndUglySizesOnEveryKernel) {
  for (const int64_t size : {1, 2, 15, 16, 17, 33, 130}) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      const ProductCase entry{
          "ugly", {size, 2 * size - 1}, {2 * size - 1, size + 3}, {size, size + 3}};
      check_product(entry, type, type, {.kernel = "reference"});
      check_product(entry, type, type, {.kernel = "onednn", .check_repeats = false});
      if (type == DType::kF32 && size < 40) check_product(entry, type, type, {.kernel = "fast"});
    }
  }
}

}  // namespace
}  // namespace halfnote::test
