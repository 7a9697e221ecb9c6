// ONNX's own node tests of the ops that are lowered, with the tolerance of ONNX's runner.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/canonical/lower_ops.h"
#include "runtime/core/evaluate.h"
#include "tests/kernels/case_json.h"

namespace halfnote::test {
namespace {

using nlohmann::json;

/// The call as a graph: floats are its inputs, what is computed from integers is known.
struct Call {
  Graph graph;
  std::vector<Tensor> inputs;
};

Call call_of(const json& entry) {
  Call call;
  NodeSpec spec{entry.at("op").get<std::string>(), {}, read_attributes(entry.at("attributes"))};
  for (const json& source : entry.at("inputs")) {
    const Tensor input = read_tensor(source);
    const std::string name = "in" + std::to_string(spec.inputs.size());
    if (!input.defined()) {
      spec.inputs.emplace_back();
    } else if (is_float(input.dtype())) {
      const ValueType type = ValueType::tensor(input.dtype(), symbolic(input.shape()));
      spec.inputs.push_back(call.graph.add_input(call.graph.main(), name, type));
      call.inputs.push_back(input);
    } else {
      spec.inputs.push_back(call.graph.add_initializer(name, input));
    }
  }
  std::vector<std::string> names;
  for (const json& output : entry.at("outputs")) {
    names.push_back(output.is_null() ? "-" : "out" + std::to_string(names.size()));
  }
  const NodeId node = call.graph.create(std::move(spec), names, call.graph.end());
  infer_node(call.graph, node);
  for (ValueId output : call.graph.outputs(node)) {
    if (output.valid()) call.graph.add_output(call.graph.main(), output);
  }
  return call;
}

void expect_near(const Tensor& got, const Tensor& want) {
  ASSERT_EQ(got.dtype(), want.dtype());
  ASSERT_EQ(got.shape(), want.shape());
  // One rounding of a 16-bit type stands on top of the runner's 1e-3.
  const double relative = is_16bit_float(want.dtype()) ? 1e-2 : 1e-3;
  for (int64_t i = 0; i < want.size(); ++i) {
    const double a = got.at_as_double(i), b = want.at_as_double(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    ASSERT_NEAR(a, b, relative * std::fabs(b) + relative * 1e-3) << "element " << i;
  }
}

TEST(LoweredCases, AgreeWithTheNodeTests) {
  std::ifstream file(std::string(HALFNOTE_SOURCE_DIR) + "/tests/fixtures/kernels/lowered.json");
  ASSERT_TRUE(file) << "fixture missing";
  int count = 0;
  for (const json& entry : json::parse(file)) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    try {
      Call call = call_of(entry);
      EXPECT_TRUE(lower_graph(call.graph, infer_node));
      const std::vector<Tensor> got = evaluate(call.graph, call.inputs);
      size_t next = 0;
      for (const json& output : entry.at("outputs")) {
        if (!output.is_null()) expect_near(got[next++], read_tensor(output));
      }
      ++count;
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
  }
  EXPECT_GE(count, 50);
}

}  // namespace
}  // namespace halfnote::test
