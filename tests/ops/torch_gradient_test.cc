// Gradient rules against those of PyTorch in f64, which tests/fixtures/make_torch_gradients.py
// wrote to tests/fixtures/torch/gradients.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/kernels/case_json.h"
#include "tests/ops/coverage.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {
namespace {

// Both compute in f64, in another order: of sums of up to a few hundred terms.
constexpr double kTorchBound = 1e-10;

constexpr const char* kFamilies[] = {"contraction", "control",       "elementwise", "loss",
                                     "movement",    "normalization", "reduction"};

/// Ops with a rule, or a lowering, that cannot be held against PyTorch.
const std::map<std::string, std::string> kNotInTorch = {
    {"ai.halfnote.Dropout", "random: the mask is checked where it is made (tests/ops/stateful)"},
    {"ai.halfnote.RandomNormal", "no slope (tests/session/random_test.cc), as the ops below"},
    {"ai.halfnote.RandomUniform", "no slope"},
    {"Bernoulli", "random, no slope"},
    {"Compress", "by a constant mask it is a Gather, which is judged"},
    {"DeformConv", "torchvision's, not PyTorch's"},
    {"DequantizeLinear", "only behind QuantizeLinear: the cases quantized_* of the exporters"},
    {"Dropout", "random"},
    {"EyeLike", "no slope"},
    {"Hardmax", "no slope"},
    {"If", "PyTorch's control flow is Python's"},
    {"MeanVarianceNormalization", "no such op"},
    {"Multinomial", "random, no slope"},
    {"OneHot", "one_hot of PyTorch takes no values"},
    {"RandomNormal", "no slope"},
    {"RandomNormalLike", "no slope"},
    {"RandomUniform", "no slope"},
    {"RandomUniformLike", "no slope"},
    {"RoiAlign", "torchvision's, not PyTorch's"},
    {"RotaryEmbedding", "no such op"},
    {"Scan", "PyTorch's control flow is Python's"},
    {"STFT", "lowered to the DFT, which is judged; held against its kernel (tests/ops/lowering)"},
    {"Swish", "younger than op-set 23: its body is taken when it is imported"},
    {"ReverseSequence", "no such op: flip has one length for all rows"},
};

nlohmann::json read_family(const std::string& name) {
  std::ifstream stream(std::string(HALFNOTE_SOURCE_DIR) + "/tests/fixtures/torch/gradients/" +
                       name + ".json");
  return nlohmann::json::parse(stream);
}

std::vector<Tensor> read_tensors(const nlohmann::json& list) {
  std::vector<Tensor> tensors;
  for (const nlohmann::json& entry : list) tensors.push_back(read_tensor(entry));
  return tensors;
}

GradientCase read_case(const nlohmann::json& source) {
  GradientCase test;
  test.name = source.at("name");
  test.op = source.at("op");
  test.domain = source.at("domain");
  test.attributes = read_attributes(source.at("attributes"));
  test.inputs = read_tensors(source.at("inputs"));
  test.wrt = source.at("wrt").get<std::vector<size_t>>();
  test.outputs = source.at("outputs");
  test.constants = source.at("constants").get<std::vector<size_t>>();
  test.computed = source.at("computed").get<std::vector<size_t>>();
  return test;
}

double largest(const Tensor& tensor) {
  double most = 0;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    if (std::isfinite(tensor.at_as_double(i))) {
      most = std::max(most, std::fabs(tensor.at_as_double(i)));
    }
  }
  return most;
}

/// No gradient is zero.
void expect_like_torch(const Tensor& got, const Tensor& want, const Tensor& input) {
  if (!got.defined() || !want.defined()) {
    EXPECT_EQ(got.defined() ? largest(got) : 0, want.defined() ? largest(want) : 0);
    return;
  }
  ASSERT_EQ(got.shape(), input.shape());
  ASSERT_EQ(got.dtype(), input.dtype());
  // What PyTorch takes from a result near its limit is 0 a little earlier.
  const double bound = kTorchBound * std::max(largest(want), 1e-6);
  for (int64_t i = 0; i < want.size(); ++i) {
    const double a = got.at_as_double(i), b = want.at_as_double(i);
    if (std::isfinite(b)) {
      EXPECT_NEAR(a, b, bound) << "element " << i;
    } else {
      EXPECT_TRUE(std::isnan(b) ? std::isnan(a) : a == b)
          << "element " << i << ": " << a << " " << b;
    }
  }
}

class TorchGradient : public testing::TestWithParam<const char*> {};

TEST_P(TorchGradient, Agrees) {
  const nlohmann::json cases = read_family(GetParam());
  ASSERT_FALSE(cases.empty());
  for (const nlohmann::json& source : cases) {
    const GradientCase test = read_case(source);
    SCOPED_TRACE(test.domain + " " + test.op + " " + test.name + " " + source["attributes"].dump());
    std::vector<Tensor> dy = read_tensors(source.at("dy"));
    dy.resize(static_cast<size_t>(test.outputs));
    const std::vector<Tensor> want = read_tensors(source.at("want"));
    const std::vector<Tensor> got = rule_gradients(test, dy);
    for (size_t i = 0; i < test.wrt.size(); ++i) {
      SCOPED_TRACE("gradient of input " + std::to_string(test.wrt[i]));
      expect_like_torch(got[i], want[i], test.inputs[test.wrt[i]]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, TorchGradient, testing::ValuesIn(kFamilies),
                         [](const auto& family) { return std::string(family.param); });

/// Differentiable in any way: by a rule, or written in ops that have one.
std::set<std::string> differentiable() {
  std::set<std::string> names;
  for (const OperatorRow& row : operator_rows()) {
    if (row.gradient != nullptr || row.no_gradient == kLowered) names.insert(full_name(row));
  }
  return names;
}

TEST(TorchGradients, EveryRuleIsJudgedOrTorchLacksTheOp) {
  std::set<std::string> judged;
  for (const char* family : kFamilies) {
    for (const nlohmann::json& source : read_family(family)) {
      const std::string domain = source.at("domain");
      judged.insert((domain.empty() ? "" : domain + ".") + source.at("op").get<std::string>());
    }
  }
  for (const std::string& name : differentiable()) {
    EXPECT_NE(judged.contains(name), kNotInTorch.contains(name)) << name;
  }
  for (const auto& [name, reason] : kNotInTorch) EXPECT_TRUE(differentiable().contains(name));
}

}  // namespace
}  // namespace halfnote::test
