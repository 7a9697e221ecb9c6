// Bodies of the elementwise gradient ops against their kernels, in all four types.
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "compiler/ops/operator.h"
#include "tests/ops/body_harness.h"

namespace halfnote::test {
namespace {

constexpr DType kElementwiseTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
const Shape kElementwiseShapes[] = {{}, {0, 3}, {1}, {257}, {3, 5, 7}};

/// Numbers `s` in [low, high), which is X or Y as the op reads it.
struct ElementwiseCall {
  const char* op;
  double low = -4, high = 4;
  Attributes attributes = {};
  /// Spacings of the math type by which functions of two libraries, or erf against erfc, may
  /// differ.
  double functions = 8;
};

const ElementwiseCall kCalls[] = {
    {"AbsGrad"},
    {"AcosGrad", -0.99, 0.99},
    {"AcoshGrad", 1.05, 9},
    {"AsinGrad", -0.99, 0.99},
    {"AsinhGrad"},
    {"AtanGrad"},
    {"AtanhGrad", -0.99, 0.99},
    {"CeluGrad"},
    {"CeluGrad", -4, 4, {{"alpha", 0.6f}}},
    {"CosGrad"},
    {"CoshGrad"},
    {"EluGrad", -0.9, 4},
    {"EluGrad", -1.3, 4, {{"alpha", 1.3f}}},
    {"EluGrad", -4, 4, {{"alpha", -0.5f}, {"from_input", int64_t{1}}}},
    {"ErfGrad"},
    {"ExpGrad", 0, 9},
    {"GeluGrad", -3, 4, {}, 64},  // 1 + erf(x) cancels where erfc(-x) does not
    {"GeluGrad", -4, 4, {{"approximate", std::string("tanh")}}},
    {"HardSigmoidGrad"},
    {"HardSigmoidGrad", -4, 4, {{"alpha", 0.5f}, {"beta", 0.25f}}},
    {"HardSwishGrad", -5, 5},
    {"LeakyReluGrad"},
    {"LeakyReluGrad", -4, 4, {{"alpha", -0.3f}, {"from_input", int64_t{1}}}},
    {"LogGrad", 0.05, 9},
    {"MishGrad", -30, 30},
    {"ReciprocalGrad"},
    {"ReluGrad"},
    {"SeluGrad", -4, 4},
    {"SeluGrad", -4, 4, {{"alpha", 1.2f}, {"gamma", 1.5f}}},
    {"ShrinkGrad"},
    {"ShrinkGrad", -4, 4, {{"lambd", 1.5f}, {"bias", 0.5f}}},
    {"SigmoidGrad", 0, 1},
    {"SinGrad"},
    {"SinhGrad"},
    {"SoftplusGrad", -30, 30},
    {"SoftsignGrad"},
    {"SqrtGrad", 0.05, 4},
    {"SwishGrad", -20, 20},
    {"SwishGrad", -20, 20, {{"alpha", 1.7f}}},
    {"TanGrad", -1.4, 1.4},
    {"TanhGrad", -1, 1},
    {"ThresholdedReluGrad"},
    {"ThresholdedReluGrad", -4, 4, {{"alpha", 0.3f}}},
};

TEST(ElementwiseBody, AgreesWithItsKernel) {
  for (const ElementwiseCall& call : kCalls) {
    for (DType dtype : kElementwiseTypes) {
      for (const Shape& shape : kElementwiseShapes) {
        expect_body_agrees({std::string(short_name(dtype)) + to_string(shape),
                            call.op,
                            call.attributes,
                            {random_tensor(dtype, shape, 1, -2, 2),
                             random_tensor(dtype, shape, 2, call.low, call.high)}},
                           call.functions);
      }
    }
  }
}

TEST(ElementwiseBody, EveryGradientOpIsTested) {
  std::set<std::string_view> tested = {"ClipGrad"};
  for (const ElementwiseCall& call : kCalls) tested.insert(call.op);
  for (const OperatorRow& row : operator_rows()) {
    const size_t suffix = row.name.rfind("Grad");
    if (row.domain.empty() || suffix == std::string_view::npos) continue;
    // Those of one operand beside dY belong to an op whose own rule emits them.
    const OperatorRow* forward = find_operator("", row.name.substr(0, suffix));
    const OperatorRow* relu = find_operator("", "Relu");
    if (forward == nullptr || forward->gradient != relu->gradient) continue;
    EXPECT_EQ(tested.count(row.name), 1u) << row.name;
  }
}

/// At a kink the body must take the same side as the kernel.
TEST(ElementwiseBody, AgreesAtKinksAndInfinities) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  struct Points {
    const char* op;
    std::vector<double> points;
  };
  const Points kPoints[] = {
      {"AbsGrad", {0, -0.0, nan, inf, -inf}},  {"ReluGrad", {0, -0.0, nan, inf, -inf}},
      {"LeakyReluGrad", {0, -0.0, inf, -inf}}, {"HardSigmoidGrad", {-2.5, 2.5, inf, -inf}},
      {"HardSwishGrad", {-3, 3, inf, -inf}},   {"ShrinkGrad", {-0.5, 0.5, 0, inf, -inf}},
      {"ThresholdedReluGrad", {1, inf, -inf}}, {"CeluGrad", {0, inf}},
      {"MishGrad", {20, 21, 1000, inf}},       {"SoftplusGrad", {1000, -1000, inf, -inf}},
  };
  for (const Points& test : kPoints) {
    for (DType dtype : kElementwiseTypes) {
      const Shape shape = {static_cast<int64_t>(test.points.size())};
      const Tensor s = Tensor::of<double>(shape, test.points).cast_to(dtype);
      expect_body_agrees({"kinks", test.op, {}, {Tensor::full(dtype, shape, 1.5), s}}, 2);
    }
  }
}

TEST(ElementwiseBody, ClipGrad) {
  for (DType dtype : kElementwiseTypes) {
    const Tensor min = Tensor::scalar_of(dtype, -1), max = Tensor::scalar_of(dtype, 1.5);
    for (const Shape& shape : kElementwiseShapes) {
      const Tensor dy = random_tensor(dtype, shape, 1), x = random_tensor(dtype, shape, 2, -3, 3);
      expect_body_identical({"no bound", "ClipGrad", {}, {dy, x}});
      expect_body_identical({"min", "ClipGrad", {}, {dy, x, min}});
      expect_body_identical({"max", "ClipGrad", {}, {dy, x, Tensor{}, max}});
      expect_body_identical({"both", "ClipGrad", {}, {dy, x, min, max}});
    }
    const Tensor ends = Tensor::of<double>({4}, {-1, 1.5, -1.25, 1.75}).cast_to(dtype);
    const BodyCase call{"ends", "ClipGrad", {}, {Tensor::full(dtype, {4}, 1), ends, min, max}};
    expect_body_identical(call);
    EXPECT_EQ(run_kernel(call)[0].at_as_double(0), 1);  // the bounds are inside
    EXPECT_EQ(run_kernel(call)[0].at_as_double(1), 1);
    EXPECT_EQ(run_kernel(call)[0].at_as_double(2), 0);
    EXPECT_EQ(run_kernel(call)[0].at_as_double(3), 0);
  }
}

/// Arithmetic only: both sides have the same bits, roundings in between included.
TEST(ElementwiseBody, Pointwise) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::string type(short_name(dtype));
    const std::string program =
        "t0:" + type + " = Add(x0, x1); t1:" + type + " = LeakyRelu[0.25, 0](t0); t2:" + type +
        " = Mul(t1, t0); t3:f32 = Cast(t2); t4:bool = Less(t0, x2); t5:" + type +
        " = Where(t4, x0, t1); t6:" + type + " = ReluGrad(t5, t0); out t3, t4, t6";
    for (const Shape& shape : kElementwiseShapes) {
      const Tensor x = random_tensor(dtype, shape, 1, -2, 2), limit = random_tensor(dtype, {}, 3);
      const Tensor bias = random_tensor(dtype, {shape.empty() ? 1 : shape.back()}, 2);
      expect_body_identical({type + to_string(shape),
                             "Pointwise",
                             {{"program", program}},
                             {x, shape.empty() ? limit : bias, limit},
                             3});
    }
  }
}

/// The second operand that is dropped from is a row, which is drawn for anew in each line.
TEST(ElementwiseBody, PointwiseWithADropout) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::string type(short_name(dtype));
    const std::string program = "t0:" + type + " = Dropout[0.25, 3](x0, x1, x2); t1:" + type +
                                " = Dropout[0.5, 4](x3, x1, x2); t2:" + type +
                                " = Add(t0, t1); out t2, t0";
    for (const Shape& shape : kElementwiseShapes) {
      const Tensor x = random_tensor(dtype, shape, 1, -2, 2);
      const Tensor row = random_tensor(dtype, {shape.empty() ? 1 : shape.back()}, 2);
      expect_body_identical(
          {type + to_string(shape),
           "Pointwise",
           {{"program", program}},
           {x, Tensor::scalar<int64_t>(-5), Tensor::scalar<int64_t>(12), shape.empty() ? x : row},
           2});
    }
  }
}

TEST(ElementwiseBody, PointwiseWithASum) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::string type(short_name(dtype));
    for (const Shape& shape : {Shape{3, 8}, Shape{5, 1, 9}, Shape{0, 4}}) {
      for (const std::string& result : {type, std::string("f32")}) {
        const std::string program =
            "t0:" + type + " = Add(x0, x1); t1:" + result + " = ReduceSum[0, 1](t0); out t1, t0";
        const Tensor x = random_tensor(dtype, shape, 1, -2, 2);
        expect_body_identical({type + to_string(shape) + result,
                               "Pointwise",
                               {{"program", program}},
                               {x, random_tensor(dtype, {shape.back()}, 2)},
                               2});
      }
    }
  }
  const Tensor x = random_tensor(DType::kF32, {2, 3}, 1);
  EXPECT_THROW(
      graph_of({"dims", "Pointwise", {{"program", "t0:f32 = ReduceSum[0, 3](x0); out t0"}}, {x}}),
      Error);
}

TEST(ElementwiseBody, RefusesBrokenPrograms) {
  const Tensor x = random_tensor(DType::kF32, {2, 3}, 1),
               other = random_tensor(DType::kF32, {4}, 2);
  EXPECT_THROW(graph_of({"text", "Pointwise", {{"program", "t0:f32 = Add(x0); out t0"}}, {x, x}}),
               Error);
  EXPECT_THROW(graph_of({"none", "Pointwise", {}, {x, x}}), Error);
  EXPECT_THROW(
      graph_of({"shapes", "Pointwise", {{"program", "t0:f32 = Add(x0, x1); out t0"}}, {x, other}}),
      Error);
}

TEST(ElementwiseBody, RefusesOperandsThatDiffer) {
  const Tensor f32 = random_tensor(DType::kF32, {2, 3}, 1);
  const Tensor f16 = random_tensor(DType::kF16, {2, 3}, 1);
  const Tensor other = random_tensor(DType::kF32, {3, 2}, 1);
  const Tensor whole = random_ints(DType::kI32, {2, 3}, 1, 0, 5);
  EXPECT_THROW(graph_of({"types", "TanhGrad", {}, {f32, f16}}), Error);
  EXPECT_THROW(graph_of({"shapes", "TanhGrad", {}, {f32, other}}), Error);
  EXPECT_THROW(graph_of({"integers", "TanhGrad", {}, {whole, whole}}), Error);
  EXPECT_THROW(graph_of({"missing", "TanhGrad", {}, {f32}}), Error);
}

}  // namespace
}  // namespace halfnote::test
