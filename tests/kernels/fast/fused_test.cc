// The groups of steps that run as one loop: found where they may be, left alone where not, and with
// the bits of their steps, on every instruction set.
#include "kernels/cpu/pointwise/fused.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_info.h"
#include "tests/kernels/exact.h"

namespace halfnote::test {
namespace {

using cpu::pointwise::Loops;
using cpu::pointwise::plan_tasks;
using cpu::pointwise::Task;

/// A spelling of GELU or of its gradient: its steps, with @ for the type, and the scalar that each
/// input is, or 0 for a tensor.
struct Spelling {
  const char* title;
  const char* steps;
  std::vector<float> scalars;
  int root;  // the step that makes the result
};

const Spelling kSpellings[] = {
    {"gelu_new",
     "t0:@ = Mul(x0, x1); t1:@ = Pow(x0, x2); t2:@ = Mul(t1, x3); t3:@ = Add(x0, t2); "
     "t4:@ = Mul(t3, x4); t5:@ = Tanh(t4); t6:@ = Add(t5, x5); t7:@ = Mul(t0, t6); ",
     {0, 0.5f, 3, 0.044715f, 0.797885f, 1},
     7},
    {"gelu_new, its sums and products the other way round",
     "t0:@ = Pow(x0, x2); t1:@ = Mul(x3, t0); t2:@ = Add(t1, x0); t3:@ = Mul(x4, t2); "
     "t4:@ = Tanh(t3); t5:@ = Add(x5, t4); t6:@ = Mul(x1, x0); t7:@ = Mul(t5, t6); ",
     {0, 0.5f, 3, 0.044715f, 0.797885f, 1},
     7},
    {"gradient of gelu_new",
     "t0:@ = Mul(x0, x1); t1:@ = Pow(x0, x2); t2:@ = Mul(t1, x3); t3:@ = Add(x0, t2); "
     "t4:@ = Mul(t3, x4); t5:@ = Tanh(t4); t6:@ = Add(t5, x5); t7:@ = Mul(x6, t6); "
     "t8:@ = Mul(x6, t0); t9:@ = TanhGrad(t8, t5); t10:@ = Mul(t9, x4); t11:@ = Mul(t10, x3); "
     "t12:@ = Pow(x0, x7); t13:@ = Mul(t12, x2); t14:@ = Mul(t11, t13); t15:@ = Add(t10, t14); "
     "t16:@ = Mul(t7, x1); t17:@ = Add(t15, t16); ",
     {0, 0.5f, 3, 0.044715f, 0.797885f, 1, 0, 2},
     17},
    {"gelu by erf with a bias",
     "t0:@ = Add(x4, x0); t1:@ = Div(t0, x1); t2:@ = Erf(t1); t3:@ = Add(t2, x2); "
     "t4:@ = Mul(t0, t3); t5:@ = Mul(t4, x3); ",
     {0, 1.41421f, 1, 0.5f, 0},
     5},
    {"gradient of gelu by erf with a bias",
     "t0:@ = Add(x0, x5); t1:@ = Div(t0, x1); t2:@ = Erf(t1); t3:@ = Add(t2, x2); "
     "t4:@ = Mul(x4, x3); t5:@ = Mul(t4, t3); t6:@ = Mul(t4, t0); t7:@ = ErfGrad(t6, t1); "
     "t8:@ = Div(t7, x1); t9:@ = Add(t5, t8); ",
     {0, 1.41421f, 1, 0.5f, 0, 0},
     9},
    {"gelu by erf",
     "t0:@ = Div(x0, x1); t1:@ = Erf(t0); t2:@ = Add(t1, x2); t3:@ = Mul(x0, t2); "
     "t4:@ = Mul(t3, x3); ",
     {0, 1.41421f, 1, 0.5f},
     4},
    {"gradient of gelu by erf",
     "t0:@ = Div(x0, x1); t1:@ = Erf(t0); t2:@ = Add(t1, x2); t3:@ = Mul(x4, x3); "
     "t4:@ = Mul(t3, t2); t5:@ = Mul(t3, x0); t6:@ = ErfGrad(t5, t0); t7:@ = Div(t6, x1); "
     "t8:@ = Add(t4, t7); ",
     {0, 1.41421f, 1, 0.5f, 0},
     8},
};

std::string typed(std::string text, DType type) {
  for (size_t at = 0; (at = text.find('@')) != std::string::npos;)
    text.replace(at, 1, short_name(type));
  return text;
}

/// Tensors of numbers of all sizes, with infinities and NaN, and the scalars.
std::vector<Tensor> operands(const Spelling& s, DType type, const Shape& shape) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float specials[] = {0.0f,   -0.0f, kInfinity, -kInfinity, std::nanf(""),
                            1e-40f, 40.0f, -40.0f,    12.5f,      -6.25f};
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < s.scalars.size(); ++i) {
    if (s.scalars[i] != 0) {
      inputs.push_back(Tensor::scalar(s.scalars[i]).cast_to(type));
      continue;
    }
    Tensor x = random_tensor(DType::kF32, shape, -6, 6, static_cast<uint32_t>(i) + 1);
    auto data = x.mutable_data<float>();
    for (size_t k = i; k < data.size(); k += 7) data[k] = specials[k / 7 % std::size(specials)];
    inputs.push_back(x.cast_to(type));
  }
  return inputs;
}

std::vector<size_t> scalars_of(const Spelling& s) {
  std::vector<size_t> known;
  for (size_t i = 0; i < s.scalars.size(); ++i)
    if (s.scalars[i] != 0) known.push_back(i);
  return known;
}

/// Tasks of a program on these loops. `values` replaces the scalars.
std::vector<Task> tasks_of(const Spelling& s, DType type, const std::string& outputs,
                           const Loops& loops, const std::vector<float>& values,
                           bool known = true) {
  std::vector<Tensor> tensors;
  for (float value : values) tensors.push_back(Tensor::scalar(value).cast_to(type));
  std::vector<Operand> inputs;
  for (size_t i = 0; i < values.size(); ++i) {
    const bool scalar = values[i] != 0;
    inputs.push_back(
        {type, scalar ? Shape{} : Shape{9}, {}, scalar && known ? &tensors[i] : nullptr});
  }
  const std::vector<DType> types(values.size(), type);
  const std::vector<DType> results(outputs.find(',') == std::string::npos ? 1 : 2, type);
  return plan_tasks(parse_pointwise(typed(s.steps, type) + outputs, types, results), inputs, loops);
}

/// The same bits; NaN is NaN, as sums and products of two may give either.
bool same(const Tensor& a, const Tensor& b) {
  const std::vector<double> left = doubles(a), right = doubles(b);
  for (size_t i = 0; i < left.size(); ++i) {
    if (std::isnan(left[i])
            ? !std::isnan(right[i])
            : left[i] != right[i] || std::signbit(left[i]) != std::signbit(right[i]))
      return false;
  }
  return left.size() == right.size();
}

std::string root_of(const Spelling& s) { return "out t" + std::to_string(s.root); }

TEST(FusedPointwise, FindsEachSpelling) {
  for (const Spelling& s : kSpellings) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const auto tasks = tasks_of(s, type, root_of(s), cpu::pointwise::kBaselineLoops, s.scalars);
      ASSERT_EQ(tasks.size(), 1u) << s.title;
      EXPECT_EQ(tasks[0].step, s.root);
      EXPECT_EQ(tasks[0].operands.size(), s.scalars.size());
    }
  }
}

TEST(FusedPointwise, LeavesAlone) {
  for (const Spelling& s : kSpellings) {
    SCOPED_TRACE(s.title);
    const auto all = static_cast<size_t>(s.root) + 1;
    const Loops& loops = cpu::pointwise::kBaselineLoops;
    // A result in between that others read, a type without a loop, other functions.
    EXPECT_EQ(tasks_of(s, DType::kF32, root_of(s) + ", t1", loops, s.scalars).size(), all);
    EXPECT_EQ(tasks_of(s, DType::kF16, root_of(s), loops, s.scalars).size(), all);
    const Loops& reference = cpu::pointwise::reference_loops();
    EXPECT_EQ(tasks_of(s, DType::kF32, root_of(s), reference, s.scalars).size(), all);
    if (s.scalars[2] != 3) continue;
    // Another exponent, or one that is not known.
    std::vector<float> other = s.scalars;
    other[2] = 4;
    EXPECT_EQ(tasks_of(s, DType::kF32, root_of(s), loops, other).size(), all);
    EXPECT_EQ(tasks_of(s, DType::kF32, root_of(s), loops, s.scalars, false).size(), all);
  }
}

/// An operand that is a step of the group itself is no operand.
TEST(FusedPointwise, TakesNoOperandFromInside) {
  const Spelling s{"",
                   "t0:@ = Div(x0, x1); t1:@ = Erf(t0); t2:@ = Add(t1, t0); "
                   "t3:@ = Mul(x0, t2); t4:@ = Mul(t3, x3); ",
                   {0, 1.5f, 1, 0.5f},
                   4};
  EXPECT_EQ(tasks_of(s, DType::kF32, "out t4", cpu::pointwise::kBaselineLoops, s.scalars).size(),
            5u);
}

/// Beside an output that keeps the group apart the same steps run one by one.
TEST(FusedPointwise, GivesTheBitsOfItsSteps) {
  for (const Spelling& s : kSpellings) {
    for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const Shape& shape : {Shape{1}, Shape{3, 17}, Shape{5, 1031}}) {
        SCOPED_TRACE(s.title + std::string(" ") + std::string(short_name(type)));
        const std::vector<Tensor> inputs = operands(s, type, shape);
        const RunOptions on{.kernel = "fast", .known = scalars_of(s)};
        const Attributes whole{{"program", typed(s.steps, type) + root_of(s)}};
        const Attributes apart{{"program", typed(s.steps, type) + root_of(s) + ", t1"}};
        const auto got = run_kernel("ai.halfnote", "Pointwise", inputs, whole, {{type, shape}}, on);
        const auto wanted = run_kernel("ai.halfnote", "Pointwise", inputs, apart,
                                       {{type, shape}, {type, shape}}, on);
        EXPECT_TRUE(same(got[0], wanted[0]));
      }
    }
  }
}

TEST(FusedPointwise, GivesTheSameBitsOnEveryInstructionSet) {
  std::vector<const Loops*> sets;
  if (cpu::pointwise::vector_loops() != nullptr) sets.push_back(cpu::pointwise::vector_loops());
#if defined(__x86_64__)
  if (cpu::vector_isa() == cpu::VectorIsa::kAvx512) sets.push_back(&cpu::pointwise::kAvx2Loops);
#endif
  const Shape shape{1031};
  for (const Spelling& s : kSpellings) {
    for (const DType type : {DType::kF32, DType::kBF16}) {
      std::vector<Tensor> rooms;
      for (const Tensor& x : operands(s, type, shape)) {
        const Tensor wide = x.cast_to(DType::kF32);
        rooms.push_back(wide.size() > 1 ? wide
                                        : Tensor::full(DType::kF32, shape, wide.at_as_double(0)));
      }
      const auto results = [&](const Loops& loops) {
        const Task task = tasks_of(s, type, root_of(s), loops, s.scalars)[0];
        std::vector<const float*> in;
        for (int operand : task.operands)
          in.push_back(rooms[static_cast<size_t>(operand)].data<float>().data());
        Tensor y(DType::kF32, shape);
        task.loop(in.data(), y.mutable_data<float>().data(), y.size(), nullptr);
        return y;
      };
      const Tensor wanted = results(cpu::pointwise::kBaselineLoops);
      for (const Loops* set : sets)
        EXPECT_TRUE(same(results(*set), wanted)) << s.title << " on " << set->name;
    }
  }
}

}  // namespace
}  // namespace halfnote::test
