// The pointwise kernels: each op against the reference, the functions against f64 in ulps, the
// instruction sets against each other, programs against their steps one by one.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/ops/pointwise.h"
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/pointwise/loops.h"
#include "tests/kernels/exact.h"

namespace halfnote::test {
namespace {

constexpr DType kPointwiseTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
const RunOptions kFastPointwise{.kernel = "fast"};

/// Does the op take its bits from the arithmetic of IEEE 754 alone, as the reference does?
bool is_arithmetic(PointwiseOp op) {
  switch (op) {
    case PointwiseOp::kCelu:
    case PointwiseOp::kCos:
    case PointwiseOp::kElu:
    case PointwiseOp::kErf:
    case PointwiseOp::kExp:
    case PointwiseOp::kGelu:
    case PointwiseOp::kLog:
    case PointwiseOp::kMish:
    case PointwiseOp::kPow:
    case PointwiseOp::kSelu:
    case PointwiseOp::kSigmoid:
    case PointwiseOp::kSin:
    case PointwiseOp::kSoftplus:
    case PointwiseOp::kSwish:
    case PointwiseOp::kTanh:
    case PointwiseOp::kCeluGrad:
    case PointwiseOp::kCosGrad:
    case PointwiseOp::kEluGrad:
    case PointwiseOp::kErfGrad:
    case PointwiseOp::kMishGrad:
    case PointwiseOp::kSeluGrad:
    case PointwiseOp::kGeluGrad:
    case PointwiseOp::kSinGrad:
    case PointwiseOp::kSoftplusGrad:
    case PointwiseOp::kSwishGrad:
      return false;
    default:
      return true;
  }
}

/// Numbers of all sizes, among them zeros, infinities, NaN and numbers next to the steps of the
/// ops.
Tensor operand(DType type, const Shape& shape, uint32_t seed) {
  if (type == DType::kBool) return random_tensor(DType::kI32, shape, 0, 2, seed).cast_to(type);
  constexpr double kSpecials[] = {0.0,
                                  -0.0,
                                  1.0,
                                  -1.0,
                                  3.0,
                                  -3.0,
                                  1e-40,
                                  -1e-40,
                                  80.0,
                                  -80.0,
                                  std::numeric_limits<double>::infinity(),
                                  -std::numeric_limits<double>::infinity(),
                                  std::numeric_limits<double>::quiet_NaN()};
  Tensor x = random_tensor(DType::kF64, shape, -5, 5, seed);
  auto values = x.mutable_data<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    if ((i + seed) % 11 == 3) values[i] = kSpecials[(i / 11 + seed * 5) % std::size(kSpecials)];
  }
  return x.cast_to(type);
}

struct Broadcast {
  Shape a, b, y;
};
const Broadcast kBroadcasts[] = {
    {{1}, {1}, {1}},
    {{7, 33}, {7, 33}, {7, 33}},
    {{37, 1031}, {37, 1031}, {37, 1031}},  // two parallel blocks
    {{3, 700}, {}, {3, 700}},              // scalar
    {{5, 3, 65}, {65}, {5, 3, 65}},        // row
    {{5, 3, 65}, {5, 1, 1}, {5, 3, 65}},   // column
    {{1, 600}, {3, 1}, {3, 600}},
    {{2, 3, 5, 7}, {3, 1, 1}, {2, 3, 5, 7}},
    {{2, 1, 5}, {3, 1}, {2, 3, 5}},
    // Short rows, of which a tile has many: alike, adjacent, and of several dims.
    {{150, 9}, {150, 1}, {150, 9}},
    {{131, 16}, {16}, {131, 16}},
    {{131, 17}, {131, 1}, {131, 17}},
    {{41, 3, 1}, {41, 1, 13}, {41, 3, 13}},
    {{0, 4}, {1, 4}, {0, 4}},
};

DType result_type(const PointwiseRow& row, DType type) {
  return row.types == PointwiseTypes::kCompare || row.types == PointwiseTypes::kBools ? DType::kBool
                                                                                      : type;
}

void expect_reference(const PointwiseRow& row, const std::vector<Tensor>& inputs,
                      const OutputSpec& output) {
  SCOPED_TRACE(std::string(row.op) + " " + std::string(short_name(inputs.back().dtype())) + " " +
               to_string(output.shape));
  const Tensor got = run_one(row.domain, row.op, inputs, {}, output, kFastPointwise);
  const Tensor wanted = run_one(row.domain, row.op, inputs, {}, output);
  if (is_arithmetic(row.code)) {
    EXPECT_TRUE(identical(got, wanted));
    return;
  }
  // Both within a few spacings of f32 where nothing cancels; a slope near its zero is exact to a
  // few roundings of its terms, which are below 2; then both round once to 16 bits.
  const double bound = 16 * 0x1p-24 + 2 * unit_roundoff(output.dtype);
  expect_close(got, wanted, bound, output.dtype == DType::kF16 ? 0x1p-24 : 32 * 0x1p-24 * 5);
}

TEST(Pointwise, EveryOpAgreesWithTheReference) {
  for (const PointwiseRow& row : pointwise_rows()) {
    if (row.code == PointwiseOp::kCast || row.code == PointwiseOp::kIdentity) continue;
    if (row.types == PointwiseTypes::kDraw || row.types == PointwiseTypes::kSum) continue;  // below
    const bool bools = row.types == PointwiseTypes::kBools;
    for (const DType type : kPointwiseTypes) {
      if (bools && type != DType::kF32) continue;
      for (const Broadcast& shape : kBroadcasts) {
        const bool gradient = !row.domain.empty();
        std::vector<Tensor> inputs{operand(bools ? DType::kBool : type, shape.a, 1)};
        const Shape& second = gradient ? shape.a : shape.b;
        if (row.arity > 1) inputs.push_back(operand(bools ? DType::kBool : type, second, 2));
        if (row.types == PointwiseTypes::kSelect) {
          inputs.insert(inputs.begin(), operand(DType::kBool, shape.a, 3));
          inputs.resize(3);
        }
        const Shape& result = row.arity == 1 || gradient ? shape.a : shape.y;
        expect_reference(row, inputs, {result_type(row, type), result});
      }
    }
  }
}

/// The program runs on every row that takes it; each result must be that of its steps alone.
TEST(Pointwise, ProgramsAreTheirStepsBitForBit) {
  for (const DType type : kPointwiseTypes) {
    for (const Shape& shape : {Shape{3, 5, 130}, Shape{33, 1031}, Shape{1}}) {
      const std::string name(short_name(type));
      const std::string text =
          "t0:" + name + " = Add(x0, x1); t1:" + name + " = Erf(t0); t2:" + name +
          " = Mul(t1, t0); t3:f32 = Cast(t2); t4:bool = Less(t0, x2); t5:" + name +
          " = Where(t4, t2, x0); t6:" + name + " = Gelu[1, 0](t5); out t2, t3, t4, t6";
      const Tensor x = operand(type, shape, 1), bias = operand(type, {shape.back()}, 2),
                   limit = operand(type, {}, 3);
      const OutputSpec same{type, shape}, boolean{DType::kBool, shape}, wide{DType::kF32, shape};
      for (const std::string_view row : {"fast", "reference"}) {
        SCOPED_TRACE(std::string(row) + " " + name + " " + to_string(shape));
        const RunOptions on{.kernel = row};
        const Tensor t0 = run_one("", "Add", {x, bias}, {}, same, on);
        const Tensor t1 = run_one("", "Erf", {t0}, {}, same, on);
        const Tensor t2 = run_one("", "Mul", {t1, t0}, {}, same, on);
        const Tensor t4 = run_one("", "Less", {t0, limit}, {}, boolean, on);
        const Tensor t5 = run_one("", "Where", {t4, t2, x}, {}, same, on);
        const Tensor t6 = run_one("", "Gelu", {t5}, {{"approximate", "tanh"}}, same, on);
        const std::vector<Tensor> got =
            run_kernel("ai.halfnote", "Pointwise", {x, bias, limit}, {{"program", text}},
                       {same, wide, boolean, same}, on);
        EXPECT_TRUE(identical(got[0], t2));
        EXPECT_TRUE(identical(got[1], t2.cast_to(DType::kF32)));
        EXPECT_TRUE(identical(got[2], t4));
        EXPECT_TRUE(identical(got[3], t6));
      }
    }
  }
}

/// A bias, a dropout and a residual, and the gradient's way back through the dropout.
TEST(Pointwise, ADropoutInAProgramDrawsAsTheNodeAlone) {
  const Tensor seed = Tensor::scalar((int64_t{7} << 32) - 3), step = Tensor::scalar(int64_t{11});
  const auto run_all = [&](DType type, const Shape& shape, float ratio, std::string_view row) {
    const std::string name(short_name(type));
    const std::string text = fmt::format(
        "t0:{0} = Add(x0, x1); t1:{0} = Dropout[{1}, 5](t0, x2, x3); t2:{0} = Add(t1, x4); "
        "t3:{0} = Dropout[{1}, 9](x4, x2, x3); t4:{0} = GeluGrad[0, 0](t3, t0); out t2, t4, t1",
        name, ratio);
    const Tensor x = operand(type, shape, 1), residual = operand(type, shape, 3);
    const Tensor bias = operand(type, shape.empty() ? Shape{} : Shape{shape.back()}, 2);
    const OutputSpec same{type, shape};
    const RunOptions on{.kernel = row, .threads = 2};
    const auto drop = [&](const Tensor& of, int64_t node) {
      return run_one("ai.halfnote", "Dropout", {of, seed, step}, {{"ratio", ratio}, {"node", node}},
                     same);
    };
    const Tensor t0 = run_one("", "Add", {x, bias}, {}, same, on), t1 = drop(t0, 5);
    const std::vector<Tensor> got =
        run_kernel("ai.halfnote", "Pointwise", {x, bias, seed, step, residual}, {{"program", text}},
                   {same, same, same}, on);
    EXPECT_TRUE(identical(got[0], run_one("", "Add", {t1, residual}, {}, same, on)));
    EXPECT_TRUE(identical(
        got[1], run_one("ai.halfnote", "GeluGrad", {drop(residual, 9), t0}, {}, same, on)));
    EXPECT_TRUE(identical(got[2], t1));
  };
  for (const DType type : kPointwiseTypes) {
    for (const Shape& shape :
         {Shape{}, Shape{0, 4}, Shape{1}, Shape{7}, Shape{3, 5, 130}, Shape{2, 20003}}) {
      for (const float ratio : {0.0f, 0.1f, 1.0f}) {
        for (const std::string_view row : {"fast", "reference"}) {
          SCOPED_TRACE(fmt::format("{} {} {} {}", row, short_name(type), to_string(shape), ratio));
          run_all(type, shape, ratio, row);
        }
      }
    }
  }
}

/// What is drawn belongs to the elements of the outputs, of which the operand may be a part.
TEST(Pointwise, ADropoutOfABroadcastOperandDrawsForEachElement) {
  const Tensor row = operand(DType::kF32, {130}, 1), x = Tensor::full(DType::kF32, {5, 130}, 0);
  const Tensor seed = Tensor::scalar(int64_t{4}), step = Tensor::scalar(int64_t{2});
  const OutputSpec same{DType::kF32, {5, 130}};
  const Tensor spread = run_one("", "Add", {x, row}, {}, same);
  const Tensor wanted = run_one("ai.halfnote", "Dropout", {spread, seed, step},
                                {{"ratio", 0.5f}, {"node", int64_t{1}}}, same);
  for (const std::string_view kernel : {"fast", "reference"}) {
    const Tensor got =
        run_one("ai.halfnote", "Pointwise", {row, seed, step, x},
                {{"program", "t0:f32 = Dropout[0.5, 1](x0, x1, x2); t1:f32 = Add(t0, x3); out t1"}},
                same, {.kernel = kernel});
    EXPECT_TRUE(identical(got, wanted)) << kernel;
  }
}

TEST(Pointwise, CastsInProgramsAreTheReferenceBitForBit) {
  const DType types[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kBool};
  for (const DType from : types) {
    for (const DType to : types) {
      const Tensor x = operand(from, {3, 1037}, 5);
      const OutputSpec output{to, x.shape()};
      const std::string name(short_name(to));
      EXPECT_TRUE(identical(
          run_one("ai.halfnote", "Pointwise", {x},
                  {{"program", "t0:" + name + " = Cast(x0); out t0"}}, output, kFastPointwise),
          run_one("", "Cast", {x}, {{"to", static_cast<int64_t>(to)}}, output)))
          << short_name(from) << " to " << name;
    }
  }
}

/// A number that became bool is 1 or 0 for the steps behind it.
TEST(Pointwise, TruthOfANumberIsOneOrZero) {
  Tensor x(DType::kF32, {5});
  const float numbers[] = {2.5f, 0.0f, -3.0f, std::numeric_limits<float>::quiet_NaN(), -0.0f};
  std::ranges::copy(numbers, x.mutable_data<float>().begin());
  for (const std::string_view row : {"fast", "reference"}) {
    const std::vector<Tensor> results = run_kernel(
        "ai.halfnote", "Pointwise", {x},
        {{"program",
          "t0:bool = Cast(x0); t1:f32 = Cast(t0); t2:bool = Not(t0); t3:f32 = Cast(t2); out t1, "
          "t3"}},
        {{DType::kF32, {5}}, {DType::kF32, {5}}}, {.kernel = row});
    const float truths[] = {1, 0, 1, 1, 0};
    for (size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(results[0].data<float>()[i], truths[i]) << row << " " << i;
      EXPECT_EQ(results[1].data<float>()[i], 1 - truths[i]) << row << " " << i;
    }
  }
}

TEST(PointwiseProgram, TextGoesThereAndBack) {
  const DType inputs[] = {DType::kBF16, DType::kF32}, outputs[] = {DType::kF32, DType::kBF16};
  const std::string text =
      "t0:bf16 = LeakyRelu[0.1, 0](x0); t1:f32 = Cast(t0); t2:f32 = Sub(x1, t1); out t2, t0";
  EXPECT_EQ(to_text(parse_pointwise(text, inputs, outputs)), text);
}

TEST(PointwiseProgram, ADropoutReadsOneSeedAndOneStep) {
  const DType inputs[] = {DType::kF16, DType::kI64, DType::kI64}, outputs[] = {DType::kF16};
  const std::string text = "t0:f16 = Dropout[0.1, 16777216](x0, x2, x1); out t0";
  EXPECT_EQ(to_text(parse_pointwise(text, inputs, outputs)), text);
  for (const char* broken :
       {"t0:f16 = Dropout[0.1, 3](x0, x0, x1); out t0", "t0:f16 = Neg(x1); out t0",
        "t0:f16 = Dropout[1.5, 3](x0, x1, x2); out t0",
        "t0:f16 = Dropout[nan, 3](x0, x1, x2); out t0",
        "t0:f16 = Dropout[0.1, 0.5](x0, x1, x2); out t0",
        "t0:f16 = Dropout[0.1, -1](x0, x1, x2); out t0",
        "t0:f16 = Dropout[0.1, inf](x0, x1, x2); out t0",
        "t0:f16 = Dropout[0.1, 33554432](x0, x1, x2); out t0",
        "t0:f32 = Dropout[0.1, 3](x0, x1, x2); out t0", "t0:bool = Equal(x1, x2); out t0",
        "t0:f16 = Dropout[0.1, 3](x1, x1, x2); out t0", "t0:f16 = Cast(x1); out t0"}) {
    EXPECT_THROW(parse_pointwise(broken, inputs, outputs), Error) << broken;
  }
  const Tensor x(DType::kF32, {3}), seeds = Tensor::full(DType::kI64, {3}, 1);
  EXPECT_NE(refusals("ai.halfnote", "Pointwise", {x, seeds, seeds},
                     {{"program", "t0:f32 = Dropout[0.1, 3](x0, x1, x2); out t0"}},
                     {{DType::kF32, {3}}}, kFastPointwise)
                .find("several elements of type i64"),
            std::string::npos);
}

TEST(PointwiseProgram, BrokenTextIsAnError) {
  const DType inputs[] = {DType::kBF16, DType::kF32}, outputs[] = {DType::kF32};
  for (const char* text :
       {"", "out", "out t0", "out x1", "t0:f32 = Add(x1, x1)", "t0:f32 = Add(x1, x0); out t0",
        "t0:f32 = Add(x1, x2); out t0", "t0:f32 = Add(x1, t0); out t0", "t0:i64 = Neg(x1); out t0",
        "t1:f32 = Neg(x1); out t1", "t0:f32 = Nonsense(x1); out t0", "t0:f32 = Add(x1); out t0",
        "t0:f32 = Neg(x1); out t0, t0", "t0:bf16 = Neg(x0); out t0",
        "t0:f32 = Neg(x99999999999); out t0", "t0:f32 = Where(x1, x1, x1); out t0",
        "t0:f32 = Neg(x1); out t0 ", "t0:f32 = Swish[](x1); out t0"}) {
    EXPECT_THROW(parse_pointwise(text, inputs, outputs), Error) << text;
  }
}

/// Distance in units of the last place of f32 at the wanted number.
double ulps(float got, double wanted) {
  if (std::isnan(wanted)) return std::isnan(got) ? 0 : 1e9;
  if (std::isinf(static_cast<float>(wanted))) return got == static_cast<float>(wanted) ? 0 : 1e9;
  int exponent = 0;
  std::frexp(wanted, &exponent);
  const double distance = std::fabs(static_cast<double>(got) - wanted);
  return distance / std::ldexp(1.0, std::max(exponent - 24, -149));
}

/// Every 4099th f32, and the range where the functions bend densely.
Tensor sweep() {
  std::vector<float> x;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 4099) {
    const auto pattern = static_cast<uint32_t>(bits);
    float value = 0;
    std::memcpy(&value, &pattern, sizeof value);
    x.push_back(value);
  }
  for (int i = -160000; i <= 160000; ++i) x.push_back(static_cast<float>(i) * 1e-4f + 3e-8f);
  for (const double special : {0.0, -0.0, HUGE_VAL, -HUGE_VAL})
    x.push_back(static_cast<float>(special));
  return Tensor::of<float>({static_cast<int64_t>(x.size())}, std::span<const float>(x));
}

TEST(Pointwise, FunctionsAreWithinTwoUlps) {
  struct Function {
    const char* op;
    Attributes attributes;
    double bound = 2;
  };
  const Function functions[] = {{"Exp"},  {"Erf"},     {"Tanh"},
                                {"Gelu"}, {"Sigmoid"}, {"Gelu", {{"approximate", "tanh"}}},
                                {"Log"},  {"Sin"},     {"Cos"}};
  const Tensor x = sweep();
  const Tensor wide = x.cast_to(DType::kF64);
  for (const Function& f : functions) {
    const Tensor y = run_one("", f.op, {x}, f.attributes, {}, {.kernel = "fast", .threads = 2});
    const Tensor wanted = run_one("", f.op, {wide}, f.attributes, {}, {.check_repeats = false});
    const Tensor narrow =
        run_one("", f.op, {x.cast_to(DType::kBF16)}, f.attributes, {}, kFastPointwise);
    const Tensor rounded = run_one("", f.op, {x.cast_to(DType::kBF16).cast_to(DType::kF32)},
                                   f.attributes, {}, kFastPointwise);
    EXPECT_TRUE(identical(narrow, rounded.cast_to(DType::kBF16))) << f.op;
    double worst = 0;
    for (size_t i = 0; i < y.data<float>().size(); ++i) {
      const double error = ulps(y.data<float>()[i], wanted.data<double>()[i]);
      if (wanted.data<double>()[i] == 0) {
        EXPECT_EQ(std::signbit(y.data<float>()[i]), std::signbit(wanted.data<double>()[i])) << f.op;
      }
      if (error > f.bound && error > worst) ADD_FAILURE() << f.op << " " << x.data<float>()[i];
      worst = std::max(worst, error);
    }
    EXPECT_LE(worst, f.bound) << f.op;
  }
}

/// Elements that differ in a bit; NaN equals NaN.
size_t differences(const std::vector<float>& a, const std::vector<float>& b) {
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool nan = std::isnan(a[i]) && std::isnan(b[i]);
    count += !nan && std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  }
  return count;
}

TEST(Pointwise, GivesTheSameBitsOnEveryInstructionSet) {
  std::vector<const cpu::pointwise::Loops*> sets;
  if (cpu::pointwise::vector_loops() != nullptr) sets.push_back(cpu::pointwise::vector_loops());
#if defined(__x86_64__)
  if (cpu::vector_isa() == cpu::VectorIsa::kAvx512) sets.push_back(&cpu::pointwise::kAvx2Loops);
#endif
  const Tensor a = operand(DType::kF32, {4099}, 1), b = operand(DType::kF32, {4099}, 2);
  const Tensor wide = sweep();
  const float parameters[] = {0.75f, 0.25f};
  using cpu::pointwise::kBaselineLoops;
  for (const PointwiseRow& row : pointwise_rows()) {
    if (kBaselineLoops.of[index_of(row.code)] == nullptr) continue;
    const Tensor& x = row.arity == 1 ? wide : a;
    const float* const in[] = {x.data<float>().data(), b.data<float>().data(),
                               a.data<float>().data()};
    const auto results = [&](const cpu::pointwise::Loops& loops) {
      std::vector<float> y(static_cast<size_t>(x.size()));
      loops.of[index_of(row.code)](in, y.data(), x.size(), parameters);
      return y;
    };
    const std::vector<float> wanted = results(kBaselineLoops);
    for (const cpu::pointwise::Loops* set : sets)
      EXPECT_EQ(differences(results(*set), wanted), 0u) << row.op << " on " << set->name;
  }
}

TEST(Pointwise, SaysWhatItDoesNotTake) {
  const auto reason = [](const Tensor& a, const Tensor& b, DType y) {
    return refusals("", "Add", {a, b}, {}, {{y, a.shape()}}, kFastPointwise);
  };
  EXPECT_EQ(reason(Tensor(DType::kF32, {3}), Tensor(DType::kF32, {1}), DType::kF32), "");
  EXPECT_NE(reason(Tensor(DType::kF64, {3}), Tensor(DType::kF64, {3}), DType::kF64).find("f64"),
            std::string::npos);
  EXPECT_NE(reason(Tensor(DType::kF32, {3}), Tensor(DType::kBF16, {3}), DType::kF32)
                .find("different types"),
            std::string::npos);
}

}  // namespace
}  // namespace halfnote::test
