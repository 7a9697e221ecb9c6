// --tie: a weight that the exporter wrote twice, once transposed, is one parameter: its gradient is
// the sum over both uses, and the trained model holds it once.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "compiler/ir/text.h"
#include "compiler/onnx/check.h"
#include "support.h"

namespace halfnote::test {
namespace {

constexpr int64_t kTokens = 24, kWidth = 16;

std::string numbers(const Tensor& tensor, bool transposed) {
  std::string text;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const int64_t at = transposed ? i % kTokens * kWidth + i / kTokens : i;
    text += fmt::format("{}{:.6f}", i > 0 ? ", " : "", tensor.at_as_double(at));
  }
  return text;
}

/// Token embedding and output layer hold the same weight; the latter transposed, or not.
Model language_model(bool transposed) {
  const Tensor emb = uniform({kTokens, kWidth}, 5);
  const std::string head = fmt::format("float[{}] head = {{{}}}", transposed ? "16,24" : "24,16",
                                       numbers(emb, transposed));
  return parse_model(
      "<ir_version: 10, opset_import: [\"\" : 23]>\n"
      "g (int64[N] tokens) => (float[N,24] y)\n"
      "<float[24,16] emb = {" +
          numbers(emb, false) + "}, " + head +
          "> {\n"
          "  h = Gather (emb, tokens)\n"
          "  t = Tanh (h)\n" +
          (transposed ? "  y = MatMul (t, head)\n" : "  y = Gemm <transB = 1> (t, head)\n") + "}",
      "tied.onnxtxt");
}

CompileOptions sgd(const std::vector<std::string>& tied) {
  CompileOptions options = options_for("sgd");
  options.train.optimizer.lr = 1.0f;
  options.train.tied = tied;
  return options;
}

std::vector<Tensor> tokens() {
  return {Tensor::of<int64_t>({8}, {3, 1, 4, 1, 5, 9, 2, 6}),
          Tensor::of<int64_t>({8}, {1, 4, 1, 5, 9, 2, 6, 5})};
}

class Tied : public testing::TestWithParam<bool> {};

TEST_P(Tied, TheGradientIsTheSumOverBothUses) {
  const bool transposed = GetParam();
  Session tied = reference_session(language_model(transposed), sgd({"emb=head"}));
  Session apart = reference_session(language_model(transposed), sgd({}));
  const Tensor first = state(apart, "emb");
  ASSERT_TRUE(identical(state(tied, "emb"), first));
  EXPECT_EQ(tied.state().find("head"), nullptr);
  EXPECT_EQ(tied.step(tokens()).loss, apart.step(tokens()).loss);
  const Tensor emb = state(apart, "emb"), head = state(apart, "head"), both = state(tied, "emb");
  // At a rate of 1 a weight moves by its gradient. Three weights in [-2, 2] were rounded, and the
  // sum of the gradients.
  const double bound = 8 * std::numeric_limits<float>::epsilon();
  double moved = 0;
  for (int64_t i = 0; i < both.size(); ++i) {
    const int64_t at = transposed ? i % kWidth * kTokens + i / kWidth : i;
    const double w = first.at_as_double(i);
    const double from_lookup = emb.at_as_double(i) - w, from_head = head.at_as_double(at) - w;
    EXPECT_NEAR(both.at_as_double(i) - w, from_lookup + from_head, bound) << i;
    moved = std::max(moved, std::min(std::fabs(from_lookup), std::fabs(from_head)));
  }
  EXPECT_GT(moved, 1e-3) << "no element has a gradient from both uses";
}

TEST_P(Tied, TheTrainedModelHoldsOneWeight) {
  Session session = reference_session(language_model(GetParam()), sgd({"emb=head"}));
  session.step(tokens());
  const Model model = session.trained_model();
  EXPECT_NO_THROW(check_model(model));
  int weights = 0;
  for (ValueId id : model.graph.initializers())
    weights += is_float(model.graph.value(id).type.dtype);
  EXPECT_EQ(weights, 1);
  EXPECT_TRUE(identical(model.graph.value(model.graph.find("emb")).tensor, state(session, "emb")));
  EXPECT_THAT(session.model().metadata.at("halfnote.policy"),
              testing::HasSubstr(R"("tie":["emb=head"])"));
}

TEST_P(Tied, WhatIsTrainedApartIsNamedWithTheFlag) {
  const CompileResult result = compile_model(language_model(GetParam()), sgd({}));
  int named = 0;
  for (const Remark& remark : result.remarks) {
    if (remark.pass != "tie-weights") continue;
    EXPECT_EQ(remark.level, Remark::Level::kWarning);
    EXPECT_EQ(remark.where, "emb");
    EXPECT_THAT(remark.text, testing::HasSubstr("--tie emb=head"));
    ++named;
  }
  EXPECT_EQ(named, 1);
}

INSTANTIATE_TEST_SUITE_P(BothForms, Tied, testing::Bool(), [](const auto& form) {
  return std::string(form.param ? "Transposed" : "AsItIs");
});

}  // namespace
}  // namespace halfnote::test
