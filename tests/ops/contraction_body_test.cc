// Bodies of the contractions of ai.halfnote against their kernels, on shapes that divide by
// nothing.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/ops/epilogue.h"
#include "compiler/ops/body.h"
#include "passes/canonical/infer_shapes.h"
#include "runtime/core/evaluate.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/coverage.h"

namespace halfnote::test {
namespace {

constexpr DType kContractionTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};
// Products of up to some hundred terms: the two orders of summation differ by few roundings of the
// largest partial sum.
constexpr double kContractionSums = 32;

Attributes with_out(Attributes attributes, DType out) {
  attributes.set("out_dtype", static_cast<int64_t>(out));
  return attributes;
}

struct ProductBody {
  const char* name;
  Shape a, b;
  Attributes attributes;
};

TEST(ContractionBody, MatMul) {
  const Attributes ta = {{"transA", int64_t{1}}}, tb = {{"transB", int64_t{1}}};
  const Attributes both = {{"transA", int64_t{1}}, {"transB", int64_t{1}}};
  const ProductBody products[] = {{"plain", {5, 7}, {7, 3}, {}},
                                  {"A transposed", {7, 5}, {7, 3}, ta},
                                  {"B transposed", {5, 7}, {3, 7}, tb},
                                  {"both transposed", {7, 5}, {3, 7}, both},
                                  {"batches broadcast", {2, 1, 5, 7}, {3, 7, 4}, {}},
                                  {"batched, both transposed", {2, 7, 5}, {2, 3, 7}, both},
                                  {"no rows", {0, 7}, {7, 3}, {}},
                                  {"nothing to sum", {2, 0}, {0, 3}, {}},
                                  {"one element", {1, 1}, {1, 1}, ta}};
  for (DType dtype : kContractionTypes) {
    for (const ProductBody& p : products) {
      BodyCase call{p.name,
                    "MatMul",
                    p.attributes,
                    {random_tensor(dtype, p.a, 1), random_tensor(dtype, p.b, 2)}};
      expect_body_agrees(call, kContractionSums);
      if (dtype == DType::kF64) continue;
      call.attributes = with_out(p.attributes, DType::kF32);
      expect_body_agrees(call, kContractionSums);
    }
  }
}

TEST(ContractionBody, Gemm) {
  const Attributes scaled = {{"alpha", 0.75f}, {"beta", -1.5f}, {"transB", int64_t{1}}};
  for (DType dtype : kContractionTypes) {
    const Tensor a = random_tensor(dtype, {5, 7}, 1), b = random_tensor(dtype, {3, 7}, 2);
    for (const Shape& c : {Shape{}, Shape{3}, Shape{5, 1}, Shape{5, 3}}) {
      expect_body_agrees({"C " + to_string(c), "Gemm", scaled, {a, b, random_tensor(dtype, c, 3)}},
                         kContractionSums);
    }
    expect_body_agrees({"no C", "Gemm", with_out(scaled, dtype), {a, b}}, kContractionSums);
    const Tensor swapped = random_tensor(dtype, {7, 5}, 4);
    expect_body_agrees(
        {"A transposed", "Gemm", {{"transA", int64_t{1}}, {"transB", int64_t{1}}}, {swapped, b}},
        kContractionSums);
  }
}

struct ConvolutionBody {
  const char* name;
  Shape x;       // N, C, spatial…
  int64_t maps;  // M
  int64_t group;
  std::vector<int64_t> kernel, strides, dilations, pads;
};

const ConvolutionBody kConvolutionBodies[] = {
    {"1-D", {2, 3, 11}, 5, 1, {3}, {1}, {1}, {0, 0}},
    {"strided with a rest", {2, 3, 11}, 4, 1, {3}, {3}, {1}, {1, 0}},
    {"2-D", {2, 3, 7, 5}, 4, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
    {"asymmetric pads", {1, 2, 6, 9}, 3, 1, {3, 2}, {2, 2}, {1, 1}, {0, 1, 2, 0}},
    {"dilated", {2, 2, 9, 8}, 3, 1, {2, 3}, {1, 2}, {3, 2}, {1, 2, 1, 2}},
    {"grouped", {3, 6, 5, 5}, 4, 2, {3, 3}, {2, 1}, {1, 1}, {1, 1, 1, 1}},
    {"depthwise", {2, 5, 6, 7}, 5, 5, {3, 3}, {2, 2}, {1, 1}, {1, 1, 0, 0}},
    {"depthwise with multiplier", {2, 3, 6, 7}, 6, 3, {3, 3}, {1, 1}, {2, 1}, {2, 1, 2, 1}},
    {"pointwise, strided", {2, 4, 5, 5}, 3, 1, {1, 1}, {2, 2}, {1, 1}, {0, 0, 0, 0}},
    {"3-D", {1, 2, 4, 5, 3}, 2, 1, {2, 3, 1}, {1, 2, 1}, {1, 1, 1}, {1, 1, 0, 0, 1, 0}},
};

Shape output_shape(const ConvolutionBody& c) {
  Shape shape = {c.x[0], c.maps};
  for (size_t i = 0; i < c.kernel.size(); ++i) {
    const int64_t padded = c.x[i + 2] + c.pads[i] + c.pads[c.kernel.size() + i];
    shape.push_back((padded - c.dilations[i] * (c.kernel[i] - 1) - 1) / c.strides[i] + 1);
  }
  return shape;
}

Attributes attributes_of(const ConvolutionBody& c) {
  return {{"kernel_shape", c.kernel},
          {"strides", c.strides},
          {"dilations", c.dilations},
          {"pads", c.pads},
          {"group", c.group}};
}

TEST(ContractionBody, ConvGradInput) {
  for (DType dtype : kContractionTypes) {
    for (const ConvolutionBody& c : kConvolutionBodies) {
      Shape weight = {c.maps, c.x[1] / c.group};
      weight.insert(weight.end(), c.kernel.begin(), c.kernel.end());
      expect_body_agrees(
          {c.name,
           "ConvGradInput",
           attributes_of(c),
           {random_tensor(dtype, output_shape(c), 1), random_tensor(dtype, weight, 2), ints(c.x)},
           1,
           {2}},
          kContractionSums);
    }
  }
}

TEST(ContractionBody, ConvGradInputOfUnknownSizes) {
  for (const ConvolutionBody& c : kConvolutionBodies) {
    Shape weight = {c.maps, c.x[1] / c.group};
    weight.insert(weight.end(), c.kernel.begin(), c.kernel.end());
    BodyCase call{c.name,
                  "ConvGradInput",
                  attributes_of(c),
                  {random_tensor(DType::kF64, output_shape(c), 1),
                   random_tensor(DType::kF64, weight, 2), ints(c.x)},
                  1,
                  {2}};
    const std::vector<Tensor> kernel = run_kernel(call);
    call.constants = {};  // the body learns the sizes when it runs
    expect_close(kernel, run_body(call), kContractionSums);
  }
}

TEST(ContractionBody, ConvGradWeight) {
  for (DType dtype : kContractionTypes) {
    for (const ConvolutionBody& c : kConvolutionBodies) {
      BodyCase call{c.name,
                    "ConvGradWeight",
                    attributes_of(c),
                    {random_tensor(dtype, output_shape(c), 1), random_tensor(dtype, c.x, 2)}};
      expect_body_agrees(call, kContractionSums);
      if (dtype == DType::kF64) continue;
      call.attributes = with_out(call.attributes, DType::kF32);
      expect_body_agrees(call, kContractionSums);
    }
  }
}

/// The types of a call whose spatial sizes are symbols; the body itself runs on those of `call`.
Function body_of_unknown_sizes(const BodyCase& call) {
  Graph graph;
  std::vector<ValueId> operands;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    SymbolicShape shape = symbolic(call.inputs[i].shape());
    for (size_t d = 2; d < shape.size(); ++d)
      shape[d] = Dim::named("d" + std::to_string(i) + std::to_string(d));
    operands.push_back(graph.add_input(graph.main(), "in" + std::to_string(i),
                                       ValueType::tensor(call.inputs[i].dtype(), shape)));
  }
  const NodeId node = graph.create(
      {call.op, operands, call.attributes, std::string(kHalfnoteDomain)}, 1, graph.end());
  infer_node(graph, node);
  return build_body(graph, node, infer_node);
}

TEST(ContractionBody, ConvGradWeightOfUnknownSizes) {
  for (const ConvolutionBody& c : kConvolutionBodies) {
    const BodyCase call{
        c.name,
        "ConvGradWeight",
        attributes_of(c),
        {random_tensor(DType::kF64, output_shape(c), 1), random_tensor(DType::kF64, c.x, 2)}};
    const Function body = body_of_unknown_sizes(call);
    expect_close(run_kernel(call), evaluate(body.body, call.inputs), kContractionSums);
  }
}

// Sums of up to a dozen terms in two orders, and the steps of a tanh behind them.
constexpr double kEpilogueSums = 32;
constexpr DType kEpilogueTypes[] = {DType::kF64, DType::kF32, DType::kF16, DType::kBF16};

struct EpilogueSize {
  int64_t m, n, k;
  bool trans_a, trans_b;
};
constexpr EpilogueSize kEpilogueSizes[] = {{3, 8, 5, false, false},
                                           {4, 130, 2, true, false},
                                           {1, 1, 7, false, true},
                                           {6, 9, 3, true, true}};

BodyCase epilogue(const char* op, const EpilogueSize& s, DType dtype) {
  BodyCase call{op, op};
  if (s.trans_a) call.attributes.set("transA", int64_t{1});
  if (s.trans_b) call.attributes.set("transB", int64_t{1});
  call.inputs = {random_tensor(dtype, s.trans_a ? Shape{s.k, s.m} : Shape{s.m, s.k}, 1),
                 random_tensor(dtype, s.trans_b ? Shape{s.n, s.k} : Shape{s.k, s.n}, 2)};
  call.outputs = 2;
  return call;
}

TEST(EpilogueBody, Activations) {
  for (const DType dtype : kEpilogueTypes) {
    for (const EpilogueSize& s : kEpilogueSizes) {
      for (const char* activation : {"Relu", "Gelu"}) {
        BodyCase call = epilogue("GemmActivation", s, dtype);
        call.attributes.set("activation", std::string(activation));
        expect_body_agrees(call, kEpilogueSums);
        call.inputs.push_back(random_tensor(dtype, {s.n}, 3));
        expect_body_agrees(call, kEpilogueSums);
        call.outputs = 1;
        expect_body_agrees(call, kEpilogueSums);
      }
    }
  }
}

TEST(EpilogueBody, GradientsOfActivations) {
  for (const DType dtype : kEpilogueTypes) {
    for (const EpilogueSize& s : kEpilogueSizes) {
      BodyCase call = epilogue("GemmActivationGrad", s, dtype);
      call.attributes.set("activation", std::string("Gelu"));
      call.inputs.push_back(random_tensor(dtype, {s.m, s.n}, 4, -4, 4));
      expect_body_agrees(call, kEpilogueSums);
      call.attributes.set("activation", std::string("Relu"));
      call.inputs[2] = random_ints(DType::kU8, {s.m, mask_row_bytes(s.n)}, 5, 0, 255);
      expect_body_agrees(call, kEpilogueSums);
      call.outputs = 1;
      expect_body_agrees(call, kEpilogueSums);
    }
  }
}

TEST(EpilogueBody, Sums) {
  for (const DType dtype : kEpilogueTypes) {
    for (const EpilogueSize& s : kEpilogueSizes) {
      for (const char* of : {"A", "B"}) {
        BodyCase call = epilogue("GemmSums", s, dtype);
        call.attributes.set("of", std::string(of));
        expect_body_agrees(call, kEpilogueSums);
        if (dtype == DType::kF64) continue;
        call.attributes.set("out_dtype", static_cast<int64_t>(1));
        expect_body_agrees(call, kEpilogueSums);
      }
    }
  }
}

TEST(EpilogueBody, RefusesWhatDoesNotFit) {
  const EpilogueSize s = kEpilogueSizes[0];
  EXPECT_THROW(graph_of(epilogue("GemmActivation", s, DType::kF32)), Error) << "no activation";
  EXPECT_THROW(graph_of(epilogue("GemmSums", s, DType::kF32)), Error) << "sums of nothing";
  BodyCase call = epilogue("GemmActivationGrad", s, DType::kF32);
  call.attributes.set("activation", std::string("Relu"));
  call.inputs.push_back(random_tensor(DType::kF32, {3, 8}, 4));
  EXPECT_THROW(graph_of(call), Error) << "a mask of f32";
}

TEST(ContractionBody, EveryBodyIsTested) {
  // The recurrent ones in recurrent/body_test.cc, attention in attention_body_test.cc.
  const std::set<std::string> kTested = {"Attention",
                                         "AttentionGrad",
                                         "ConvGradInput",
                                         "ConvGradWeight",
                                         "GRU",
                                         "GRUGrad",
                                         "Gemm",
                                         "GemmActivation",
                                         "GemmActivationGrad",
                                         "GemmSums",
                                         "LSTM",
                                         "LSTMGrad",
                                         "MatMul",
                                         "RNN",
                                         "RNNGrad"};
  EXPECT_EQ(with_body(contraction_rows()), kTested);
}

}  // namespace
}  // namespace halfnote::test
