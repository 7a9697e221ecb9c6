// Models with control flow, trained: they learn, and planned bodies give what the interpreter
// gives, bit for bit, without an allocation in the step.
#include "base/error.h"
#include "compiler/ir/query.h"
#include "compiler/ir/text.h"
#include "compiler/onnx/check.h"
#include "count_new.h"
#include "runtime/core/device_ready.h"
#include "runtime/core/evaluate.h"
#include "support.h"
#include "tests/sanitizer.h"

namespace halfnote::test {
namespace {

struct ControlModel {
  const char* name;
  const char* op;    // that stands in the training step; null: it was unrolled
  const char* core;  // from the hidden values h (N, 8) to t (N, 8)
};

/// What a failing test says of its parameter.
void PrintTo(const ControlModel& c, std::ostream* out) { *out << c.name; }

constexpr ControlModel kModels[] = {
    {"If", "If", R"(
  mean = ReduceMean <keepdims: int = 0> (h)
  zero = Constant <value: tensor = float {0.0}> ()
  c = Greater (mean, zero)
  t = If <then_branch: graph = a () => (p) { m = MatMul (h, u) p = Tanh (m) },
          else_branch: graph = b () => (q) { n = Add (h, bias) q = Relu (n) }> (c)
)"},
    {"Scan", "Scan", R"(
  last, t = Scan <num_scan_inputs: int = 1, body: graph = s (float[8] r, float[8] e) => (r2, o) {
              m = MatMul (r, u)
              a = Add (m, e)
              r2 = Tanh (a)
              o = Mul (r2, bias)
            }> (bias, h)
)"},
    // What is only compared has no gradient, on no path: none is made, scaled or unscaled.
    {"IfThatCompares", "If", R"(
  mean = ReduceMean <keepdims: int = 0> (h)
  zero = Constant <value: tensor = float {0.0}> ()
  c = Greater (mean, zero)
  t = If <then_branch: graph = a () => (p) { m = MatMul (h, u) l = Less (h, bias) p = Where (l, m, h) },
          else_branch: graph = b () => (q) { q = Relu (h) }> (c)
)"},
    {"ScanThatCompares", "Scan", R"(
  last, t = Scan <num_scan_inputs: int = 1, body: graph = s (float[8] r, float[8] e) => (r2, o) {
              m = MatMul (e, u)
              l = Less (r, bias)
              o = Where (l, m, e)
              r2 = Mul (r, bias)
            }> (bias, h)
)"},
    {"Loop", "Scan", R"(
  t = Loop <body: graph = l (int64 i, bool c, float[N,8] r) => (c2, r2) {
             c2 = Identity (c)
             m = MatMul (r, u)
             a = Add (m, h)
             r2 = Tanh (a)
           }> (trips, , h)
)"},
    {"LoopOfShapedNumbers", "Scan", R"(
  t = Loop <body: graph = l (int64[1] i, bool[1] c, float[N,8] r) => (c2, r2) {
             c2 = Identity (c)
             f = Cast <to: int = 1> (i)
             g = Mul (f, tiny)
             k = Concat <axis: int = 0> (g, g, g, g, g, g, g, g)
             m = MatMul (r, u)
             a = Sum (m, k, h)
             r2 = Tanh (a)
           }> (trips, , h)
)"},
    {"ShortLoop", nullptr, R"(
  t = Loop <body: graph = l (int64 i, bool c, float[N,8] r) => (c2, r2) {
             c2 = Identity (c)
             m = MatMul (r, u)
             a = Add (m, h)
             r2 = Tanh (a)
           }> (few, , h)
)"},
    {"Sequence", nullptr, R"(
  s = SplitToSequence <axis: int = 1> (h, halves)
  one = SequenceAt (s, at)
  e = SequenceErase (s, at)
  f = SequenceInsert (e, one)
  g = ConcatFromSequence <axis: int = 1> (f)
  m = MatMul (g, u)
  t = Tanh (m)
)"},
};

std::string numbers(const char* name, int rows, int columns, uint64_t seed) {
  const Tensor values = uniform({rows, columns}, seed);
  std::string text = "float[" + std::to_string(rows) + "," + std::to_string(columns) + "] " + name;
  for (int64_t i = 0; i < values.size(); ++i)
    text += (i == 0 ? " = {" : ", ") + std::to_string(0.6 * values.at_as_double(i));
  return text + "}";
}

Model model_of(const ControlModel& c) {
  const std::string text =
      "<ir_version: 10, opset_import: [\"\" : 23]>\nnet (float[N,6] x) => (float[N,3] logits) <" +
      numbers("w", 6, 8, 1) + ", " + numbers("u", 8, 8, 2) + ", " + numbers("v", 8, 3, 3) +
      ", float[8] bias = {0.1, 0.2, -0.1, 0.3, 0, -0.2, 0.1, 0}, int64 trips = {1500}, "
      "int64 few = {3}, float tiny = {0.0001}, int64[2] halves = {3, 5}, int64 at = {0}> {\n  h = "
      "MatMul (x, w)\n" +
      std::string(c.core) + "  logits = MatMul (t, v)\n}";
  return parse_model(text, "control.onnxtxt");
}

CompileOptions options_of(DType precision) {
  CompileOptions options = options_for("adamw", precision);
  options.policy.pad = false;  // the session takes padding out, the interpreter does not
  return options;
}

class ControlFlow : public ::testing::TestWithParam<ControlModel> {};

TEST_P(ControlFlow, TrainsAndEqualsTheInterpreter) {
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(short_name(precision));
    Session session = reference_session(model_of(GetParam()), options_of(precision));
    const Graph& graph = session.model().training.front().graph;
    for (const char* op : {"If", "Loop", "Scan", "SplitToSequence"}) {
      const bool expected = GetParam().op != nullptr && std::string_view(GetParam().op) == op;
      EXPECT_EQ(!find_nodes(graph, op).empty(), expected) << op;
    }
    SlowStep slow(graph);
    // A loop of many trips takes the interpreter long there.
    const int steps = under_address_sanitizer() ? 1 : 3;
    for (int i = 0; i < steps; ++i) {
      const std::vector<Tensor> batch = mlp_batch(8, 5 + static_cast<uint64_t>(i));
      const StepResult step = session.step(batch);
      EXPECT_EQ(step.loss, slow.run(batch)[0].at_as_double(0)) << "step " << i;
      for (const StateEntry& entry : session.state().entries()) {
        EXPECT_TRUE(identical(session.state().get(entry), slow.state(entry.name)))
            << entry.name << " in step " << i;
      }
    }
  }
}

TEST_P(ControlFlow, TheTrainedModelIsF32InItsBodiesToo) {
  for (const DType precision : {DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(short_name(precision));
    Session session = reference_session(model_of(GetParam()), options_of(precision));
    const std::vector<Tensor> batch = mlp_batch(8, 5);
    session.step(batch);
    const Model trained = session.trained_model();
    EXPECT_NO_THROW(check_model(trained));
    const Graph& graph = trained.graph;
    for (NodeId id : graph.all_nodes()) {
      for (ValueId output : graph.outputs(id)) {
        EXPECT_FALSE(output.valid() && is_16bit_float(graph.value(output).type.dtype))
            << graph.node(id).name;
      }
    }
    const Shape shape = batch[0].shape();
    const Graph ready = make_device_ready(graph, dims_from_shapes(graph, std::span(&shape, 1)));
    const Tensor f32 = evaluate(ready, {batch[0]}).front();
    const Tensor mixed = session.evaluate(batch)[1].cast_to(DType::kF32);
    // A handful of roundings in each of some trips, of numbers up to about 1.
    const double bound = 64 * (precision == DType::kBF16 ? 0x1p-9 : 0x1p-12);
    for (int64_t i = 0; i < f32.size(); ++i) {
      EXPECT_NEAR(f32.at_as_double(i), mixed.at_as_double(i), bound);
    }
  }
}

TEST_P(ControlFlow, Learns) {
  for (const DType precision : {DType::kF32, DType::kBF16}) {
    Session session = reference_session(model_of(GetParam()), options_of(precision));
    const std::vector<Tensor> batch = mlp_batch(16, 9);
    const double first = session.step(batch).loss;
    double last = first;
    for (int i = 0; i < 30; ++i) last = session.step(batch).loss;
    EXPECT_LT(last, 0.9 * first) << short_name(precision);
  }
}

TEST_P(ControlFlow, AllocatesNothing) {
  Session session = reference_session(model_of(GetParam()), options_of(DType::kBF16));
  const std::vector<Tensor> batch = mlp_batch(8, 1);
  session.step(batch);
  session.step(batch);
  size_t count = 0;
  {
    const Probe probe;
    session.step(batch);
    count = probe.count();
  }
  EXPECT_EQ(count, 0u);
}

INSTANTIATE_TEST_SUITE_P(All, ControlFlow, testing::ValuesIn(kModels),
                         [](const auto& test) { return std::string(test.param.name); });

/// What maps x (N, F) to logits: the way of 6 columns, or that, another one and the sizes' choice.
Model choice(const char* core) {
  const std::string text =
      "<ir_version: 10, opset_import: [\"\" : 23]>\nnet (float[N,F] x) => (float[N,3] logits) <" +
      numbers("six", 6, 3, 1) + ", " + numbers("five", 5, 3, 2) +
      ", int64 one = {1}, int64 columns = {6}> {" + core + "}";
  return parse_model(text, "choice.onnxtxt");
}

constexpr const char* kChoice = R"(
  s = Shape (x)
  f = Gather (s, one)
  c = Equal (f, columns)
  logits = If <then_branch: graph = a () => (p) { p = MatMul (x, six) },
               else_branch: graph = b () => (q) { q = MatMul (x, five) }> (c)
)";

TEST(SizesChooseTheBranch, TheOtherOneNeedNotFitThem) {
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(short_name(precision));
    CompileOptions options = options_for("adamw", precision);  // with padding, which goes first
    Session open = reference_session(choice(kChoice), options);
    EXPECT_FALSE(find_nodes(open.model().training.front().graph, "If").empty());
    options.dims["F"] = 6;
    Session bound = reference_session(choice(kChoice), options);
    EXPECT_TRUE(find_nodes(bound.model().training.front().graph, "If").empty());
    Session plain = reference_session(choice(" logits = MatMul (x, six) "), options);
    for (uint64_t seed = 5; seed < 8; ++seed) {
      const std::vector<Tensor> batch = mlp_batch(8, seed);
      const double loss = plain.step(batch).loss;
      EXPECT_EQ(open.step(batch).loss, loss);
      EXPECT_EQ(bound.step(batch).loss, loss);
    }
    EXPECT_TRUE(identical(state(open, "six"), state(plain, "six")));
    EXPECT_TRUE(identical(state(bound, "six"), state(plain, "six")));
  }
}

TEST(SizesChooseTheBranch, TheOneThatRunsMustFit) {
  CompileOptions options = options_of(DType::kF32);
  options.dims["F"] = 7;
  try {
    compile_model(choice(kChoice), options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModel);
    EXPECT_NE(std::string(error.what()).find("MatMul"), std::string::npos) << error.what();
  }
}

TEST(ControlFlowRefusals, ALoopThatDataEndsNamesTheReasonAndTheWayOut) {
  const ControlModel model{"Data", nullptr, R"(
  t = Loop <body: graph = l (int64 i, bool c, float[N,8] r) => (c2, r2) {
             m = MatMul (r, u)
             r2 = Tanh (m)
             s = ReduceSum <keepdims: int = 0> (r2)
             z = Constant <value: tensor = float {0.0}> ()
             c2 = Greater (s, z)
           }> (, , h)
)"};
  try {
    compile_model(model_of(model), options_of(DType::kF32));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    const std::string text = error.what();
    EXPECT_NE(text.find("how often it runs depends on data"), std::string::npos) << text;
    EXPECT_NE(text.find("give the trip count as a constant"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace halfnote::test
