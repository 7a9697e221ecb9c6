// Products that the library has no kernel for: asked for while the step is planned, without the
// bias then, and else computed by plain loops.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/cuda/libraries/lt_request.h"
#include "tests/cuda/harness/call.h"

namespace halfnote::cuda_emulated {
namespace {

using libraries::LtRequest;

/// As long as it is there, the emulated library lacks some kernels.
class Lacking {
 public:
  explicit Lacking(std::function<bool(const LtRequest&)> what) { refuse_matmuls(std::move(what)); }
  ~Lacking() { refuse_matmuls(nullptr); }
  Lacking(const Lacking&) = delete;
  Lacking& operator=(const Lacking&) = delete;
};

Call gemm(DType dtype, bool transposed = false) {
  Attributes attributes;
  if (transposed) attributes.set("transB", int64_t{1});
  attributes.set("alpha", 0.5f);
  return {"",
          "Gemm",
          {random(dtype, {7, 5}), random(dtype, transposed ? Shape{9, 5} : Shape{5, 9}, -1, 1, 2),
           random(dtype, {9}, -1, 1, 3)},
          attributes,
          {{dtype, {7, 9}}}};
}

Call stack(DType dtype) {
  return {"",
          "MatMul",
          {random(dtype, {2, 1, 7, 5}), random(dtype, {3, 5, 9}, -1, 1, 2)},
          {},
          {{dtype, {2, 3, 7, 9}}}};
}

TEST(Products, BiasOfItsOwnWhereTheLibraryCannotAddIt) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "for the emulated library";
  const Lacking lacking([](const LtRequest& r) { return r.has_bias; });
  for (const DType dtype : kStored) {
    std::vector<MatmulCall> calls;
    record_matmuls(&calls);
    check(gemm(dtype));
    record_matmuls(nullptr);
    EXPECT_EQ(row_of(gemm(dtype)), "blas.matmul");
    ASSERT_FALSE(calls.empty());
    for (const MatmulCall& call : calls) EXPECT_FALSE(call.request.has_bias);
  }
}

TEST(Products, RefusedWithTheReason) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "for the emulated library";
  const Lacking lacking([](const LtRequest& r) { return r.a.dtype == DType::kBF16; });
  EXPECT_EQ(row_of(gemm(DType::kF16)), "blas.matmul");
  for (const Call& call : {gemm(DType::kBF16), gemm(DType::kBF16, true), stack(DType::kBF16)}) {
    const KernelChoice choice = test::open_tested_device()->kernels().choose(kernel_call(call));
    EXPECT_EQ(row_of(call), "own.matmul");
    ASSERT_EQ(choice.refusals.size(), 1u);
    EXPECT_EQ(choice.refusals[0].reason, libraries::kNoMatmulKernel);
    check(call);
  }
}

/// What has a kernel wherever its operands lie, or where the plan puts them.
TEST(Products, AskedForAtTheLeastAlignment) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "for the emulated library";
  {
    const Lacking lacking([](const LtRequest& r) { return r.alignment < 16; });
    EXPECT_EQ(row_of(gemm(DType::kF16)), "blas.matmul");
    check(gemm(DType::kF16));
  }
  {
    const Lacking lacking([](const LtRequest& r) { return r.alignment <= 16; });
    EXPECT_EQ(row_of(gemm(DType::kF16)), "own.matmul");
  }
  libraries::MatmulProblem p;
  p.ab = DType::kBF16;
  p.d = DType::kF32;
  p.m = p.n = p.k = 3;
  p.has_bias = true;
  const LtRequest least = libraries::least_request(p);
  EXPECT_EQ(least.alignment, 2u);
  const auto bias = reinterpret_cast<uintptr_t>(libraries::least_operands(least).bias);
  EXPECT_EQ(bias % 4, 0u);
  EXPECT_EQ(bias % 8, 4u);
}

/// Batches of odd sizes: the products behind the first begin where no kernel of the library can.
TEST(Products, AskedForAtTheAlignmentOfTheirBatches) {
  if (test::tested_device() != "cuda-emulated") GTEST_SKIP() << "for the emulated library";
  const Lacking lacking([](const LtRequest& r) { return r.alignment < 16; });
  EXPECT_EQ(row_of(stack(DType::kF16)), "own.matmul");
  check(stack(DType::kF16));
  const Call even{"",
                  "MatMul",
                  {random(DType::kF16, {2, 1, 8, 16}), random(DType::kF16, {3, 16, 8}, -1, 1, 2)},
                  {},
                  {{DType::kF16, {2, 3, 8, 8}}}};
  EXPECT_EQ(row_of(even), "blas.matmul");
  // Behind 72 bytes each.
  const Call by_eight{"",
                      "MatMul",
                      {random(DType::kF16, {2, 1, 6, 6}), random(DType::kF16, {3, 6, 6}, -1, 1, 2)},
                      {},
                      {{DType::kF16, {2, 3, 6, 6}}}};
  EXPECT_EQ(row_of(by_eight), "own.matmul");
  refuse_matmuls([](const LtRequest& r) { return r.alignment < 8; });
  EXPECT_EQ(row_of(by_eight), "blas.matmul");
  EXPECT_EQ(on_device(by_eight).size(), 1u);
}

/// The plain loops on whatever device is tested.
TEST(CudaProducts, PlainLoops) {
  const auto device = test::open_tested_device();
  for (const DType dtype : kFloats) {
    for (const Call& call : {gemm(dtype), gemm(dtype, true), stack(dtype)}) {
      const KernelCall asked = kernel_call(call);
      const KernelChoice choice = device->kernels().choose(asked, "own.matmul");
      ASSERT_NE(choice.kernel, nullptr);
      const auto got = test::run_kernel(*device, *choice.kernel, asked.outputs, call.inputs, {});
      test::expect_near(got[0], on_cpu(call)[0], std::string(short_name(dtype)));
    }
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
