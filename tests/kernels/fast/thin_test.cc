// Convolutions with few channels at one end, or few positions, against the reference: own loops for
// few results, gradients as convolutions with the channels swapped, products of all positions.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/cpu_info.h"
#include "kernels/layout.h"
#include "tests/kernels/exact.h"
#include "tests/kernels/fast/conv_case.h"
#include "tests/kernels/harness.h"

namespace halfnote::test {
namespace {

constexpr DType kThinTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr std::string_view kFew = "fast.conv_few_results", kSwapped = "onednn.conv_swapped",
                           kPositions = "fast.conv_few_positions";

Attributes thin_attributes(const FastConvCase& c) {
  return {{"strides", c.strides}, {"dilations", c.dilations}, {"pads", c.pads}};
}

FastConvCall thin_forward(const FastConvCase& c, DType type, bool bias) {
  FastConvCall call{"", "Conv", {}, thin_attributes(c), {type, fast_conv_result(c)}};
  call.inputs = {random_tensor(type, c.x, -1, 1, 1), random_tensor(type, c.w, -1, 1, 2)};
  if (bias) call.inputs.push_back(random_tensor(type, {c.w[0]}, -1, 1, 4));
  call.terms = element_count(c.w) / c.w[0] + 1;
  return call;
}

FastConvCall thin_input_gradient(const FastConvCase& c, DType type) {
  FastConvCall call{kOwn, "ConvGradInput", {}, thin_attributes(c), {type, c.x}};
  call.inputs = {
      random_tensor(type, fast_conv_result(c), -1, 1, 3), random_tensor(type, c.w, -1, 1, 2),
      Tensor::of<int64_t>({static_cast<int64_t>(c.x.size())}, std::span<const int64_t>(c.x))};
  call.terms = element_count(c.w) / c.w[1];
  return call;
}

/// Whose input is what the convolution gives.
FastConvCall thin_transpose(const FastConvCase& c, DType type) {
  FastConvCall call{
      "", "ConvTranspose", {}, thin_attributes(c), {type, fast_conv_transpose_result(c)}};
  call.inputs = {random_tensor(type, fast_conv_result(c), -1, 1, 3),
                 random_tensor(type, c.w, -1, 1, 2), random_tensor(type, {c.x[1]}, -1, 1, 5)};
  call.terms = element_count(c.w) / c.w[1] + 1;
  return call;
}

FastConvCall thin_weight_gradient(const FastConvCase& c, DType type, DType out) {
  const Shape y = fast_conv_result(c);
  FastConvCall call{kOwn, "ConvGradWeight", {}, thin_attributes(c), {out, c.w}};
  call.attributes.set("kernel_shape", std::vector<int64_t>(c.w.begin() + 2, c.w.end()));
  call.attributes.set("out_dtype", static_cast<int64_t>(out));
  call.inputs = {random_tensor(type, fast_conv_result(c), -1, 1, 3),
                 random_tensor(type, c.x, -1, 1, 1)};
  call.terms = element_count(y) / y[1];
  return call;
}

Tensor run_thin(const FastConvCall& call, std::string_view kernel) {
  // oneDNN need not give the same bits on any number of threads.
  const RunOptions options{.kernel = kernel, .check_repeats = kernel == kFew};
  return run_one(call.domain, call.op, call.inputs, call.attributes, call.output, options);
}

/// The bound of a sum of products below 1 in f32, and of one rounding of the result.
void expect_thin(const FastConvCall& call, std::string_view kernel) {
  const auto count = static_cast<double>(call.terms + 2);
  expect_close(run_thin(call, kernel), run_thin(call, "reference"),
               2 * unit_roundoff(call.output.dtype),
               2 * count * std::sqrt(count) * unit_roundoff(DType::kF32));
}

std::string thin_trace(const FastConvCase& c, const FastConvCall& call, DType type) {
  return std::string(c.name) + ", " + std::string(call.op) + " " + std::string(short_name(type));
}

TEST(FastThinConv, FewResultsAgreeWithTheReference) {
  if (cpu::vector_isa() == cpu::VectorIsa::kBaseline) GTEST_SKIP() << "neither AVX2 nor AVX-512";
  const FastConvCase forward[] = {
      {"3 of 9x9", {2, 6, 20, 21}, {3, 6, 9, 9}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
      {"1 of 3x3", {3, 17, 12, 13}, {1, 17, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {"2, 16 columns", {1, 12, 5, 16}, {2, 12, 3, 2}, {1, 1}, {1, 1}, {1, 0, 1, 1}},
      {"4 of 2x2", {1, 20, 9, 33}, {4, 20, 2, 2}, {1, 1}, {1, 1}, {0, 1, 1, 0}},
      {"4, rows by 2", {2, 8, 11, 19}, {4, 8, 3, 3}, {2, 1}, {1, 1}, {1, 1, 1, 1}},
      {"2, dilated", {1, 9, 15, 40}, {2, 9, 3, 3}, {1, 1}, {2, 3}, {2, 3, 2, 3}},
      {"3, one row", {1, 16, 1, 50}, {3, 16, 1, 5}, {1, 1}, {1, 1}, {0, 2, 0, 2}},
      {"4 of a line", {2, 30, 70}, {4, 30, 4}, {1}, {1}, {0, 3}},
      {"many rows", {1, 64, 70, 60}, {3, 64, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
      {"a long line", {1, 24, 1500}, {1, 24, 7}, {1}, {1}, {3, 3}},
  };
  const FastConvCase back[] = {
      {"3 of 9x9", {2, 3, 20, 21}, {6, 3, 9, 9}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
      {"stride 2", {2, 3, 30, 33}, {24, 3, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}},
      {"stride 2, 4x4", {1, 1, 26, 28}, {50, 1, 4, 4}, {2, 2}, {1, 1}, {1, 1, 1, 1}},
      {"stride 3 and 2, dilated", {1, 2, 31, 52}, {100, 2, 2, 3}, {3, 2}, {2, 3}, {1, 2, 0, 1}},
      {"stride above the kernel", {1, 4, 25, 64}, {300, 4, 2, 2}, {3, 3}, {1, 1}, {0, 0, 0, 0}},
      {"4 of a line", {2, 4, 90}, {40, 4, 5}, {2}, {1}, {2, 1}},
      {"pads beyond the kernel", {1, 3, 12, 14}, {64, 3, 2, 2}, {1, 1}, {1, 1}, {2, 3, 3, 2}},
  };
  for (const DType type : kThinTypes) {
    for (const FastConvCase& c : forward) {
      for (const bool bias : {false, true}) {
        const FastConvCall call = thin_forward(c, type, bias);
        SCOPED_TRACE(thin_trace(c, call, type));
        expect_thin(call, kFew);
      }
    }
    for (const FastConvCase& c : back) {
      for (const FastConvCall& call : {thin_input_gradient(c, type), thin_transpose(c, type)}) {
        SCOPED_TRACE(thin_trace(c, call, type));
        expect_thin(call, kFew);
      }
    }
  }
}

const FastConvCase kSwappedCases[] = {
    {"3 of 9x9", {2, 16, 20, 21}, {3, 16, 9, 9}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
    {"1 of 3x3", {3, 32, 12, 13}, {1, 32, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
    {"lopsided", {1, 20, 9, 15}, {4, 20, 2, 3}, {1, 1}, {1, 1}, {0, 1, 1, 0}},
    {"dilated", {2, 13, 11, 19}, {2, 13, 3, 3}, {1, 1}, {2, 3}, {3, 1, 4, 2}},
    {"a line", {2, 30, 70}, {3, 30, 5}, {1}, {1}, {0, 4}},
};

TEST(FastThinConv, SwappedGradientsAgreeWithTheReference) {
  for (const FastConvCase& c : kSwappedCases) {
    for (const DType type : kThinTypes) {
      for (const FastConvCall& call :
           {thin_input_gradient(c, type), thin_weight_gradient(c, type, type),
            thin_weight_gradient(c, type, DType::kF32)}) {
        const std::string why = refusals(call.domain, call.op, call.inputs, call.attributes,
                                         {call.output}, {.kernel = kSwapped});
        SCOPED_TRACE(thin_trace(c, call, type) + why);
        // Without vectors oneDNN may have but plain loops.
        if (why.find("plain loop") == std::string::npos) expect_thin(call, kSwapped);
      }
    }
  }
}

const FastConvCase kPositionCases[] = {
    {"1x1", {2, 520, 3, 3}, {511, 520, 1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
    {"1x1, stride 2", {3, 300, 4, 5}, {900, 300, 1, 1}, {2, 2}, {1, 1}, {0, 0, 0, 0}},
    {"3x3 on 2x2", {4, 128, 2, 2}, {256, 128, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
    {"3x3, stride 2", {2, 176, 7, 5}, {176, 176, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}},
    {"dilated, lopsided", {1, 190, 9, 6}, {250, 190, 2, 3}, {1, 2}, {3, 2}, {0, 1, 2, 0}},
    {"one pixel", {16, 320, 1, 1}, {1000, 320, 1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}},
    {"nothing but pads", {1, 512, 1, 1}, {512, 512, 1, 1}, {1, 1}, {1, 1}, {1, 1, 2, 2}},
    {"a line", {2, 200, 17}, {300, 200, 5}, {1}, {1}, {2, 2}},
    {"a cube", {1, 100, 3, 4, 3}, {330, 100, 2, 2, 2}, {1, 2, 1}, {1, 1, 1}, {0, 0, 0, 1, 1, 0}},
};

TEST(FastThinConv, ProductsOfAllPositionsAgreeWithTheReference) {
  for (const FastConvCase& c : kPositionCases) {
    for (const DType type : kThinTypes) {
      for (const FastConvCall& call :
           {thin_forward(c, type, false), thin_forward(c, type, true), thin_input_gradient(c, type),
            thin_weight_gradient(c, type, type), thin_weight_gradient(c, type, DType::kF32)}) {
        SCOPED_TRACE(thin_trace(c, call, type));
        expect_thin(call, kPositions);
      }
    }
  }
}

TEST(FastThinConv, LeavesAloneWhatIsNotItsOwn) {
  if (cpu::vector_isa() == cpu::VectorIsa::kBaseline) GTEST_SKIP() << "neither AVX2 nor AVX-512";
  const auto why = [](const FastConvCall& call, std::string_view kernel) {
    return refusals(call.domain, call.op, call.inputs, call.attributes, {call.output},
                    {.kernel = kernel});
  };
  const FastConvCase many{"", {1, 16, 20, 20}, {9, 16, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}};
  EXPECT_NE(why(thin_forward(many, DType::kF32, false), kFew).find("many"), std::string::npos);
  EXPECT_NE(why(thin_input_gradient(many, DType::kF32), kSwapped).find("many"), std::string::npos);
  const FastConvCase apart{"", {1, 16, 20, 40}, {3, 16, 3, 3}, {1, 2}, {1, 1}, {1, 1, 1, 1}};
  EXPECT_NE(why(thin_forward(apart, DType::kF32, false), kFew), "");
  EXPECT_NE(why(thin_weight_gradient(apart, DType::kF32, DType::kF32), kSwapped), "");
  const FastConvCase empty{"", {0, 16, 20, 20}, {3, 16, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}};
  EXPECT_NE(why(thin_forward(empty, DType::kF32, false), kFew), "");
  EXPECT_NE(why(thin_input_gradient(empty, DType::kF32), kSwapped), "");
  const FastConvCase positions{"", {1, 512, 9, 8}, {512, 512, 1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}};
  EXPECT_NE(why(thin_forward(positions, DType::kF32, false), kPositions).find("many"),
            std::string::npos);
  const FastConvCase light{"", {1, 256, 2, 2}, {256, 256, 1, 1}, {1, 1}, {1, 1}, {0, 0, 0, 0}};
  EXPECT_NE(why(thin_input_gradient(light, DType::kF32), kPositions).find("few"),
            std::string::npos);
}

}  // namespace
}  // namespace halfnote::test
