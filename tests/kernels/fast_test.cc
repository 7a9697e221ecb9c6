// Our own vectorised kernels and the pools of oneDNN against the reference; the instruction sets
// against each other.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/system/vector_isa.h"
#include "exact.h"
#include "kernels/cpu/blocked/loops.h"
#include "kernels/cpu/blocked/weight_1x1.h"
#include "kernels/cpu/contraction/attention/tile_math.h"
#include "kernels/cpu/cpu_info.h"
#include "kernels/cpu/depthwise/loops.h"
#include "kernels/cpu/fast/reduction/loops.h"
#include "kernels/cpu/fast/vector_math.h"
#include "kernels/cpu/planes/loops.h"
#include "kernels/cpu/pointwise/loops.h"
#include "kernels/cpu/stateful/keep.h"
#include "kernels/cpu/stateful/update_loops.h"
#include "kernels/cpu/thin/loops.h"
#include "kernels/cpu/tiled/loops.h"

namespace halfnote::test {
namespace {

struct FastPool {
  const char* name;
  Shape x, y;
  std::vector<int64_t> kernel, strides, pads{0, 0, 0, 0}, dilations{1, 1};
  bool common = true;  // oneDNN must take it
};

const FastPool kFastPools[] = {
    {"two_by_two", {2, 3, 8, 10}, {2, 3, 4, 5}, {2, 2}, {2, 2}},
    {"two_by_two_wide", {1, 2, 6, 68}, {1, 2, 3, 34}, {2, 2}, {2, 2}},
    {"odd_rows", {2, 3, 7, 10}, {2, 3, 3, 5}, {2, 2}, {2, 2}},
    {"odd_columns", {2, 3, 8, 7}, {2, 3, 4, 3}, {2, 2}, {2, 2}},
    {"odd_both", {3, 5, 7, 7}, {3, 5, 3, 3}, {2, 2}, {2, 2}},
    {"smallest", {1, 1, 2, 2}, {1, 1, 1, 1}, {2, 2}, {2, 2}},
    {"overlapping", {2, 2, 9, 11}, {2, 2, 5, 6}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
    {"lopsided", {1, 2, 6, 9}, {1, 2, 4, 4}, {3, 2}, {1, 3}, {1, 2, 0, 1}, {1, 1}, false},
    {"dilated", {1, 2, 9, 9}, {1, 2, 5, 7}, {3, 2}, {1, 1}, {0, 0, 0, 0}, {2, 2}, false},
    {"stride_three", {1, 1, 10, 20}, {1, 1, 3, 6}, {3, 4}, {3, 3}},
    {"ceil", {1, 2, 7, 7}, {1, 2, 4, 4}, {2, 2}, {2, 2}, {0, 0, 0, 0}, {1, 1}, false},
    {"none", {0, 3, 8, 8}, {0, 3, 4, 4}, {2, 2}, {2, 2}, {0, 0, 0, 0}, {1, 1}, false},
};

Attributes attributes_of(const FastPool& c) {
  Attributes attributes{{"kernel_shape", c.kernel},
                        {"strides", c.strides},
                        {"pads", c.pads},
                        {"dilations", c.dilations}};
  if (std::string_view(c.name) == "ceil") attributes.set("ceil_mode", int64_t{1});
  return attributes;
}

/// Few different values, so that windows have ties; some NaN and infinities.
Tensor with_ties(DType type, const Shape& shape) {
  Tensor x = random_tensor(DType::kF64, shape, -3, 3, 1);
  auto values = x.mutable_data<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::round(values[i]);
    if (i % 37 == 5) values[i] = std::nan("");
    if (i % 41 == 7) values[i] = -std::numeric_limits<double>::infinity();
  }
  return x.cast_to(type);
}

TEST(OneDnnAveragePool, AgreesWithTheReference) {
  for (const FastPool& c : kFastPools) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const int64_t include_pad : {0, 1}) {
        SCOPED_TRACE(std::string(c.name) + " " + std::string(short_name(type)) + " " +
                     std::to_string(include_pad));
        Attributes attributes = attributes_of(c);
        attributes.set("count_include_pad", include_pad);
        const Tensor x = random_tensor(type, c.x, -1, 1, 1),
                     dy = random_tensor(type, c.y, -1, 1, 2);
        const Tensor shape = Tensor::of<int64_t>({4}, std::span<const int64_t>(c.x));
        const OutputSpec y{type, c.y}, dx{type, c.x};
        const RunOptions fast{.kernel = "onednn"};
        if (!refusals("", "AveragePool", {x}, attributes, {y}, fast).empty()) {
          EXPECT_FALSE(c.common) << refusals("", "AveragePool", {x}, attributes, {y}, fast);
          continue;
        }
        // A mean of up to 12 numbers below 1, then one rounding; they may fall on different sides
        // of a tie.
        const double bound = 24 * 0x1p-24 + 2 * unit_roundoff(type);
        expect_close(run_one("", "AveragePool", {x}, attributes, y, fast),
                     run_one("", "AveragePool", {x}, attributes, y), bound, 24 * 0x1p-24);
        expect_close(run_one(kOwn, "AveragePoolGrad", {dy, shape}, attributes, dx, fast),
                     run_one(kOwn, "AveragePoolGrad", {dy, shape}, attributes, dx), bound, bound);
      }
    }
  }
}

/// Runs every loop of VectorMath on `n` elements and gives all results.
std::vector<float> all_loops(const cpu::fast::VectorMath& math, int64_t n) {
  const auto size = static_cast<size_t>(2 * n + 64);
  const Tensor a = with_ties(DType::kF32, {static_cast<int64_t>(size)}),
               b = random_tensor(DType::kF32, {static_cast<int64_t>(size)}, -1, 1, 2);
  const float *x = b.data<float>().data(), *ties = a.data<float>().data();
  std::vector<float> results;
  const auto keep = [&](const std::vector<float>& values) {
    results.insert(results.end(), values.begin(), values.end());
  };
  double mean = 0, squares = 0, sum = 0, product = 0;
  math.moments(x, n, &mean, &squares);
  math.gradient_sums(x, x + n, n, 0.25f, &sum, &product);
  for (const double value : {mean, squares, sum, product})
    results.push_back(static_cast<float>(value));
  std::vector<float> y(size), best(size, -1.0f);
  math.normalize(x, n, 0.5f, 1.5f, 0.1f, y.data());
  keep(y);
  math.normalize_gradient(x, x + n, n, 0.5f, 1.5f, 0.1f, 0.2f, y.data());
  keep(y);
  math.scaled_gradient(x, x + n, n, 0.7f, 0.5f, 1.5f, 0.1f, 0.2f, y.data());
  keep(y);
  for (const int64_t length : {1, 3, 16}) {
    std::vector<double> sums(size), products(size);
    math.run_sums(x, x + n, n / length, length, 0.25f, sums.data(), products.data());
    for (size_t i = 0; i < size; ++i) results.push_back(static_cast<float>(sums[i] + products[i]));
  }
  math.normalize_exactly(x, n, 0.5, 1.5, 0.1, y.data());
  keep(y);
  for (const float* bias : {static_cast<const float*>(nullptr), x + n}) {
    math.normalize_line(x, n, 0.5, 1.5, x + 5, bias, y.data());
    keep(y);
    math.scale_line(x, n, 0.7, 1.5f, x + 5, bias, y.data());
    keep(y);
  }
  math.multiply(x, x + n, n, y.data());
  keep(y);
  math.add_line_gradient(x, x + n, n, 0.5f, 1.5f, y.data(), best.data());
  keep(y);
  keep(best);
  math.pair_maximum(ties, n, y.data());
  keep(y);
  math.pair_maximum_gradient(ties, x, n, y.data());
  keep(y);
  math.line_maximum(ties, 1, n, y.data());
  keep(y);
  math.line_maximum_gradient(ties, x, 1, n, y.data());
  keep({y.begin(), y.begin() + static_cast<int64_t>(2 * n)});
  return results;
}

TEST(VectorMath, GivesTheSameBitsOnEveryInstructionSet) {
  if (cpu::vector_isa() == cpu::VectorIsa::kBaseline)
    GTEST_SKIP() << "this CPU has only the baseline";
  for (const int64_t n : {1, 2, 15, 16, 17, 63, 64, 65, 127, 200, 2048}) {
    const std::vector<float> baseline = all_loops(cpu::fast::kBaselineMath, n),
                             best = all_loops(cpu::fast::vector_math(), n);
    ASSERT_EQ(baseline.size(), best.size());
    EXPECT_EQ(std::memcmp(baseline.data(), best.data(), baseline.size() * sizeof(float)), 0)
        << n << " elements";
  }
}

TEST(VectorMath, TilesOfProductsHaveTheSameBitsOnEveryInstructionSet) {
  using cpu::fast::kTallTile, cpu::fast::kWideColumns;
  constexpr int64_t kDepth = 19;
  const Tensor a = random_tensor(DType::kF64, {kDepth, kTallTile}, -1, 1, 1),
               b = random_tensor(DType::kF64, {kDepth, kWideColumns}, -1, 1, 2);
  const auto sums = [&](const cpu::fast::VectorMath& math) {
    std::vector<double> all(kTallTile * kWideColumns, 0.5);
    math.wide_tile(a.data<double>().data(), b.data<double>().data(), kDepth, all.data());
    return all;
  };
  const std::vector<double> baseline = sums(cpu::fast::kBaselineMath),
                            best = sums(cpu::fast::vector_math());
  EXPECT_NE(baseline[0], 0.5);
  EXPECT_EQ(baseline[cpu::fast::kWideTile], 0.5);  // the next tile
  EXPECT_EQ(std::memcmp(baseline.data(), best.data(), baseline.size() * sizeof(double)), 0);
}

TEST(FastBatchNormalization, SaysWhatItDoesNotTake) {
  const Shape shape{2, 3, 3, 3}, c{3};
  const Tensor x(DType::kF32, shape), p(DType::kF32, c);
  const std::vector<OutputSpec> out{
      {DType::kF32, shape}, {DType::kF32, c}, {DType::kF32, c}, {DType::kF32, c}, {DType::kF32, c}};
  EXPECT_NE(refusals(kOwn, "BatchNormalization", {x, p, p, p, p}, {}, out, {.kernel = "fast"})
                .find("9 elements"),
            std::string::npos);
  const Tensor wide(DType::kF64, {2, 3, 5, 5});
  EXPECT_NE(refusals(kOwn, "BatchNormalization", {wide, p, p, p, p}, {}, out, {.kernel = "fast"})
                .find("f64"),
            std::string::npos);
}

struct NormCase {
  Shape x;
  int64_t axis;
  bool has_bias = true;
};

const NormCase kNorms[] = {{{1, 1}, -1},        {{3, 7}, -1},     {{5, 3, 16}, -1, false},
                           {{2, 3, 5, 17}, -2}, {{67, 129}, 1},   {{33, 64}, -1},
                           {{4, 2049}, -1},     {{2, 3, 1700}, 1}};

/// Y, mean, 1/deviation, dX, dScale, dB by a kernel.
std::vector<Tensor> run_layer_norm(const NormCase& c, DType type, const RunOptions& options) {
  const auto rank = static_cast<int64_t>(c.x.size());
  const auto lead = (c.axis + rank) % rank;
  const Shape own(c.x.begin() + lead, c.x.end());
  Shape statistic(c.x.begin(), c.x.begin() + lead);
  statistic.resize(c.x.size(), 1);
  const Tensor x = random_tensor(type, c.x, -2, 3, 1), dy = random_tensor(type, c.x, -1, 1, 2),
               scale = random_tensor(DType::kF32, own, 0.5, 1.5, 3),
               bias = c.has_bias ? random_tensor(type, own, -1, 1, 4) : Tensor();
  const OutputSpec like_x{type, c.x}, f32{DType::kF32, statistic}, gradient{DType::kF32, own};
  const Attributes attributes{{"axis", c.axis}};
  std::vector<Tensor> all = run_kernel("", "LayerNormalization", {x, scale, bias}, attributes,
                                       {like_x, f32, f32}, options);
  // The same statistics for both kernels, so that the gradient is compared alone.
  const std::vector<Tensor> forward =
      run_kernel("", "LayerNormalization", {x, scale, bias}, attributes, {like_x, f32, f32});
  for (Tensor& tensor :
       run_kernel(kOwn, "LayerNormalizationGrad", {dy, x, scale, forward[1], forward[2]},
                  attributes, {like_x, gradient, gradient}, options)) {
    all.push_back(std::move(tensor));
  }
  return all;
}

TEST(FastLayerNormalization, AgreesWithTheReference) {
  for (const NormCase& c : kNorms) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(to_string(c.x) + " " + std::string(short_name(type)));
      const std::vector<Tensor> got = run_layer_norm(c, type, {.kernel = "fast", .threads = 2});
      const std::vector<Tensor> wanted = run_layer_norm(c, type, {});
      ASSERT_EQ(got.size(), wanted.size());
      for (size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE("output " + std::to_string(i));
        // 64 partial sums of f32 over a piece of at most 2048 elements, of size up to 3; both round
        // once to the type of the output, perhaps to different sides of a tie.
        const double store = 2 * unit_roundoff(got[i].dtype());
        expect_close(got[i], wanted[i], store + 64 * 0x1p-24, 64 * 0x1p-24);
      }
    }
  }
}

/// Y, dX, dScale of an RMSNormalization by a kernel.
std::vector<Tensor> run_rms_norm(const NormCase& c, DType type, const RunOptions& options) {
  const auto rank = static_cast<int64_t>(c.x.size());
  const Shape own(c.x.begin() + (c.axis + rank) % rank, c.x.end());
  const Tensor x = random_tensor(type, c.x, -2, 3, 1), dy = random_tensor(type, c.x, -1, 1, 2),
               scale = random_tensor(type, own, 0.5, 1.5, 3);
  const Attributes attributes{{"axis", c.axis}, {"epsilon", 1e-4f}};
  const OutputSpec like_x{type, c.x}, gradient{DType::kF32, own};
  std::vector<Tensor> all =
      run_kernel("", "RMSNormalization", {x, scale}, attributes, {like_x}, options);
  for (Tensor& tensor : run_kernel(kOwn, "RMSNormalizationGrad", {dy, x, scale}, attributes,
                                   {like_x, gradient}, options)) {
    all.push_back(std::move(tensor));
  }
  return all;
}

TEST(FastRmsNormalization, AgreesWithTheReference) {
  for (const NormCase& c : kNorms) {
    for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(to_string(c.x) + " " + std::string(short_name(type)));
      const std::vector<Tensor> got = run_rms_norm(c, type, {.kernel = "fast", .threads = 2});
      const std::vector<Tensor> wanted = run_rms_norm(c, type, {.kernel = "reference"});
      ASSERT_EQ(got.size(), wanted.size());
      for (size_t i = 0; i < got.size(); ++i) {
        SCOPED_TRACE("output " + std::to_string(i));
        const double store = 2 * unit_roundoff(got[i].dtype());
        expect_close(got[i], wanted[i], store + 64 * 0x1p-24, 64 * 0x1p-24);
      }
    }
  }
}

TEST(FastRmsNormalization, SquaresMayBeTooLargeForF32) {
  const Tensor x = Tensor::full(DType::kF32, {2, 40}, 3e25),
               scale = Tensor::full(DType::kF32, {40}, 2);
  const Tensor y =
      run_one("", "RMSNormalization", {x, scale}, {}, {DType::kF32, {2, 40}}, {.kernel = "fast"});
  for (int64_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y.at_as_double(i), 2, 4 * 0x1p-23);
}

/// An output that nobody asks for changes nothing in the others.
TEST(FastLayerNormalization, GivesEachGradientAlone) {
  for (const Shape& shape : {Shape{67, 129}, Shape{4, 2049}}) {
    const Shape own{shape[1]}, statistic{shape[0], 1};
    const std::vector<Tensor> inputs{random_tensor(DType::kBF16, shape, -1, 1, 1),
                                     random_tensor(DType::kBF16, shape, -2, 3, 2),
                                     random_tensor(DType::kBF16, own, 0.5, 1.5, 3),
                                     random_tensor(DType::kF32, statistic, -1, 1, 4),
                                     random_tensor(DType::kF32, statistic, 0.5, 2, 5)};
    const std::vector<OutputSpec> outputs{
        {DType::kBF16, shape}, {DType::kF32, own}, {DType::kF32, own}};
    const RunOptions on{.kernel = "fast"};
    const auto all = run_kernel(kOwn, "LayerNormalizationGrad", inputs, {}, outputs, on);
    for (size_t wanted = 0; wanted < outputs.size(); ++wanted) {
      std::vector<OutputSpec> alone(outputs.size());
      alone[wanted] = outputs[wanted];
      const auto got = run_kernel(kOwn, "LayerNormalizationGrad", inputs, {}, alone, on);
      EXPECT_TRUE(identical(got[wanted], all[wanted])) << to_string(shape) << " output " << wanted;
    }
  }
}

TEST(FastLayerNormalization, SaysWhatItDoesNotTake) {
  const auto reason = [](DType type, const Shape& scale) {
    const Tensor x(type, {4, 6});
    return refusals("", "LayerNormalization", {x, Tensor(DType::kF32, scale)}, {}, {{type, {4, 6}}},
                    {.kernel = "fast"});
  };
  EXPECT_EQ(reason(DType::kBF16, {6}), "");
  EXPECT_NE(reason(DType::kF64, {6}).find("f64"), std::string::npos);
  EXPECT_NE(reason(DType::kF32, {1}).find("broadcast"), std::string::npos);
  EXPECT_NE(reason(DType::kF32, {4, 1}).find("broadcast"), std::string::npos);
}

TEST(CpuInfo, TakesNoInstructionSetButThoseThatItKnows) {
  EXPECT_EQ(vector_isa_for("baseline"), VectorIsa::kBaseline);
  EXPECT_LE(vector_isa_for("baseline"), vector_isa_for(""));
  EXPECT_THROW(vector_isa_for("sse9"), Error);
  if (vector_isa_for("") == VectorIsa::kAvx512) {
    EXPECT_EQ(vector_isa_for("avx2"), VectorIsa::kAvx2);
    EXPECT_EQ(vector_isa_for("avx512"), VectorIsa::kAvx512);
  } else {
    EXPECT_THROW(vector_isa_for("avx512"), Error);
  }
}

/// Runs as it is, and once more for each HALFNOTE_ISA (tests/CMakeLists.txt).
TEST(CpuInfo, EveryTableOfLoopsKeepsToTheInstructionSet) {
  const char* named = std::getenv("HALFNOTE_ISA");
  const VectorIsa isa = vector_isa_for(named ? named : "");
  ASSERT_EQ(vector_isa(), isa);
  const std::string_view best = isa == VectorIsa::kAvx512 ? "avx512"
                                : isa == VectorIsa::kAvx2 ? "avx2"
                                                          : "baseline";
  const bool has_512 = isa == VectorIsa::kAvx512;
  EXPECT_TRUE(std::string_view(cpu::attention::tile_math().name).starts_with(best));
  EXPECT_EQ(cpu::keep_loops().name, best);
  EXPECT_EQ(cpu::fast::vector_math().name, has_512 ? best : "baseline");
  EXPECT_EQ(cpu::fast::pool_loops().name, best);
  EXPECT_EQ(&cpu::fast::reduce_loops() == &cpu::fast::kBaselineReduce, best == "baseline");
  EXPECT_EQ(&cpu::fast::resize_loops() == &cpu::fast::kBaselineResize, best == "baseline");
  // These have no baseline form.
  const auto name_of = [](const auto* loops) {
    return loops == nullptr ? "baseline" : loops->name;
  };
  EXPECT_EQ(name_of(cpu::update_loops()), best);
  EXPECT_EQ(name_of(cpu::pointwise::vector_loops()), best);
  EXPECT_EQ(name_of(cpu::thin::loops()), best);
  EXPECT_EQ(name_of(cpu::depthwise::loops()), best);
  EXPECT_EQ(name_of(cpu::planes::loops()), best);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_EQ(cpu::blocked::loops_for(type) != nullptr, has_512);
    EXPECT_EQ(cpu::tiled::find_loops(type) != nullptr, has_512);
  }
  EXPECT_EQ(cpu::blocked::weight_loops_for(DType::kF32) != nullptr, has_512);
  if (named != nullptr) {
    EXPECT_EQ(cpu::onednn_isa_name().starts_with("avx512"), has_512);
  }
}

TEST(CpuInfo, DescribesTheCpu) {
  EXPECT_NE(cpu::cpu_description().find(cpu::onednn_isa_name()), std::string::npos);
  EXPECT_EQ(cpu::cpu_has_native_bf16(),
            cpu::cpu_description().find("(native bf16)") != std::string::npos);
}

// What HALFNOTE_BF16 asks for is what CPUs without AMX have, in oneDNN too.
TEST(CpuInfo, ANamedKindOfProductsLeavesAmxAlone) {
  if (std::getenv("HALFNOTE_BF16") == nullptr) GTEST_SKIP() << "HALFNOTE_BF16 is not set";
  EXPECT_EQ(cpu::onednn_isa_name().find("amx"), std::string::npos) << cpu::onednn_isa_name();
  EXPECT_NE(cpu::bf16_dots(), cpu::Bf16Dots::kTiles);
}

// A CPU whose dot products are slow computes bf16 in f32, and says so.
TEST(CpuInfo, Bf16IsNativeOnlyWhereItPays) {
  const cpu::Bf16Dots dots = cpu::bf16_dots();
  EXPECT_EQ(cpu::cpu_has_native_bf16(),
            dots == cpu::Bf16Dots::kFast || dots == cpu::Bf16Dots::kTiles);
  EXPECT_EQ(dots == cpu::Bf16Dots::kSlow,
            cpu::cpu_description().find("bf16 products in f32") != std::string::npos);
}

}  // namespace
}  // namespace halfnote::test
