// Elementwise operators of every type on a device: integers over their whole range, which wrap
// around as the CPU's do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tests/cuda/operators/types.h"

namespace halfnote::cuda_emulated {
namespace {

constexpr int64_t kTrue = 1;

struct BinaryOp {
  std::string_view op;
  Attributes how;
  bool compares = false, divides = false;
};

std::vector<BinaryOp> binary_ops() {
  const Attributes none, fmod = {{"fmod", kTrue}};
  return {{"Add", none},
          {"And", none},
          {"BitShift", {{"direction", std::string("LEFT")}}},
          {"BitShift", {{"direction", std::string("RIGHT")}}},
          {"BitwiseAnd", none},
          {"BitwiseOr", none},
          {"BitwiseXor", none},
          {"Div", none, false, true},
          {"Equal", none, true},
          {"Greater", none, true},
          {"GreaterOrEqual", none, true},
          {"Less", none, true},
          {"LessOrEqual", none, true},
          {"Mod", none, false, true},
          {"Mod", fmod, false, true},
          {"Mul", none},
          {"Or", none},
          {"PRelu", none},
          {"Pow", none},
          {"Sub", none},
          {"Xor", none}};
}

Call binary_call(const BinaryOp& op, DType dtype, const Shape& a, const Shape& b,
                 const Shape& result) {
  Tensor right = ugly(dtype, b, 2);
  if (op.divides) right = without_zeros(right);
  return {
      "", op.op, {ugly(dtype, a), right}, op.how, {{op.compares ? DType::kBool : dtype, result}}};
}

TEST(CudaArithmetic, BinaryOpsOfAllTypes) {
  int checked = 0;
  for (const BinaryOp& op : binary_ops()) {
    for (const DType dtype : kAllTypes) {
      const auto run = [&](const Shape& a, const Shape& b, const Shape& result) {
        return check_as_on_cpu(binary_call(op, dtype, a, b, result));
      };
      if (!run({7}, {7}, {7})) continue;
      run({0}, {0}, {0});
      run({1}, {1}, {1});
      run({3, 1, 129}, {5, 1}, {3, 5, 129});
      run({}, {33}, {33});
      ++checked;
    }
  }
  // 12 numbers for 7 ops, 13 types for 5 comparisons, 8 integers for 4, 4 unsigned for two shifts,
  // bool for 3.
  EXPECT_EQ(checked, 7 * 12 + 5 * 13 + 4 * 8 + 2 * 4 + 3);
}

TEST(CudaArithmetic, LargeOperands) {
  const BinaryOp ops[] = {{"Add", {}}, {"Div", {}, false, true}, {"Less", {}, true}};
  for (const BinaryOp& op : ops) {
    for (const DType dtype : {DType::kI8, DType::kU64, DType::kF16})
      check(binary_call(op, dtype, {65537}, {65537}, {65537}));
  }
}

TEST(CudaArithmetic, EveryTypeRefusesToDivideByZero) {
  for (const DType dtype : kWhole) {
    for (const std::string_view op : {"Mod", "Div"}) {
      const Tensor a = random(dtype, {3}, 1, 9), b = Tensor(dtype, {3});
      EXPECT_THROW(on_device({"", op, {a, b}, {}, {{dtype, {3}}}}), Error) << short_name(dtype);
    }
  }
}

/// Exponents up to 9 of any type, from -3 on where there are. Halves of floats too, but for
/// integers as bases: the last bit of a root decides what it is truncated to.
Tensor exponents(DType dtype, const Shape& shape, double step) {
  const bool negative = is_signed(dtype) || is_float(dtype);
  const Tensor wide = random(DType::kF64, shape, negative ? -3 : 0, 9, 3);
  Tensor halves(DType::kF64, shape);
  auto to = halves.mutable_data<double>();
  for (size_t i = 0; i < to.size(); ++i) to[i] = std::floor(wide.data<double>()[i] / step) * step;
  return halves.cast_to(dtype);
}

TEST(CudaArithmetic, PowersOfTwoTypes) {
  int checked = 0;
  for (const DType base : kAllTypes) {
    for (const DType exponent : kAllTypes) {
      const Tensor x = is_float(base) ? random(base, {257}, 0.25, 2) : random(base, {257}, 0, 13);
      checked += check_as_on_cpu({"",
                                  "Pow",
                                  {x, exponents(exponent, {257}, is_float(base) ? 0.5 : 1)},
                                  {},
                                  {{base, {257}}}});
    }
  }
  EXPECT_EQ(checked, 12 * 13);  // a base of bool has no power
  const Tensor no_squares = Tensor::of<int64_t>({5}, {2, 3, 5, 6, 7});
  for (const DType base : kWhole) {
    const Tensor x = no_squares.cast_to(base),
                 power = Tensor::of<float>({5}, {0.5f, 1.5f, -0.5f, 2.5f, 3.5f});
    check({"", "Pow", {x, power}, {}, {{base, {5}}}});
  }
  for (const DType exponent : {DType::kI64, DType::kI32, DType::kF32}) {
    for (const Shape& shape : kUglyShapes) {
      const Tensor x = random(DType::kBF16, shape, -3, 3);
      check({"", "Pow", {x, random(exponent, {}, 2, 4)}, {}, {{DType::kBF16, shape}}});
    }
    check({"",
           "Pow",
           {random(DType::kI16, {3, 1, 5}, -9, 9), random(exponent, {7, 1}, 0, 4, 2)},
           {},
           {{DType::kI16, {3, 7, 5}}}});
  }
}

TEST(CudaArithmetic, UnaryOpsOfIntegers) {
  for (const std::string_view op : {"Abs", "BitwiseNot", "Neg", "Relu", "Sign"}) {
    for (const DType dtype : kWhole) {
      for (const Shape& shape : kUglyShapes) {
        if (element_count(shape) > 2000 && dtype != DType::kU16) continue;
        EXPECT_TRUE(check_as_on_cpu({"", op, {ugly(dtype, shape)}, {}, {{dtype, shape}}}));
      }
    }
    check_as_on_cpu({"", op, {ugly(DType::kBool, {7})}, {}, {{DType::kBool, {7}}}});
  }
}

TEST(CudaArithmetic, Tests) {
  for (const std::string_view op : {"IsInf", "IsNaN", "Not"}) {
    for (const DType dtype : kAllTypes) {
      for (const Shape& shape : kUglyShapes)
        if (!check_as_on_cpu({"", op, {ugly(dtype, shape)}, {}, {{DType::kBool, shape}}})) break;
    }
  }
  for (const char* off : {"detect_negative", "detect_positive"}) {
    const Attributes how = {{off, int64_t{0}}};
    check({"", "IsInf", {ugly(DType::kF16, {65})}, how, {{DType::kBool, {65}}}});
  }
}

/// `count` operands of some shapes that broadcast.
Call fold_call(std::string_view op, DType dtype, int count, const Shape& shape) {
  Call call{"", op, {}, {}, {{dtype, shape}}};
  for (int k = 0; k < count; ++k) {
    Shape own = shape;
    if (k % 3 == 1) own[0] = std::min<int64_t>(own[0], 1);
    if (k % 3 == 2) own.erase(own.begin());
    const auto seed = static_cast<uint32_t>(k + 1);
    call.inputs.push_back(is_float(dtype) ? random(dtype, own, -2, 2, seed)
                                          : ugly(dtype, own, seed));
  }
  return call;
}

TEST(CudaArithmetic, FoldsOfAllTypes) {
  for (const std::string_view op : {"Max", "Mean", "Min", "Sum"}) {
    for (const DType dtype : kAllTypes) {
      for (const int count : {1, 2, 17, 40}) {
        const bool taken = check_as_on_cpu(fold_call(op, dtype, count, {3, 5}));
        EXPECT_EQ(taken, dtype != DType::kBool);
      }
    }
    for (const Shape& shape : {Shape{1, 1}, {0, 7}, {7, 0}, {2, 40000}}) {
      check(fold_call(op, DType::kBF16, 3, shape));
      check(fold_call(op, DType::kU8, 33, shape));
    }
  }
}

TEST(CudaArithmetic, FoldsKeepNaN) {
  for (const std::string_view op : {"Max", "Mean", "Min", "Sum"}) {
    for (const DType dtype : kFloats) {
      Call call{"", op, {}, {}, {{dtype, {200}}}};
      for (uint32_t k = 0; k < 20; ++k) call.inputs.push_back(ugly(dtype, {200}, k));
      check(call);
    }
  }
}

TEST(CudaArithmetic, ClipsOfAllTypes) {
  for (const DType dtype : kAllTypes) {
    const Tensor low = random(dtype, {}, 1, 2), high = random(dtype, {}, 40, 41), none;
    for (const Shape& shape : kUglyShapes) {
      if (element_count(shape) > 2000 && dtype != DType::kI8) continue;
      const Tensor x = ugly(dtype, shape);
      if (!check_as_on_cpu({"", "Clip", {x, low, high}, {}, {{dtype, shape}}})) break;
      check({"", "Clip", {x, none, high}, {}, {{dtype, shape}}});
      check({"", "Clip", {x, low}, {}, {{dtype, shape}}});
      check({"", "Clip", {x, high, low}, {}, {{dtype, shape}}});
      check({"", "Clip", {x}, {}, {{dtype, shape}}});
    }
  }
}

TEST(CudaArithmetic, WhereOfAllTypes) {
  for (const DType dtype : kAllTypes) {
    const Tensor condition = ugly(DType::kBool, {5, 1});
    check({"",
           "Where",
           {condition, ugly(dtype, {3, 1, 7}), ugly(dtype, {}, 2)},
           {},
           {{dtype, {3, 5, 7}}}});
  }
}

}  // namespace
}  // namespace halfnote::cuda_emulated
