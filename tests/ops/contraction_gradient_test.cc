// Gradient rules of MatMul, Gemm, Conv and ConvTranspose against central differences.
#include <gtest/gtest.h>

#include "base/error.h"
#include "compiler/ir/model.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/coverage.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

using Ints = std::vector<int64_t>;

struct Product {
  const char* name;
  Shape a, b;
};

TEST(ContractionGradient, MatMulOfAllRanks) {
  const Product products[] = {{"matrices", {3, 5}, {5, 2}},
                              {"vector times matrix", {5}, {5, 2}},
                              {"matrix times vector", {3, 5}, {5}},
                              {"vector times vector", {5}, {5}},
                              {"batched times vector", {4, 3, 5}, {5}},
                              {"vector times batched", {5}, {4, 5, 2}},
                              {"weight under batches", {4, 2, 3, 5}, {5, 7}},
                              {"matrix over batches", {3, 5}, {4, 5, 2}},
                              {"equal batches", {4, 3, 5}, {4, 5, 2}},
                              {"batches broadcast", {4, 1, 3, 5}, {2, 5, 7}}};
  for (const Product& p : products) {
    const GradientCase test{p.name, "MatMul", {}, {f64(p.a, 1), f64(p.b, 2)}, {0, 1}};
    expect_gradient(test);
    expect_gradient(test, Dims::kSymbolic);
  }
}

TEST(ContractionGradient, MatMulWithTransposeFlags) {
  for (int64_t ta : {0, 1}) {
    for (int64_t tb : {0, 1}) {
      const Attributes flags = {{"transA", ta}, {"transB", tb}};
      const Shape a = ta ? Shape{5, 3} : Shape{3, 5}, b = tb ? Shape{2, 5} : Shape{5, 2};
      Shape batched = a;
      batched.insert(batched.begin(), 4);
      GradientCase test{"matrices", "MatMul", flags, {f64(a, 1), f64(b, 2)}, {0, 1}};
      test.domain = kHalfnoteDomain;
      expect_gradient(test, Dims::kSymbolic);
      test.name = "weight under batches";
      test.inputs[0] = f64(batched, 3);
      expect_gradient(test, Dims::kSymbolic);
    }
  }
}

TEST(ContractionGradient, Gemm) {
  for (const std::string_view domain : {std::string_view(), kHalfnoteDomain}) {
    for (int64_t flags : {0, 1, 2, 3}) {
      const int64_t ta = flags & 1, tb = flags >> 1;
      const Shape a = ta ? Shape{5, 3} : Shape{3, 5}, b = tb ? Shape{2, 5} : Shape{5, 2};
      for (const Shape& c : {Shape{3, 2}, Shape{2}, Shape{3, 1}, Shape{1, 2}, Shape{}}) {
        GradientCase test{"C " + to_string(c),
                          "Gemm",
                          {{"transA", ta}, {"transB", tb}, {"alpha", 0.75f}, {"beta", -1.5f}},
                          {f64(a, 1), f64(b, 2), f64(c, 3)},
                          {0, 1, 2}};
        test.domain = domain;
        expect_gradient(test);
        expect_gradient(test, Dims::kSymbolic);
      }
      GradientCase test{
          "no C", "Gemm", {{"transA", ta}, {"transB", tb}}, {f64(a, 1), f64(b, 2)}, {0, 1}};
      test.domain = domain;
      expect_gradient(test, Dims::kSymbolic);
    }
  }
}

struct Convolution {
  const char* name;
  Shape x, w;
  Attributes attributes;
};

const Convolution kConvolutions[] = {
    {"1-D", {2, 3, 7}, {4, 3, 3}, {}},
    {"kernel from W, pads", {2, 2, 5, 4}, {3, 2, 3, 3}, {{"pads", Ints{1, 0, 2, 1}}}},
    {"strided with a rest", {1, 2, 8, 7}, {2, 2, 3, 2}, {{"strides", Ints{3, 2}}}},
    {"dilated", {1, 2, 7, 6}, {2, 2, 3, 2}, {{"dilations", Ints{2, 3}}}},
    {"grouped", {2, 4, 5, 5}, {6, 2, 3, 3}, {{"group", int64_t{2}}, {"strides", Ints{2, 1}}}},
    {"depthwise",
     {2, 3, 5, 4},
     {3, 1, 3, 3},
     {{"group", int64_t{3}}, {"pads", Ints{1, 1, 1, 1}}, {"strides", Ints{2, 2}}}},
    {"3-D", {1, 2, 3, 4, 3}, {2, 2, 2, 2, 2}, {{"pads", Ints{0, 1, 0, 1, 0, 0}}}},
};

TEST(ContractionGradient, Conv) {
  for (const Convolution& c : kConvolutions) {
    expect_gradient(
        {c.name, "Conv", c.attributes, {f64(c.x, 1), f64(c.w, 2), f64({c.w[0]}, 3)}, {0, 1, 2}});
    expect_gradient({c.name, "Conv", c.attributes, {f64(c.x, 1), f64(c.w, 2)}, {0, 1}});
  }
}

TEST(ContractionGradient, ConvWithAutoPad) {
  for (const char* mode : {"SAME_UPPER", "SAME_LOWER", "VALID"}) {
    expect_gradient({mode,
                     "Conv",
                     {{"auto_pad", std::string(mode)}, {"strides", Ints{2, 3}}},
                     {f64({1, 2, 6, 7}, 1), f64({2, 2, 3, 4}, 2)},
                     {0, 1}});
  }
}

struct Transposed {
  const char* name;
  Shape x, w;
  Attributes attributes;
};

Ints twos() { return {2, 2}; }

const Transposed kTransposed[] = {
    {"1-D", {2, 3, 5}, {3, 4, 3}, {}},
    {"pads at one side", {2, 2, 4, 5}, {2, 3, 3, 3}, {{"pads", Ints{1, 0, 2, 1}}}},
    {"strided", {1, 2, 4, 3}, {2, 2, 3, 2}, {{"strides", Ints{3, 2}}}},
    {"dilated", {1, 2, 4, 3}, {2, 2, 3, 2}, {{"dilations", Ints{2, 3}}}},
    {"grouped", {2, 4, 3, 3}, {4, 3, 3, 3}, {{"group", int64_t{2}}, {"strides", Ints{2, 1}}}},
    {"depthwise", {2, 3, 4, 3}, {3, 1, 2, 2}, {{"group", int64_t{3}}, {"strides", twos()}}},
    {"output_padding",
     {1, 2, 3, 4},
     {2, 2, 3, 3},
     {{"strides", twos()}, {"pads", Ints{1, 1, 0, 1}}, {"output_padding", Ints{1, 0}}}},
    {"output_padding beyond the stride",
     {1, 2, 3, 4},
     {2, 2, 3, 3},
     {{"dilations", Ints{3, 1}}, {"output_padding", Ints{2, 0}}}},
    {"output_padding in place of a pad",
     {1, 2, 3, 4},
     {2, 2, 3, 3},
     {{"dilations", Ints{3, 2}}, {"pads", Ints{1, 0, 2, 3}}, {"output_padding", Ints{2, 1}}}},
    {"output_padding beyond a pad",
     {1, 2, 3, 4},
     {2, 2, 3, 3},
     {{"dilations", Ints{3, 3}}, {"pads", Ints{1, 1, 1, 1}}, {"output_padding", Ints{2, 2}}}},
    {"output_shape",
     {1, 2, 3, 4},
     {2, 2, 3, 3},
     {{"strides", twos()}, {"output_shape", Ints{6, 8}}}},
    {"output_shape, a row more",
     {1, 1, 3, 3},
     {1, 2, 3, 3},
     {{"strides", Ints{3, 2}}, {"output_shape", Ints{10, 8}}}},
    {"SAME_UPPER",
     {1, 2, 3, 3},
     {2, 2, 3, 4},
     {{"strides", twos()}, {"auto_pad", std::string("SAME_UPPER")}}},
    {"SAME_LOWER",
     {1, 2, 3, 3},
     {2, 2, 3, 4},
     {{"strides", twos()}, {"auto_pad", std::string("SAME_LOWER")}}},
    {"VALID", {1, 2, 3, 3}, {2, 2, 3, 2}, {{"auto_pad", std::string("VALID")}}},
    {"3-D", {1, 2, 2, 3, 2}, {2, 2, 2, 2, 2}, {{"pads", Ints{0, 1, 0, 1, 0, 0}}}},
};

TEST(ContractionGradient, ConvTranspose) {
  for (const Transposed& c : kTransposed) {
    const int64_t group = c.attributes.get_int("group", 1);
    const Tensor bias = f64({c.w[1] * group}, 3);
    expect_gradient(
        {c.name, "ConvTranspose", c.attributes, {f64(c.x, 1), f64(c.w, 2), bias}, {0, 1, 2}});
    expect_gradient({c.name, "ConvTranspose", c.attributes, {f64(c.x, 1), f64(c.w, 2)}, {0, 1}});
  }
}

// A rule that asks for fixed sizes must say so instead of guessing.
TEST(ContractionGradient, SymbolicKernelIsRefused) {
  const GradientCase test{"symbolic", "Conv", {}, {f64({1, 2, 7}, 1), f64({3, 2, 4}, 2)}, {0}};
  EXPECT_THROW(rule_gradients(test, {f64({1, 3, 4}, 3)}, Dims::kSymbolic), Error);
}

TEST(ContractionGradient, EveryRuleIsTested) {
  // The recurrent ones in recurrent/gradient_test.cc.
  const std::set<std::string> kTested = {"Conv",
                                         "ConvTranspose",
                                         "Gemm",
                                         "MatMul",
                                         "GRU",
                                         "LSTM",
                                         "RNN",
                                         "ai.halfnote.Gemm",
                                         "ai.halfnote.GRU",
                                         "ai.halfnote.LSTM",
                                         "ai.halfnote.MatMul",
                                         "ai.halfnote.RNN"};
  EXPECT_EQ(with_gradient(contraction_rows()), kTested);
}

}  // namespace
}  // namespace halfnote::test
