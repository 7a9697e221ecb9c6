// LAMB and Adafactor in vectors against their references; the instruction sets against each other.
#include <gtest/gtest.h>

#include <cstring>

#include "base/system/vector_isa.h"
#include "kernels/cpu/stateful/update_loops.h"
#include "tests/kernels/exact.h"

namespace halfnote::test {
namespace {

/// Shapes with less than a piece, several blocks, rows that are narrow, wide, longer than a piece,
/// many matrices, matrices in several parts, and nothing.
const Shape kShapes[] = {{1},          {19},         {32805},   {1, 1},        {3, 5},
                         {2, 3, 3, 3}, {700, 16, 3}, {5, 4099}, {300, 130},    {2, 257, 140},
                         {40000, 2},   {1, 33000},   {7, 15},   {2, 2100, 17}, {3, 0}};

/// optimizer_fixture_test.cc holds the kernels of devices against the reference.
RunOptions updates_of(std::string_view kernel) { return {.kernel = kernel, .check_device = false}; }

/// Sums in another order differ by 2^-53 of each term: the step that follows from them may be
/// rounded to the other side, and the parameter with it.
void expect_same_update(const std::vector<Tensor>& got, const std::vector<Tensor>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE("output " + std::to_string(i));
    expect_close(got[i], wanted[i], 4 * 0x1p-24, 4 * 0x1p-24);
  }
}

TEST(FastLamb, AgreesWithTheReference) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(to_string(shape));
    const DType f32 = DType::kF32;
    const std::vector<Tensor> inputs = {random_tensor(f32, shape, -1, 1, 1),
                                        random_tensor(f32, shape, -4, 4, 2),
                                        random_tensor(f32, shape, -1, 1, 3),
                                        random_tensor(f32, shape, 0.25, 1, 4),
                                        Tensor::scalar(0.125f),
                                        Tensor::scalar<int64_t>(7)};
    const std::vector<OutputSpec> outputs(3, {f32, shape});
    for (const int64_t mode : {0, 1}) {
      const Attributes attributes{{"weight_decay", 0.125f}, {"lamb_mode", mode}};
      const auto got = run_kernel(kOwn, "Lamb", inputs, attributes, outputs, updates_of("fast"));
      const auto wanted =
          run_kernel(kOwn, "Lamb", inputs, attributes, outputs, updates_of("reference"));
      expect_same_update(got, wanted);
      EXPECT_TRUE(identical(got[1], wanted[1]));
      EXPECT_TRUE(identical(got[2], wanted[2]));
    }
  }
}

TEST(FastAdafactor, AgreesWithTheReference) {
  for (const Shape& shape : kShapes) {
    for (const bool factored : {true, false}) {
      if (factored && shape.size() < 2) continue;
      SCOPED_TRACE(to_string(shape) + (factored ? " factored" : ""));
      const DType f32 = DType::kF32;
      Shape rows = shape, columns = shape;
      if (factored) {
        rows.pop_back();
        columns.erase(columns.end() - 2);
      }
      const std::vector<Tensor> inputs = {
          random_tensor(f32, shape, -1, 1, 1),
          random_tensor(f32, shape, -4, 4, 2),
          random_tensor(f32, rows, 0.25, 1, 3),
          factored ? random_tensor(f32, columns, 0.25, 1, 4) : Tensor(),
          Tensor::scalar(0.125f),
          Tensor::scalar<int64_t>(7)};
      std::vector<OutputSpec> outputs = {{f32, shape}, {f32, rows}};
      if (factored) outputs.push_back({f32, columns});
      const Attributes attributes{{"weight_decay", 0.125f}};
      expect_same_update(
          run_kernel(kOwn, "Adafactor", inputs, attributes, outputs, updates_of("fast")),
          run_kernel(kOwn, "Adafactor", inputs, attributes, outputs, updates_of("reference")));
    }
  }
}

TEST(FastLamb, SaysWhatItDoesNotTake) {
  const Tensor w(DType::kF64, {3}), lr = Tensor::scalar(0.5), step = Tensor::scalar<int64_t>(1);
  const std::vector<OutputSpec> outputs(3, {DType::kF64, {3}});
  EXPECT_NE(refusals(kOwn, "Lamb", {w, w, w, w, lr, step}, {}, outputs, updates_of("fast"))
                .find("not f32"),
            std::string::npos);
}

#if defined(__x86_64__)
/// What every loop makes of `n` elements.
std::vector<float> all_updates(const cpu::UpdateLoops& loops, int64_t n) {
  const auto size = static_cast<size_t>(n);
  const Tensor positive = random_tensor(DType::kF32, {4 * n}, 0.25, 1, 1),
               any = random_tensor(DType::kF32, {4 * n}, -2, 2, 2);
  const float *a = any.data<float>().data(), *v = positive.data<float>().data();
  const cpu::LambNumbers numbers{0.9f, 0.1f, 0.999f, 0.001f, 1e-6f, 0.01f, 0.75f, 0.3f};
  std::vector<float> first(size), second(size), third(size), all;
  const auto keep = [&](const std::vector<float>& values) {
    all.insert(all.end(), values.begin(), values.end());
  };
  loops.lamb_moments(numbers, a, a + n, a + 2 * n, v, n, first.data(), second.data(), third.data());
  keep(first), keep(second), keep(third);
  loops.lamb_step(numbers, 0.3f, a, a + n, v, n, first.data());
  keep(first);
  std::vector<double> columns(size, 0.5);
  all.push_back(static_cast<float>(loops.add_squares(a, n, 1e-3f, columns.data())));
  for (const double column : columns) all.push_back(static_cast<float>(column));
  loops.move_moments(0.9f, 0.1f, 1e-3f, a, v, n, first.data());
  keep(first);
  loops.over_roots(a, v, n, first.data());
  keep(first);
  loops.over_factors(a, 0.7f, v, n, first.data());
  keep(first);
  loops.decayed_step(0.99f, 0.3f, a, a + n, n, first.data());
  keep(first);
  return all;
}

TEST(UpdateLoops, GiveTheSameBitsOnEveryInstructionSet) {
  if (vector_isa() != VectorIsa::kAvx512) GTEST_SKIP() << "this CPU has no AVX-512";
  for (const int64_t n : {1, 7, 8, 15, 16, 17, 33, 2048}) {
    const std::vector<float> a = all_updates(cpu::kAvx2UpdateLoops, n),
                             b = all_updates(cpu::kAvx512UpdateLoops, n);
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << n;
  }
}
#endif

}  // namespace
}  // namespace halfnote::test
