// ONNX's own node tests, exported to tests/fixtures/kernels by make_kernel_cases.py, on the
// reference kernels; with the tolerance of ONNX's runner.
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "case_json.h"
#include "harness.h"
#include "tests/cuda/harness/device_check.h"

namespace halfnote::test {
namespace {

using nlohmann::json;

class OnnxCases : public testing::TestWithParam<const char*> {};

TEST_P(OnnxCases, AgreesWithTheNodeTests) {
  std::ifstream file(test::source_folder() + "/tests/fixtures/kernels/" + GetParam() + ".json");
  ASSERT_TRUE(file) << "fixture missing";
  const json cases = json::parse(file);
  for (const json& entry : cases) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    std::vector<Tensor> inputs, wanted;
    for (const json& input : entry.at("inputs")) inputs.push_back(read_tensor(input));
    std::vector<OutputSpec> outputs;
    for (const json& output : entry.at("outputs")) {
      wanted.push_back(read_tensor(output));
      outputs.push_back({});  // an absent output
      if (wanted.back().defined()) outputs.back() = {wanted.back().dtype(), wanted.back().shape()};
    }
    RunOptions options;
    if (entry.at("op") == "Resize") options.known = {1, 2};  // roi and scales
    try {
      const std::vector<Tensor> got =
          run_kernel(entry.at("domain").get<std::string>(), entry.at("op").get<std::string>(),
                     inputs, read_attributes(entry.at("attributes")), outputs, options);
      for (size_t i = 0; i < wanted.size(); ++i) {
        if (wanted[i].defined()) expect_close(got[i], wanted[i], 1e-3, 1e-7);
      }
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, OnnxCases,
                         testing::Values("contraction", "elementwise", "loss", "movement",
                                         "normalization", "recurrent", "reduction", "stateful"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace halfnote::test
