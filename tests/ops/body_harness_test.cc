// The harness itself: it must notice what it is there for.
#include "tests/ops/body_harness.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "compiler/ops/body.h"
#include "passes/canonical/infer_shapes.h"

namespace halfnote::test {
namespace {

TEST(BodyHarness, NoticesADifference) {
  static const std::vector<Tensor> a = {Tensor::of<float>({2}, {1, 100})};
  static const std::vector<Tensor> near = {Tensor::of<float>({2}, {1.00001f, 100})};
  static const std::vector<Tensor> far = {Tensor::of<float>({2}, {1.001f, 100})};
  static const std::vector<Tensor> wide = {Tensor::of<double>({2}, {1, 100})};
  expect_close(a, near, 1);
  EXPECT_FATAL_FAILURE(expect_close(a, far, 1), "element 0");
  EXPECT_FATAL_FAILURE(expect_close(a, wide, 1), "output 0");
}

BodyCase matmul(DType dtype, const Shape& a, Attributes attributes = {}) {
  return {"call",
          "MatMul",
          std::move(attributes),
          {random_tensor(dtype, a, 1), random_tensor(dtype, {a.back(), 3}, 2)}};
}

TEST(Body, OverloadNamesTheSpecialisation) {
  const std::string f32 = body_of(matmul(DType::kF32, {5, 7})).overload;
  EXPECT_EQ(f32, body_of(matmul(DType::kF32, {5, 7})).overload);
  // Nothing in this body depends on sizes: one function serves all.
  EXPECT_EQ(f32, body_of(matmul(DType::kF32, {2, 4})).overload);
  EXPECT_NE(f32, body_of(matmul(DType::kBF16, {5, 7})).overload);
  EXPECT_NE(f32, body_of(matmul(DType::kF32, {5, 7},
                                {{"transA", int64_t{0}}, {"out_dtype", int64_t{16}}}))
                     .overload);
  EXPECT_EQ(body_of(matmul(DType::kBF16, {5, 7})).overload.substr(0, 5), "bf16_");
}

TEST(Body, DeclaresTheAttributesOfTheCall) {
  const Function function =
      body_of(matmul(DType::kF32, {5, 7}, {{"transA", int64_t{0}}, {"transB", int64_t{0}}}));
  EXPECT_EQ(function.domain, kHalfnoteDomain);
  EXPECT_EQ(function.name, "MatMul");
  EXPECT_EQ(function.attributes, (std::vector<std::string>{"transA", "transB"}));
  EXPECT_EQ(function.opsets.at(""), kOpsetVersion);
}

TEST(Body, SymbolicSizesThatItNeedsAreRefused) {
  Graph graph;
  const auto input = [&](const char* name, SymbolicShape shape) {
    return graph.add_input(graph.main(), name, ValueType::tensor(DType::kF32, std::move(shape)));
  };
  const ValueId dy = input("dy", {Dim::named("N"), 4, Dim::named("oH")});
  const ValueId x = input("x", {Dim::named("N"), 4, Dim::named("H")});
  Builder b(graph, graph.end(), infer_node);
  b.op("AveragePoolGrad", {b.value(dy), b.shape_of(b.value(x))},
       {{"kernel_shape", std::vector<int64_t>{2}}}, kHalfnoteDomain);
  try {
    build_body(graph, b.last(), infer_node);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("--dim"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace halfnote::test
