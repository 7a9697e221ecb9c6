// Gradients of control flow against central differences in f64, by the interpreter and as a
// program: If on both conditions, Scan along every axis and direction, one in the other, with
// captures that only some paths read.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "compiler/ir/query.h"
#include "compiler/ir/text.h"
#include "compiler/ir/verify.h"
#include "passes/canonical/infer_shapes.h"
#include "passes/passes.h"
#include "passes/train/backward.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/evaluate.h"
#include "runtime/core/executor.h"
#include "support.h"

namespace halfnote::test {
namespace {

constexpr double kStep = 1e-5;
// The difference is exact to step² and roundoff/step, about 1e-9 of numbers around 1.
constexpr double kBound = 1e-7;

struct ControlCase {
  const char* name;
  const char* text;  // float inputs are differentiated; others are fed as `condition`
};

/// What a failing test says of its parameter.
void PrintTo(const ControlCase& c, std::ostream* out) { *out << c.name; }

constexpr ControlCase kCases[] = {
    {"If", R"(main (bool c, double[2,3] x, double[3] w, double[3] v) => (y, z) {
      y, z = If <then_branch: graph = t () => (a, a2) { m = Mul (x, w) a = Tanh (m) a2 = Exp (x) },
                 else_branch: graph = e () => (b, b2) { n = Add (x, v) b = Mul (n, n) b2 = Identity (x) }> (c)
    })"},
    {"IfInIf", R"(main (bool c, double[3] x, double[3] w) => (y) {
      s = Mul (x, w)
      y = If <then_branch: graph = t () => (a) {
                d = Not (c)
                i = If <then_branch: graph = t2 () => (f) { f = Exp (s) }, else_branch: graph = e2 () => (g) { g = Mul (s, w) }> (d)
                a = Mul (i, x) },
              else_branch: graph = e () => (b) { b = Sin (s) }> (c)
    })"},
    {"ScanRecurrence",
     R"(main (bool c, double[2,3] s0, double[4,2,3] x, double[3,3] u) => (last, all) {
      last, all = Scan <num_scan_inputs: int = 1, body: graph = b (double[2,3] s, double[2,3] e) => (s2, o) {
        m = MatMul (s, u)
        a = Add (m, e)
        s2 = Tanh (a)
        o = Mul (s2, e) }> (s0, x)
    })"},
    {"ScanAxesAndDirections",
     R"(main (bool c, double[2] s0, double[3,2] x, double[2,3] z, double[2] w) => (last, out, back) {
      last, out, back = Scan <num_scan_inputs: int = 2, scan_input_axes: ints = [0, -1], scan_input_directions: ints = [1, 0],
          scan_output_axes: ints = [1, 0], scan_output_directions: ints = [0, 1],
          body: graph = b (double[2] s, double[2] a, double[2] d) => (s2, o1, o2) {
        p = Mul (s, a)
        s2 = Add (p, w)
        o1 = Mul (s2, d)
        o2 = Identity (s) }> (s0, x, z)
    })"},
    {"ScanCountsAndPassesOn",
     R"(main (bool c, double[2] s0, double[3,2] x) => (n, last, all) <int64 zero = {0}, int64 one = {1}> {
      n, last, all = Scan <num_scan_inputs: int = 1, body: graph = b (int64 i, double[2] s, double[2] e) => (j, s2, o) {
        j = Add (i, one)
        f = Cast <to: int = 11> (i)
        m = Mul (e, f)
        s2 = Add (s, m)
        o = Identity (e) }> (zero, s0, x)
    })"},
    {"IfInScan", R"(main (bool c, double[2] s0, double[3,2] x, double[2] w) => (last) {
      last = Scan <num_scan_inputs: int = 1, body: graph = b (double[2] s, double[2] e) => (s2) {
        i = If <then_branch: graph = t () => (f) { f = Mul (s, w) }, else_branch: graph = q () => (g) { g = Sin (s) }> (c)
        s2 = Add (i, e) }> (s0, x)
    })"},
    {"ScanInIf", R"(main (bool c, double[2] s0, double[3,2] x, double[2] w) => (y) {
      y = If <then_branch: graph = t () => (last) {
                last = Scan <num_scan_inputs: int = 1, body: graph = b (double[2] s, double[2] e) => (s2) {
                  m = Mul (s, w) s2 = Add (m, e) }> (s0, x) },
              else_branch: graph = q () => (g) { g = Mul (s0, s0) }> (c)
    })"},
    {"ScanInScan", R"(main (bool c, double[2] s0, double[2,3,2] x, double[2] w) => (last) {
      last = Scan <num_scan_inputs: int = 1, body: graph = b (double[2] s, double[3,2] e) => (s2) {
        s2 = Scan <num_scan_inputs: int = 1, body: graph = b2 (double[2] r, double[2] d) => (r2) {
          m = Mul (r, w) n = Tanh (m) r2 = Add (n, d) }> (s, e) }> (s0, x)
    })"},
    // Too long to be written out: a Scan.
    {"LoopThatStops",
     R"(main (bool c, double[2] s0, double[2] w) => (last, n) <int64 m = {700}, int64 zero = {0}, int64 one = {1}> {
      last, n = Loop <body: graph = b (int64 i, bool go, double[2] s, int64 k) => (go2, s2, k2) <double top = {5}> {
        p = Mul (s, w)
        e = Exp (p)
        s2 = Add (s, e)
        total = ReduceSum <keepdims: int = 0> (s2)
        go2 = Less (total, top)
        k2 = Add (k, one) }> (m, c, s0, zero)
    })"},
    // What trip 3 would compute is not finite.
    {"LoopWhoseNextTripIsInfinite",
     R"(main (bool c, double[2] s0, double[2] w) => (last) <int64 m = {6}> {
      last = Loop <body: graph = b (int64 i, bool go, double[2] s) => (go2, s2) <double three = {3}, double one = {1}, int64 two = {2}, double top = {100}> {
        f = Cast <to: int = 11> (i)
        left = Sub (three, f)
        q = Div (one, left)
        u = Mul (q, w)
        s2 = Add (s, u)
        total = ReduceSum <keepdims: int = 0> (s2)
        small = Less (total, top)
        early = Less (i, two)
        go2 = And (small, early) }> (m, c, s0)
    })"},
};

/// Loops have a gradient as what flatten-control makes of them.
Graph without_loops(const Graph& forward) {
  Graph graph = forward;
  if (find_nodes(graph, "Loop").empty()) return graph;
  const CompileOptions options;
  std::vector<Remark> remarks;
  PassContext context{options, infer_node, {}, remarks, "flatten-control"};
  EXPECT_TRUE(flatten_control(graph, context));
  EXPECT_TRUE(find_nodes(graph, "Loop").empty());
  verify(graph);
  return graph;
}

Tensor numbers(const ValueType& type, uint64_t seed) {
  const Tensor singles = [&] {
    Tensor tensor(DType::kF64, concrete(*type.shape));
    uint64_t state = seed * 2654435761u + 1;
    for (double& x : tensor.mutable_data<double>()) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      x = static_cast<double>(state >> 40) / double(1 << 24) * 1.5 - 0.75;
    }
    return tensor;
  }();
  return singles;
}

/// Σ dy·y of a forward graph.
double weighted(const Graph& graph, const std::vector<Tensor>& inputs,
                const std::vector<Tensor>& dy) {
  const std::vector<Tensor> y = evaluate(graph, inputs);
  double sum = 0;
  for (size_t k = 0; k < y.size(); ++k) {
    if (!dy[k].defined()) continue;
    for (int64_t i = 0; i < y[k].size(); ++i) sum += dy[k].at_as_double(i) * y[k].at_as_double(i);
  }
  return sum;
}

/// The forward graph with the gradients of all float inputs as outputs; dy are constants.
Graph with_gradients(const Graph& forward, const std::vector<Tensor>& dy) {
  Graph graph = forward;
  UnsupportedOps problems;
  const InferNode infer = infer_node;
  Backward backward(graph, graph.main(), infer, problems);
  const std::vector<NodeId> nodes = graph.nodes();
  const std::vector<ValueId> outputs(graph.outputs().begin(), graph.outputs().end());
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (!dy[k].defined()) continue;
    Builder& b = backward.builder();
    backward.seed(outputs[k], b.constant(dy[k], "dy"));
  }
  std::vector<ValueId> sources;
  for (ValueId input : graph.inputs()) {
    if (is_float(graph.value(input).type.dtype)) sources.push_back(input);
  }
  backward.run(nodes, sources);
  EXPECT_TRUE(problems.empty()) << problems.list();
  graph.set_outputs(graph.main(), {});
  for (ValueId source : sources) {
    ValueId gradient = backward.gradient(source);
    EXPECT_TRUE(gradient.valid()) << graph.value(source).name;
    Builder& b = backward.builder();
    graph.add_output(graph.main(), b.op("Identity", {b.value(gradient)}).id);
  }
  verify(graph);
  return graph;
}

std::vector<Tensor> run_program(const Graph& graph, const std::vector<Tensor>& inputs) {
  StateStore store;
  PlanOptions options;
  options.kernels = "reference";
  Executor executor(plan(make_device_ready(graph, {}), store, options), store);
  std::vector<Tensor> outputs;
  for (int again = 0; again < 2; ++again) executor.run(inputs);
  for (size_t i = 0; i < graph.outputs().size(); ++i) outputs.push_back(executor.output(i));
  return outputs;
}

class ControlGradient : public testing::TestWithParam<ControlCase> {};

TEST_P(ControlGradient, AgreesWithDifferences) {
  Graph forward = parse_graph(GetParam().text, "test");
  infer_graph(forward);
  verify(forward);
  for (const bool condition : {true, false}) {
    SCOPED_TRACE(condition);
    std::vector<Tensor> inputs = {Tensor::scalar<bool>(condition)};
    for (size_t i = 1; i < forward.inputs().size(); ++i)
      inputs.push_back(numbers(forward.value(forward.inputs()[i]).type, i));
    std::vector<Tensor> dy;
    for (const Tensor& y : evaluate(forward, inputs)) {
      const ValueType type = ValueType::tensor(DType::kF64, symbolic(y.shape()));
      dy.push_back(is_float(y.dtype()) ? numbers(type, 50 + dy.size()) : Tensor{});
    }
    const Graph flat = without_loops(forward);
    const std::vector<Tensor> same = evaluate(flat, inputs), wanted = evaluate(forward, inputs);
    for (size_t k = 0; k < wanted.size(); ++k) EXPECT_TRUE(identical(same[k], wanted[k])) << k;
    const Graph graph = with_gradients(flat, dy);
    const std::vector<Tensor> gradients = evaluate(graph, inputs);
    const std::vector<Tensor> planned = run_program(graph, inputs);
    ASSERT_EQ(gradients.size(), inputs.size() - 1);
    for (size_t k = 0; k < gradients.size(); ++k) {
      ASSERT_EQ(gradients[k].shape(), inputs[k + 1].shape());
      for (int64_t i = 0; i < gradients[k].size(); ++i) {
        double ends[2];
        for (const int side : {0, 1}) {
          std::vector<Tensor> moved = inputs;
          moved[k + 1] = inputs[k + 1].deep_copy();
          moved[k + 1].mutable_data<double>()[static_cast<size_t>(i)] += side ? kStep : -kStep;
          ends[side] = weighted(forward, moved, dy);
        }
        const double got = gradients[k].at_as_double(i);
        EXPECT_NEAR(got, (ends[1] - ends[0]) / (2 * kStep), kBound) << "input " << k + 1;
        EXPECT_EQ(got, planned[k].at_as_double(i)) << "the program gives another number";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ControlGradient, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

/// What is said of the op on the way that has no gradient.
std::string refusal_of(const char* text) {
  Graph graph = parse_graph(text, "test");
  infer_graph(graph);
  UnsupportedOps problems;
  const InferNode infer = infer_node;
  Backward backward(graph, graph.main(), infer, problems);
  const std::vector<NodeId> nodes = graph.nodes();
  Builder& b = backward.builder();
  backward.seed(graph.outputs()[0], b.value(graph.outputs()[0]));
  backward.run(nodes, {graph.inputs()[1]});
  return problems.list();
}

TEST(ControlGradientRefusals, SayWhatAndWhy) {
  EXPECT_NE(refusal_of(R"(main (int64 n, float[2] x) => (y) <bool go = {1}> {
      y = Loop <body: graph = b (int64 i, bool c, float[2] s) => (c2, s2) { c2 = Identity (c) s2 = Exp (s) }> (n, go, x)
    })")
                .find("Loop (op-set 23; 1 node; how often it runs depends on data"),
            std::string::npos);
  EXPECT_NE(refusal_of(R"(main (bool c, float[2] x) => (y) {
      y = If <then_branch: graph = t () => (a) { r = RandomNormalLike (x) a = Mul (x, r) }, else_branch: graph = e () => (b) { b = Neg (x) }> (c)
    })")
                .find("its body draws random numbers"),
            std::string::npos);
  EXPECT_NE(refusal_of(
                R"(main (bool c, float[1,1,2,2] x, float[1,5] r) => (y) {
      y = If <then_branch: graph = t () => (a) { d = MaxRoiPool <pooled_shape: ints = [2, 2]> (x, r) a = Neg (d) }, else_branch: graph = e () => (b) { b = Neg (x) }> (c)
    })")
                .find("MaxRoiPool"),
            std::string::npos);
}

}  // namespace
}  // namespace halfnote::test
