// 16-bit kernels compute in f32 and round once: on the same numbers they give the f32 result
// rounded, bit for bit. Sizes run over 0, 1, odd ones and more than one conversion chunk.
#include <gtest/gtest.h>

#include "harness.h"

namespace halfnote::test {
namespace {

struct RoundingCase {
  const char* domain;
  const char* op;
  int inputs = 1;
  double low = -3, high = 3;
  Attributes attributes = {};
};

const RoundingCase kRoundingCases[] = {
    {"", "Abs"},
    {"", "Acos", 1, -1, 1},
    {"", "Acosh", 1, 1, 5},
    {"", "Asin", 1, -1, 1},
    {"", "Asinh"},
    {"", "Atan"},
    {"", "Atanh", 1, -0.9, 0.9},
    {"", "Ceil"},
    {"", "Celu"},
    {"", "Cos"},
    {"", "Cosh"},
    {"", "Elu"},
    {"", "Erf"},
    {"", "Exp"},
    {"", "Floor"},
    {"", "Gelu"},
    {"", "HardSigmoid"},
    {"", "HardSwish"},
    {"", "Identity"},
    {"", "LeakyRelu"},
    {"", "Log", 1, 0.1, 4},
    {"", "Mish"},
    {"", "Neg"},
    {"", "Reciprocal", 1, 0.1, 4},
    {"", "Relu"},
    {"", "Round"},
    {"", "Selu"},
    {"", "Shrink"},
    {"", "Sigmoid"},
    {"", "Sign"},
    {"", "Sin"},
    {"", "Sinh"},
    {"", "Softplus"},
    {"", "Softsign"},
    {"", "Sqrt", 1, 0, 9},
    {"", "Swish"},
    {"", "Tan", 1, -1, 1},
    {"", "Tanh"},
    {"", "ThresholdedRelu"},
    {"", "Add", 2},
    {"", "Sub", 2},
    {"", "Mul", 2},
    {"", "Div", 2, 0.1, 5},
    {"", "Pow", 2, 0.1, 3},
    {"", "Mod", 2, 0.5, 9, {{"fmod", int64_t{1}}}},
    {"", "PRelu", 2},
    {"", "Min", 3},
    {"", "Max", 3},
    {"", "Sum", 3},
    {"", "Mean", 3},
    {"ai.halfnote", "GeluGrad", 2},
    {"ai.halfnote", "MishGrad", 2},
    {"ai.halfnote", "ReluGrad", 2},
    {"ai.halfnote", "SigmoidGrad", 2, 0, 1},
    {"ai.halfnote", "SwishGrad", 2},
    {"ai.halfnote", "TanhGrad", 2, -1, 1},
    {"ai.halfnote", "ClipGrad", 2},
};

class Rounding : public testing::TestWithParam<DType> {};

/// The kernel on `dtype` against the f32 kernel on the same values.
void expect_rounded(const RoundingCase& test, DType dtype, const std::vector<Tensor>& inputs,
                    const Shape& output) {
  std::vector<Tensor> wide;
  for (const Tensor& input : inputs) wide.push_back(input.cast_to(DType::kF32));
  const Tensor got = run_one(test.domain, test.op, inputs, test.attributes, {dtype, output});
  const Tensor wanted =
      run_one(test.domain, test.op, wide, test.attributes, {DType::kF32, output}).cast_to(dtype);
  EXPECT_TRUE(identical(got, wanted)) << test.op << to_string(output);
}

TEST_P(Rounding, HappensOnceOnWriting) {
  for (const RoundingCase& test : kRoundingCases) {
    for (const Shape& shape : {Shape{0}, Shape{}, Shape{7, 11}, Shape{3, 1025}}) {
      std::vector<Tensor> inputs;
      for (int i = 0; i < test.inputs; ++i) {
        inputs.push_back(
            random_tensor(GetParam(), shape, test.low, test.high, static_cast<uint32_t>(i) + 1));
      }
      expect_rounded(test, GetParam(), inputs, shape);
    }
  }
}

TEST_P(Rounding, HappensOnceWhenBroadcasting) {
  const Shape whole = {5, 3, 2051};
  for (const RoundingCase& test : kRoundingCases) {
    const bool broadcasts = test.inputs >= 2 && std::string_view(test.domain).empty();
    if (!broadcasts) continue;
    for (const Shape& part : {Shape{}, Shape{2051}, Shape{3, 1}, Shape{5, 1, 2051}}) {
      std::vector<Tensor> inputs = {random_tensor(GetParam(), whole, test.low, test.high, 1),
                                    random_tensor(GetParam(), part, test.low, test.high, 2)};
      expect_rounded(test, GetParam(), inputs, whole);
      if (std::string_view(test.op) == "PRelu") continue;  // only the slope broadcasts
      std::swap(inputs[0], inputs[1]);
      expect_rounded(test, GetParam(), inputs, whole);
    }
  }
}

TEST_P(Rounding, HappensOnceInReductions) {
  const Tensor axes = Tensor::of<int64_t>({2}, {0, 2});
  for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1",
                         "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare"}) {
    const Tensor x = random_tensor(GetParam(), {5, 3, 2051}, 0.5, 1.5);
    const Tensor got = run_one("", op, {x, axes}, {}, {GetParam(), {1, 3, 1}});
    const Tensor wanted =
        run_one("", op, {x.cast_to(DType::kF32), axes}, {}, {DType::kF32, {1, 3, 1}});
    EXPECT_TRUE(identical(got, wanted.cast_to(GetParam()))) << op;
  }
}

TEST_P(Rounding, HappensOnceInScatteredSums) {
  // 300 updates of 1 onto one element: in 16 bits bf16 would stop at 256.
  const Tensor data = Tensor::full(GetParam(), {2, 3}, 0),
               one = Tensor::full(GetParam(), {300, 3}, 1);
  const Tensor rows = Tensor::full(DType::kI64, {300, 1}, 1);
  const Tensor sum =
      run_one("", "ScatterND", {data, rows, one}, {{"reduction", std::string("add")}});
  const Tensor wanted = Tensor::of<float>({2, 3}, {0, 0, 0, 300, 300, 300}).cast_to(GetParam());
  EXPECT_TRUE(identical(sum, wanted));
}

TEST_P(Rounding, HappensOnceInPoolGradients) {
  const Attributes window = {{"kernel_shape", std::vector<int64_t>{3, 3}}};
  const Tensor dy = random_tensor(GetParam(), {2, 3, 5, 7}, -1, 1);
  const Tensor x = random_tensor(GetParam(), {2, 3, 7, 9}, -1, 1, 3);
  const Tensor shape = Tensor::of<int64_t>({4}, {2, 3, 7, 9});
  for (const bool max : {true, false}) {
    const std::string op = max ? "MaxPoolGrad" : "AveragePoolGrad";
    const Tensor got =
        run_one("ai.halfnote", op, {dy, max ? x : shape}, window, {GetParam(), x.shape()});
    const Tensor wide =
        run_one("ai.halfnote", op, {dy.cast_to(DType::kF32), max ? x.cast_to(DType::kF32) : shape},
                window, {DType::kF32, x.shape()});
    EXPECT_TRUE(identical(got, wide.cast_to(GetParam()))) << op;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Rounding, testing::Values(DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(short_name(test.param)); });

}  // namespace
}  // namespace halfnote::test
