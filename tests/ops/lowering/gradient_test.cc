// Gradients of ops that are lowered before differentiation, against central differences; the values
// of Einsum against its definition.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "compiler/ops/contraction/einsum.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/canonical/lower_ops.h"
#include "runtime/core/evaluate.h"
#include "tests/ops/body_harness.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

struct Equation {
  const char* text;
  std::vector<Shape> shapes;
};

const Equation kEquations[] = {
    {"ij,jk->ik", {{3, 4}, {4, 5}}},
    {"ij,kj", {{3, 4}, {5, 4}}},
    {"ij,jk->ki", {{3, 4}, {4, 5}}},
    {"bij,bjk->bik", {{2, 3, 4}, {2, 4, 5}}},
    {"bhid,bhjd->bhij", {{2, 3, 4, 5}, {2, 3, 6, 5}}},
    {"abc,cde->abde", {{2, 3, 4}, {4, 5, 6}}},
    {"abc,dcb->da", {{2, 3, 4}, {5, 4, 3}}},
    {"i,i->", {{4}, {4}}},
    {"i,j->ij", {{3}, {4}}},
    {"ij,i->i", {{3, 4}, {3}}},
    {"ij,j->", {{3, 4}, {4}}},
    {"ij->ji", {{3, 4}}},
    {"ij->", {{3, 4}}},
    {"ij->j", {{3, 4}}},
    {"ii->i", {{4, 4}}},
    {"ii", {{4, 4}}},
    {"biij->bji", {{2, 3, 3, 4}}},
    {"iji,jk->ik", {{3, 4, 3}, {4, 5}}},
    {"...ij,...jk->...ik", {{2, 1, 3, 4}, {2, 6, 4, 5}}},
    {"...i,...i->...", {{2, 3}, {2, 3}}},
    {"i...->...", {{3, 2, 4}}},
    {"...ii->...i", {{2, 3, 3}}},
    {"b...j,jk->b...k", {{2, 3, 5, 4}, {4, 6}}},
    {" i j , j k , k l -> i l ", {{2, 3}, {3, 4}, {4, 5}}},
    {"ij,jk,ik->", {{2, 3}, {3, 4}, {2, 4}}},
    {"ab,bc,bd->acd", {{2, 3}, {3, 4}, {3, 5}}},
    {"Ab,bA->A", {{2, 3}, {3, 2}}},
};

std::vector<Tensor> operands_of(const Equation& equation) {
  std::vector<Tensor> inputs;
  for (const Shape& shape : equation.shapes) inputs.push_back(f64(shape, 7 + inputs.size()));
  return inputs;
}

GradientCase case_of(const Equation& equation) {
  GradientCase test{equation.text,
                    "Einsum",
                    {{"equation", std::string(equation.text)}},
                    operands_of(equation),
                    {}};
  for (size_t i = 0; i < equation.shapes.size(); ++i) test.wrt.push_back(i);
  return test;
}

/// The sum over all values of all labels, as the definition says.
std::vector<double> einsum_of(const Equation& equation) {
  const std::vector<Tensor> inputs = operands_of(equation);
  std::vector<int> ranks;
  for (const Shape& shape : equation.shapes) ranks.push_back(static_cast<int>(shape.size()));
  const contraction::Equation read = contraction::parse_equation(equation.text, ranks);
  std::map<int, int64_t> sizes, at;
  for (size_t k = 0; k < inputs.size(); ++k) {
    for (size_t d = 0; d < equation.shapes[k].size(); ++d) {
      int64_t& size = sizes[read.operands[k][d]];
      size = std::max(size, equation.shapes[k][d]);
    }
  }
  const auto place = [&](const contraction::Labels& labels, const Shape* shape) {
    int64_t index = 0;
    for (size_t d = 0; d < labels.size(); ++d) {
      const int64_t size = shape ? (*shape)[d] : sizes[labels[d]];
      index = index * size + (size == 1 ? 0 : at[labels[d]]);
    }
    return static_cast<size_t>(index);
  };
  int64_t all = 1, results = 1;
  for (const auto& [label, size] : sizes) all *= size;
  for (int label : read.result) results *= sizes[label];
  std::vector<double> sums(static_cast<size_t>(results), 0.0);
  for (int64_t i = 0; i < all; ++i) {
    int64_t rest = i;
    for (const auto& [label, size] : sizes) {
      at[label] = rest % size;
      rest /= size;
    }
    double term = 1;
    for (size_t k = 0; k < inputs.size(); ++k) {
      term *= inputs[k].at_as_double(
          static_cast<int64_t>(place(read.operands[k], &equation.shapes[k])));
    }
    sums[place(read.result, nullptr)] += term;
  }
  return sums;
}

TEST(LoweringGradient, Einsum) {
  for (const Equation& equation : kEquations) {
    expect_gradient(case_of(equation));
    expect_gradient(case_of(equation), Dims::kSymbolic);
  }
}

TEST(LoweringGradient, EinsumHasTheValuesOfItsDefinition) {
  for (const Equation& equation : kEquations) {
    SCOPED_TRACE(equation.text);
    Graph graph;
    NodeSpec spec{"Einsum", {}, {{"equation", std::string(equation.text)}}};
    const std::vector<Tensor> inputs = operands_of(equation);
    for (const Tensor& input : inputs) {
      spec.inputs.push_back(
          graph.add_input(graph.main(), "x" + std::to_string(spec.inputs.size()),
                          ValueType::tensor(DType::kF64, symbolic(input.shape()))));
    }
    const NodeId node = graph.create(std::move(spec), 1, graph.end());
    infer_node(graph, node);
    const ValueType declared = graph.value(graph.output(node)).type;
    graph.add_output(graph.main(), graph.output(node));
    ASSERT_TRUE(lower_graph(graph, infer_node));
    EXPECT_EQ(to_string(graph.value(graph.outputs()[0]).type), to_string(declared));
    const Tensor got = evaluate(graph, inputs)[0];
    const std::vector<double> want = einsum_of(equation);
    ASSERT_EQ(static_cast<size_t>(got.size()), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got.at_as_double(static_cast<int64_t>(i)), want[i], 1e-13) << i;
    }
  }
}

TEST(LoweringGradient, MalformedEquationsAreRefused) {
  const std::pair<const char*, std::vector<int>> kBad[] = {
      {"ij,jk->ik", {2}},        {"ij->", {3}},      {"i1->i", {2}},  {"i.j->i", {2}},
      {"......->", {2}},         {"ij->ii", {2}},    {"ij->ik", {2}}, {"i->...", {2}},
      {"ij,jk->ik->ij", {2, 2}}, {"...ij->ij", {1}}, {"", {1}},
  };
  for (const auto& [text, ranks] : kBad) {
    EXPECT_THROW(contraction::parse_equation(text, ranks), Error) << text;
  }
}

struct AttentionCase {
  const char* name;
  Attributes attributes;
  std::vector<Tensor> inputs;
  std::vector<size_t> wrt;
  int outputs = 1;
};

std::vector<AttentionCase> attention_cases() {
  const Tensor q = f64({2, 4, 3, 5}, 1), k = f64({2, 4, 6, 5}, 2), v = f64({2, 4, 6, 7}, 3);
  const Tensor few_k = f64({2, 2, 6, 5}, 4), few_v = f64({2, 2, 6, 7}, 5);
  const Tensor flat_q = f64({2, 3, 20}, 6), flat_k = f64({2, 6, 10}, 7), flat_v = f64({2, 6, 6}, 8);
  const Tensor mask = f64({3, 6}, 9), past_k = f64({2, 4, 2, 5}, 10),
               past_v = f64({2, 4, 2, 7}, 11);
  const bool seen[] = {true, true,  false, true, true, true, true, true,  true,
                       true, false, true,  true, true, true, true, false, true};
  const Tensor hidden = Tensor::of<bool>({3, 6}, seen);
  const Attributes causal = {{"is_causal", int64_t{1}}};
  const Attributes heads = {{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}};
  const Attributes capped = {{"softcap", 2.0f}, {"scale", 0.7f}};
  const Attributes mode = {{"qk_matmul_output_mode", int64_t{3}}};
  return {{"4-D", {}, {q, k, v}, {0, 1, 2}},
          {"causal", causal, {q, k, v}, {0, 1, 2}},
          {"grouped", {}, {q, few_k, few_v}, {0, 1, 2}},
          {"3-D grouped", heads, {flat_q, flat_k, flat_v}, {0, 1, 2}},
          {"float mask", {}, {q, k, v, mask}, {0, 1, 2, 3}},
          {"bool mask", {}, {q, k, v, hidden}, {0, 1, 2}},
          {"capped", capped, {q, k, v}, {0, 1, 2}},
          {"past", causal, {q, k, v, Tensor{}, past_k, past_v}, {0, 1, 2, 4, 5}, 3},
          {"weights as output", mode, {q, k, v}, {0, 1}, 4}};
}

TEST(LoweringGradient, Attention) {
  for (const AttentionCase& c : attention_cases()) {
    SCOPED_TRACE(c.name);
    const GradientCase test{c.name, "Attention", c.attributes, c.inputs, c.wrt, c.outputs};
    expect_gradient(test);
    // The heads must be numbers where they are grouped; a bool mask is one of fixed sizes.
    const std::string_view name = c.name;
    if (name.find("grouped") == std::string_view::npos && name != "bool mask") {
      expect_gradient(test, Dims::kSymbolic);
    }
  }
}

TEST(LoweringGradient, AttentionThatDoesNotFitIsRefused) {
  const GradientCase odd{
      "heads", "Attention", {}, {f64({1, 3, 2, 4}, 1), f64({1, 2, 2, 4}, 2), f64({1, 2, 2, 4}, 3)}};
  EXPECT_THROW(rule_gradients(odd, {f64({1, 3, 2, 4}, 4)}), Error);
}

TEST(LoweringGradient, RotaryEmbedding) {
  const Tensor x = f64({2, 3, 4, 6}, 1), flat = f64({2, 4, 18}, 2);
  const Tensor cosine = f64({2, 4, 3}, 3), sine = f64({2, 4, 3}, 4);
  const Tensor table = f64({9, 3}, 5), other = f64({9, 3}, 6), narrow = f64({9, 2}, 7);
  const Tensor places = random_ints(DType::kI64, {2, 4}, 8, 0, 9);
  const Attributes pairs = {{"interleaved", int64_t{1}}};
  const Attributes heads = {{"num_heads", int64_t{3}}};
  const Attributes part = {{"rotary_embedding_dim", int64_t{4}}, {"interleaved", int64_t{1}}};
  expect_gradient({"halves", "RotaryEmbedding", {}, {x, cosine, sine}, {0, 1, 2}});
  expect_gradient({"pairs", "RotaryEmbedding", pairs, {x, cosine, sine}, {0, 1, 2}});
  expect_gradient({"3-D", "RotaryEmbedding", heads, {flat, cosine, sine}, {0, 1, 2}});
  expect_gradient({"positions", "RotaryEmbedding", {}, {x, table, other, places}, {0, 1, 2}});
  expect_gradient({"a part", "RotaryEmbedding", part, {x, narrow, narrow, places}, {0}});
}

}  // namespace
}  // namespace halfnote::test
