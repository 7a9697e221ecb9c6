#include "tests/ops/gradient_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "compiler/ir/walk.h"
#include "compiler/ops/operator.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/canonical/lower_ops.h"
#include "passes/precision/scale_units.h"
#include "runtime/core/evaluate.h"
#include "tests/ops/body_harness.h"

namespace halfnote::test {
namespace {

constexpr double kBound = 1e-6;
constexpr double kStep = 1e-5;  // error of the difference: step², and roundoff/step

bool contains(const std::vector<size_t>& list, size_t index) {
  return std::find(list.begin(), list.end(), index) != list.end();
}

/// Is input `index` a constant of the graph: an axis, a shape, a mask?
bool is_constant(const GradientCase& test, size_t index) {
  if (!test.inputs[index].defined()) return false;
  const bool is_number = is_float(test.inputs[index].dtype());
  return is_number ? contains(test.constants, index) : !contains(test.computed, index);
}

ValueType type_of(const Tensor& tensor, Dims dims) {
  SymbolicShape shape;
  for (int64_t size : tensor.shape()) {
    const bool symbolic = dims == Dims::kSymbolic && size != 1;
    shape.push_back(symbolic ? Dim::named("d" + std::to_string(size)) : Dim(size));
  }
  return ValueType::tensor(tensor.dtype(), std::move(shape));
}

/// A graph of the forward node alone, its outputs the node's; lowered, where the op is.
Graph forward_graph(const GradientCase& test, Dims dims) {
  Graph graph;
  NodeSpec spec{test.op, {}, test.attributes, test.domain, "forward"};
  for (size_t i = 0; i < test.inputs.size(); ++i) {
    const Tensor& input = test.inputs[i];
    const std::string name = "in" + std::to_string(i);
    if (!input.defined()) {
      spec.inputs.emplace_back();
    } else if (is_constant(test, i)) {
      spec.inputs.push_back(graph.add_initializer(name, input));
    } else {
      spec.inputs.push_back(graph.add_input(graph.main(), name, type_of(input, dims)));
    }
  }
  const NodeId node = graph.create(std::move(spec), test.outputs, graph.end());
  infer_node(graph, node);
  for (ValueId output : graph.outputs(node)) graph.add_output(graph.main(), output);
  lower_graph(graph, infer_node);
  return graph;
}

std::vector<Tensor> variable_inputs(const GradientCase& test) {
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < test.inputs.size(); ++i) {
    if (test.inputs[i].defined() && !is_constant(test, i)) inputs.push_back(test.inputs[i]);
  }
  return inputs;
}

/// Σ dY·(Y(+step) − Y(−step)) / (2·step) for element `at` of input `index`.
double difference(const GradientCase& test, const Graph& forward, const std::vector<Tensor>& dy,
                  size_t index, int64_t at) {
  std::vector<Tensor> results[2];
  for (const int side : {0, 1}) {
    GradientCase moved = test;
    moved.inputs[index] = test.inputs[index].deep_copy();
    moved.inputs[index].mutable_data<double>()[static_cast<size_t>(at)] += side ? -kStep : kStep;
    results[side] = evaluate(forward, variable_inputs(moved));
  }
  double sum = 0;
  for (size_t k = 0; k < dy.size(); ++k) {
    if (!dy[k].defined()) continue;
    for (int64_t i = 0; i < dy[k].size(); ++i) {
      const double change = results[0][k].at_as_double(i) - results[1][k].at_as_double(i);
      sum += dy[k].at_as_double(i) * change / (2 * kStep);
    }
  }
  return sum;
}

std::vector<double> differences(const GradientCase& test, const std::vector<Tensor>& dy,
                                size_t index) {
  const Graph forward = forward_graph(test, Dims::kFixed);
  std::vector<double> all;
  for (int64_t i = 0; i < test.inputs[index].size(); ++i) {
    all.push_back(difference(test, forward, dy, index, i));
  }
  return all;
}

/// One random gradient for each output that has one.
std::vector<Tensor> random_gradients(const GradientCase& test) {
  const std::vector<Tensor> y = evaluate(forward_graph(test, Dims::kFixed), variable_inputs(test));
  std::vector<Tensor> dy(y.size());
  for (size_t k = 0; k < y.size(); ++k) {
    if (is_float(y[k].dtype()) && !contains(test.silent, k)) {
      dy[k] = random_tensor(y[k].dtype(), y[k].shape(), 77 + k, 0.5, 1.5);
    }
  }
  return dy;
}

void expect_near(const GradientCase& test, size_t index, const Tensor& got,
                 const std::vector<double>& want) {
  SCOPED_TRACE("gradient of input " + std::to_string(index));
  double largest = 0;
  for (double x : want) largest = std::max(largest, std::fabs(x));
  if (!got.defined()) {
    EXPECT_EQ(largest, 0) << "the rule gives no gradient";
    return;
  }
  ASSERT_EQ(got.dtype(), test.inputs[index].dtype());
  ASSERT_EQ(got.shape(), test.inputs[index].shape());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got.at_as_double(static_cast<int64_t>(i)), want[i], kBound * largest)
        << "element " << i;
  }
}

/// Gives dY the unit S and multiplies the gradients by 1/S: all must fit, and nothing be left of S.
void expect_units(const GradientCase& test, const std::vector<Tensor>& dy, Dims dims) {
  Graph graph = gradient_graph(test, dy, dims);
  const size_t given = variable_inputs(test).size();
  for (size_t i = given; i < graph.inputs().size(); ++i) {
    graph.value(graph.inputs()[i]).scale_power = 1;
  }
  Builder b(graph, graph.end(), infer_node);
  std::vector<ValueId> unscaled;
  for (ValueId gradient : graph.outputs()) {
    const Expr inverse = b.scalar(graph.value(gradient).type.dtype, 0.25);
    graph.value(inverse.id).scale_power = -1;
    unscaled.push_back((b.value(gradient) * inverse).id);
  }
  graph.set_outputs(graph.main(), unscaled);
  EXPECT_NO_THROW(check_scale_units(graph));
}

/// All elements times `factor`, a power of 2.
Tensor scaled(const Tensor& tensor, double factor) {
  Tensor result = tensor.deep_copy();
  for (double& x : result.mutable_data<double>()) x *= factor;
  return result;
}

using Gradients = std::map<ValueId, Expr>;

/// Float results of a node that reads a reached value are reached.
void spread(const Graph& graph, NodeId node, std::set<ValueId>& reached) {
  const auto inputs = graph.inputs(node);
  const auto is_reached = [&](ValueId input) { return reached.count(input) > 0; };
  if (std::none_of(inputs.begin(), inputs.end(), is_reached)) return;
  for (ValueId output : graph.outputs(node)) {
    if (output.valid() && is_float(graph.value(output).type.dtype)) reached.insert(output);
  }
}

/// Runs the rule of one node and adds up what it gives, as autodiff does.
void add_gradients(Builder& builder, NodeId node, const std::set<ValueId>& reached,
                   Gradients& gradients) {
  Graph& graph = builder.graph();
  GradientContext rule{builder, node, {}, {}, {}, {}, infer_node};
  bool any = false;
  for (ValueId output : graph.outputs(node)) {
    rule.outputs.push_back(builder.value(output));
    const auto found = gradients.find(output);
    rule.grads.push_back(found == gradients.end() ? builder.none() : found->second);
    any = any || rule.grads.back().valid();
  }
  bool asked = false;
  for (ValueId input : graph.inputs(node)) {
    rule.inputs.push_back(builder.value(input));
    rule.needed.push_back(input.valid() && reached.count(input) > 0);
    asked = asked || rule.needed.back();
  }
  if (!any || !asked) return;
  const OperatorRow* row = find_operator(graph.node(node));
  ASSERT_NE(row->gradient, nullptr) << row->name << ": " << row->no_gradient;
  const std::vector<Expr> inputs = rule.inputs;
  const std::vector<bool> needed = rule.needed;
  const std::vector<Expr> results = row->gradient(rule);
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].valid() || !needed[i]) continue;
    // What autodiff demands before it adds gradients up.
    EXPECT_EQ(results[i].dtype(), inputs[i].dtype());
    EXPECT_EQ(results[i].rank(), inputs[i].rank());
    const auto [found, is_new] = gradients.try_emplace(inputs[i].id, results[i]);
    if (!is_new) found->second = found->second + results[i];
  }
}

struct ScaledCall {
  std::vector<size_t> inputs;  // that carry S
  int power = 1;               // of S in the results
};

/// What a rule promises, tried one after the other.
std::vector<ScaledCall> promises(ScaleRule rule, const std::vector<size_t>& floats) {
  switch (rule) {
    case ScaleRule::kNone:
      return {};
    case ScaleRule::kSame:
      return {{floats, 1}};
    case ScaleRule::kProduct:
      return {{{0}, 1}, {{1}, 1}, {{0, 1}, 2}};
    case ScaleRule::kQuotient:
      return {{{0}, 1}, {{1}, -1}, {{0, 1}, 0}};
    case ScaleRule::kInverse:
      return {{{0}, -1}};
    case ScaleRule::kFirst:
      return {{{0}, 1}};
    case ScaleRule::kAbsorb:
      return {{floats, 0}};
  }
  return {};
}

}  // namespace

void expect_scale_rule(const GradientCase& test) {
  constexpr double kScale = 4;
  std::vector<size_t> floats;
  for (size_t i = 0; i < test.inputs.size(); ++i) {
    if (test.inputs[i].dtype() == DType::kF64) floats.push_back(i);
  }
  const Graph graph = forward_graph(test, Dims::kFixed);
  const std::vector<Tensor> plain = evaluate(graph, variable_inputs(test));
  for (const ScaledCall& call : promises(find_operator(test.domain, test.op)->scale, floats)) {
    GradientCase moved = test;
    for (size_t input : call.inputs) moved.inputs[input] = scaled(test.inputs[input], kScale);
    const std::vector<Tensor> results =
        evaluate(forward_graph(moved, Dims::kFixed), variable_inputs(moved));
    for (size_t k = 0; k < plain.size(); ++k) {
      const bool is_number = plain[k].dtype() == DType::kF64;
      const Tensor want = is_number ? scaled(plain[k], std::pow(kScale, call.power)) : plain[k];
      EXPECT_TRUE(identical(results[k], want)) << "S^" << call.power << " in result " << k;
    }
  }
}

Graph gradient_graph(const GradientCase& test, const std::vector<Tensor>& dy, Dims dims) {
  Graph graph = forward_graph(test, dims);
  Builder builder(graph, graph.end(), infer_node);
  builder.set_role(Role::kBackward);
  Gradients gradients;
  const std::vector<ValueId> results(graph.outputs().begin(), graph.outputs().end());
  const std::vector<NodeId> nodes = graph.nodes();
  for (size_t k = 0; k < dy.size(); ++k) {
    if (!dy[k].defined()) continue;
    const ValueType type = graph.value(results[k]).type;
    const ValueId given = graph.add_input(graph.main(), "dy" + std::to_string(k), type);
    gradients.emplace(results[k], builder.value(given));
  }
  std::set<ValueId> reached;
  for (size_t index : test.wrt) reached.insert(graph.find("in" + std::to_string(index)));
  for (NodeId node : nodes) spread(graph, node, reached);
  for (auto node = nodes.rbegin(); node != nodes.rend(); ++node) {
    add_gradients(builder, *node, reached, gradients);
  }
  std::vector<ValueId> outputs;
  for (size_t index : test.wrt) {
    const auto found = gradients.find(graph.find("in" + std::to_string(index)));
    if (found != gradients.end()) outputs.push_back(found->second.id);
  }
  graph.set_outputs(graph.main(), outputs);
  erase_dead(graph, [](const Graph&, NodeId) { return true; });
  return graph;
}

std::vector<Tensor> rule_gradients(const GradientCase& test, const std::vector<Tensor>& dy,
                                   Dims dims) {
  std::vector<Tensor> inputs = variable_inputs(test);
  for (const Tensor& grad : dy) {
    if (grad.defined()) inputs.push_back(grad);
  }
  std::vector<Tensor> results;
  for (size_t index : test.wrt) {  // one at a time: which ones the rule leaves out is seen then
    GradientCase single = test;
    single.wrt = {index};
    const Graph graph = gradient_graph(single, dy, dims);
    results.push_back(graph.outputs().empty() ? Tensor{} : evaluate(graph, inputs)[0]);
  }
  return results;
}

void expect_gradient(const GradientCase& test, Dims dims) {
  SCOPED_TRACE(test.op + ": " + test.name + (dims == Dims::kSymbolic ? " (symbolic)" : ""));
  const std::vector<Tensor> dy = random_gradients(test);
  expect_units(test, dy, dims);
  const std::vector<Tensor> got = rule_gradients(test, dy, dims);
  for (size_t i = 0; i < test.wrt.size(); ++i) {
    expect_near(test, test.wrt[i], got[i], differences(test, dy, test.wrt[i]));
  }
}

}  // namespace halfnote::test
