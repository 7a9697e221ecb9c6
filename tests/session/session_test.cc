// The session against the plain meaning of its step: every optimizer, clip and group trains, gives
// bit for bit what the interpreter gives, and the same bytes on every run and number of threads.
#include <cmath>
#include <ostream>

#include "base/error.h"
#include "compiler/ir/text.h"
#include "passes/train/step.h"
#include "runtime/core/evaluate.h"
#include "support.h"

namespace halfnote::test {
namespace {

struct OptimizerCase {
  std::string name, kind;
  float weight_decay = 0, clip = 0;
  bool groups = false;
};

/// What a failing test says of its parameter.
void PrintTo(const OptimizerCase& c, std::ostream* out) { *out << c.name; }

CompileOptions options_of(const OptimizerCase& c) {
  CompileOptions options = options_for(c.kind);
  Optimizer& o = options.train.optimizer;
  o.weight_decay = c.weight_decay;
  o.clip_norm = c.clip;
  if (c.groups) {
    o.groups = {{".*\\.?b.*", 0.0f, std::nullopt}, {".*w.*", std::nullopt, 0.5f}};
  }
  return options;
}

class Optimizers : public ::testing::TestWithParam<OptimizerCase> {};

TEST_P(Optimizers, MlpTrainsAndEqualsTheInterpreter) {
  Session session = reference_session(mlp_model(), options_of(GetParam()));
  SlowStep slow(session.model().training.front().graph);
  const std::vector<Tensor> batch = mlp_batch(12, 3);
  std::vector<double> losses;
  for (int i = 0; i < 24; ++i) {
    const StepResult step = session.step(batch);
    losses.push_back(step.loss);
    EXPECT_TRUE(step.applied);
    const std::vector<Tensor> want = slow.run(batch);
    const Graph& graph = session.model().training.front().graph;
    for (size_t k = 0; k < want.size(); ++k) {
      const std::string& name = graph.value(graph.outputs()[k]).name;
      EXPECT_TRUE(identical(session.output(name), want[k])) << name << " in step " << i;
    }
    for (const StateEntry& entry : session.state().entries()) {
      EXPECT_TRUE(identical(session.state().get(entry), slow.state(entry.name)))
          << entry.name << " in step " << i;
    }
  }
  EXPECT_LT(losses.back(), 0.9 * losses.front());
  EXPECT_EQ(session.applied_steps(), 24);
}

INSTANTIATE_TEST_SUITE_P(
    All, Optimizers,
    ::testing::Values(
        OptimizerCase{"sgd", "sgd"}, OptimizerCase{"sgd_decay", "sgd", 0.01f},
        OptimizerCase{"momentum", "momentum"}, OptimizerCase{"nesterov", "nesterov", 0.001f},
        OptimizerCase{"adam", "adam", 0.01f}, OptimizerCase{"adamw", "adamw", 0.01f},
        OptimizerCase{"adagrad", "adagrad", 0.01f}, OptimizerCase{"rmsprop", "rmsprop", 0.01f},
        OptimizerCase{"lamb", "lamb", 0.01f}, OptimizerCase{"lion", "lion", 0.01f},
        OptimizerCase{"adafactor", "adafactor", 0.01f}, OptimizerCase{"clip", "sgd", 0, 0.5f},
        OptimizerCase{"groups", "adamw", 0.1f, 1.0f, true}),
    [](const auto& test) { return test.param.name; });

TEST(Session, CnnEqualsTheInterpreterBitForBit) {
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
    CompileOptions options = options_for("adamw", precision);
    options.policy.pad = false;  // the session takes padding out, the interpreter does not
    Session session = reference_session(cnn_model(), options);
    SlowStep slow(session.model().training.front().graph);
    const std::vector<Tensor> batch = cnn_batch(8, 5);
    for (int i = 0; i < 3; ++i) {
      const StepResult step = session.step(batch);
      const std::vector<Tensor> want = slow.run(batch);
      EXPECT_EQ(step.loss, want[0].at_as_double(0)) << short_name(precision) << " step " << i;
      const Graph& graph = session.model().training.front().graph;
      for (size_t k = 0; k < want.size(); ++k) {
        const std::string& name = graph.value(graph.outputs()[k]).name;
        EXPECT_TRUE(identical(session.output(name), want[k])) << name << " in step " << i;
      }
      for (const StateEntry& entry : session.state().entries()) {
        EXPECT_TRUE(identical(session.state().get(entry), slow.state(entry.name)))
            << short_name(precision) << " " << entry.name << " in step " << i;
      }
    }
  }
}

TEST(Session, CnnLearnsAndMovesItsStatisticsApart) {
  Session session = reference_session(cnn_model(), options_for("adamw"));
  const std::vector<Tensor> batch = cnn_batch(16, 8);
  const double first = session.step(batch).loss;
  double last = first;
  for (int i = 0; i < 25; ++i) last = session.step(batch).loss;
  EXPECT_LT(last, 0.9 * first);
  // Two layers with the same first statistics have each their own.
  for (const char* name : {"bn1_mean", "bn1_var", "bn2_mean", "bn2_var"})
    ASSERT_NE(session.state().find(name), nullptr) << name;
  const StateStore& store = session.state();
  EXPECT_FALSE(identical(store.get(*store.find("bn1_mean")), store.get(*store.find("bn2_mean"))));
  EXPECT_FALSE(identical(store.get(*store.find("bn1_var")), store.get(*store.find("bn2_var"))));
}

/// A file may leave them out; nobody could bind them by --dim or --batch then.
TEST(Session, DimsWithoutANameGetOne) {
  CompileOptions options;
  options.train.loss_outputs = {"loss"};
  const Model model = parse_model(R"(<ir_version: 10, opset_import: ["" : 23]>
g (float[?,4] x) => (float loss) <float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
  y = MatMul (x, w)
  loss = ReduceMean <keepdims = 0> (y)
})",
                                  "unnamed");
  Session session(compile_model(model, options).model, {1, {}, {}});
  EXPECT_EQ(to_string(session.inputs().at(0).second), "float[x_d0,4]");
  EXPECT_EQ(session.step({{Tensor::full(DType::kF32, {3, 4}, 1.0)}}).loss, 18);
}

TEST(Session, SameBytesOnEveryRunAndNumberOfThreads) {
  for (const DType precision : {DType::kF32, DType::kBF16, DType::kF16}) {
    std::vector<std::vector<Tensor>> runs;
    for (const int threads : {1, 1, 2, 3}) {
      Session session = reference_session(cnn_model(), options_for("adamw", precision), threads);
      for (uint64_t i = 0; i < 4; ++i) session.step(cnn_batch(8, 20 + i));
      runs.push_back(states_of(session));
    }
    for (size_t i = 1; i < runs.size(); ++i) expect_same(runs[0], runs[i]);
  }
}

TEST(Session, NumbersOfThreadsThatAreNone) {
  for (const int threads : {-3, -1, kMaxThreads + 1}) {
    try {
      reference_session(cnn_model(), options_for("sgd"), threads);
      ADD_FAILURE() << threads << " threads are taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_THAT(error.what(), testing::HasSubstr("expected 0 (all cores) to 1024, got " +
                                                   std::to_string(threads)));
    }
  }
}

TEST(Session, ParameterGroupsSetDecayAndRate) {
  CompileOptions options = options_for("sgd");
  options.train.optimizer.weight_decay = 0.5f;
  options.train.optimizer.groups = {{"b.*", 0.0f, std::nullopt}, {"w1", std::nullopt, 0.0f}};
  Session session = reference_session(mlp_model(), options);
  const StateStore& store = session.state();
  const Tensor w1 = store.get(*store.find("w1")), w2 = store.get(*store.find("w2"));
  session.step(mlp_batch(8, 1));
  EXPECT_TRUE(identical(w1, store.get(*store.find("w1")))) << "a rate of 0 moves nothing";
  EXPECT_FALSE(identical(w2, store.get(*store.find("w2"))));
  options.train.optimizer.groups = {{"no_such_weight", 0.0f, std::nullopt}};
  EXPECT_THROW(compile_model(mlp_model(), options), Error);
}

TEST(Session, ClipLimitsTheUpdateToTheNorm) {
  CompileOptions options = options_for("sgd");
  options.train.optimizer.lr = 1.0f;
  options.train.optimizer.clip_norm = 1e-3f;
  Session session = reference_session(mlp_model(), options);
  const std::vector<Tensor> before = states_of(session);
  const StepResult step = session.step(mlp_batch(8, 2));
  ASSERT_TRUE(step.grad_norm.has_value());
  EXPECT_GT(*step.grad_norm, 1e-3) << "the norm before clipping";
  const std::vector<Tensor> after = states_of(session);
  double moved = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (session.state().entries()[i].kind != StateKind::kWeight) continue;
    for (int64_t k = 0; k < before[i].size(); ++k) {
      const double d = after[i].at_as_double(k) - before[i].at_as_double(k);
      moved += d * d;
    }
  }
  // Each weight is rounded to f32: 2^-24 · |w| ≤ 2^-24 each, 163 weights.
  EXPECT_NEAR(std::sqrt(moved), 1e-3, 163 * 0x1p-24);
}

TEST(Session, EvaluationChangesNothingAndReadsPresentStatistics) {
  Session session = reference_session(cnn_model(), options_for("adamw"));
  const std::vector<Tensor> batch = cnn_batch(8, 6);
  const std::vector<Tensor> untrained = session.evaluate(batch);
  for (int i = 0; i < 3; ++i) session.step(batch);
  const std::vector<Tensor> before = states_of(session);
  const std::vector<Tensor> once = session.evaluate(batch);
  const std::vector<Tensor> twice = session.evaluate(batch);
  expect_same(once, twice);
  expect_same(before, states_of(session));
  EXPECT_FALSE(identical(untrained[0], once[0]));

  // By the interpreter, with the present states in the evaluation graph.
  Model model = session.model();
  Graph graph = find_step(model, kEvaluateName)->graph;
  for (ValueId id : graph.initializers()) {
    const StateEntry* entry = session.state().find(graph.value(id).name);
    if (entry != nullptr) graph.value(id).tensor = session.state().get(*entry);
  }
  expect_same(evaluate(graph, batch), once);
}

TEST(Session, AllProgramsShareOneArena) {
  Session session = reference_session(cnn_model(), options_for("adamw"));
  const auto outputs = [&] {
    std::vector<Tensor> all;
    for (const ProgramOperand& output : session.program(kStepName)->outputs)
      all.push_back(session.output(output.name));
    return all;
  };
  const std::vector<Tensor> small = cnn_batch(4, 6), large = cnn_batch(32, 7);
  session.step(small);
  const size_t alone = session.memory().arena;
  EXPECT_EQ(session.memory().outputs, 0u);
  const std::vector<Tensor> of_small = outputs();
  // It moves when a larger program comes; results stay until their program runs again.
  session.evaluate(large);
  expect_same(outputs(), of_small);
  const MemoryUse both = session.memory();
  EXPECT_EQ(both.arena, std::max(alone, session.program(kEvaluateName)->arena_bytes));
  EXPECT_GT(both.outputs, 0u);
  session.step(small);
  const std::vector<Tensor> next = outputs();
  EXPECT_FALSE(identical(next[0], of_small[0]));
  session.evaluate(large);
  session.evaluate(small);
  expect_same(outputs(), next);
}

TEST(Session, DroppedOutputsTakeNoRoom) {
  Session session = reference_session(cnn_model(), options_for("adamw"));
  const std::vector<Tensor> batch = cnn_batch(4, 6);
  session.step(batch);
  const std::string loss = session.program(kStepName)->outputs[0].name;
  const Tensor view = session.output(loss, TensorsAs::kViews);
  EXPECT_TRUE(identical(view, session.output(loss)));
  session.drop_outputs();
  const Tensor first = session.evaluate(batch)[0];
  EXPECT_EQ(session.memory().outputs, 0u);
  try {
    session.output(loss);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("any more"), std::string::npos) << error.what();
  }
  session.step(batch);  // keeps those of the evaluation
  EXPECT_GT(session.memory().outputs, 0u);
  EXPECT_TRUE(std::isfinite(session.output(loss).at_as_double(0)));
  EXPECT_TRUE(identical(session.evaluate(batch, TensorsAs::kViews)[0], session.evaluate(batch)[0]));
  EXPECT_NE(session.evaluate(batch)[0].at_as_double(0), first.at_as_double(0));
}

TEST(Session, TrainsOnAfterTheArenaWentBack) {
  Session whole = reference_session(cnn_model(), options_for("adamw"));
  Session paused = reference_session(cnn_model(), options_for("adamw"));
  const std::vector<Tensor> batch = cnn_batch(4, 6);
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(whole.step(batch).loss, paused.step(batch).loss);
    const Tensor evaluated = paused.evaluate(batch)[0];
    paused.release_arena();
    EXPECT_TRUE(identical(paused.evaluate(batch)[0], evaluated));
    paused.release_arena();
  }
  EXPECT_TRUE(identical(whole.evaluate(batch)[0], paused.evaluate(batch)[0]));
}

TEST(Session, ThereIsNoOutputBeforeTheFirstStep) {
  Session session = reference_session(mlp_model(), options_for("sgd"));
  session.prepare(std::vector<Shape>{{4, 6}, {4}});
  const std::string loss = session.program(kStepName)->outputs[0].name;
  try {
    session.output(loss);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
  }
  const StepResult result = session.step(mlp_batch(4, 1));
  EXPECT_EQ(session.output(loss).at_as_double(0), result.loss);
}

TEST(Session, MemoryHoldsOneArena) {
  const size_t before = held_page_bytes();
  Session session = reference_session(cnn_model(), options_for("adamw"));
  session.step(cnn_batch(64, 6));
  const size_t with_step = held_page_bytes();
  EXPECT_GT(with_step, before);
  session.evaluate(cnn_batch(16, 6));
  session.evaluate(cnn_batch(8, 6));
  EXPECT_EQ(held_page_bytes(), with_step);
}

TEST(Session, TwoSignaturesShareTheState) {
  Session session = reference_session(mlp_model(), options_for("momentum"));
  SlowStep slow(session.model().training.front().graph);
  for (const int64_t n : {4, 7, 4, 1, 7}) {
    const std::vector<Tensor> batch = mlp_batch(n, static_cast<uint64_t>(n));
    EXPECT_EQ(session.step(batch).loss, slow.run(batch)[0].at_as_double(0)) << n;
  }
  EXPECT_EQ(session.applied_steps(), 5);
  for (const StateEntry& entry : session.state().entries())
    EXPECT_TRUE(identical(session.state().get(entry), slow.state(entry.name))) << entry.name;
}

TEST(Session, BadInputsLeaveItUsable) {
  Session session = reference_session(mlp_model(), options_for("sgd"));
  const std::vector<Tensor> batch = mlp_batch(4, 1);
  EXPECT_THROW(session.step(std::vector<Tensor>{batch[0]}), Error);
  EXPECT_THROW(session.step(std::vector<Tensor>{batch[1], batch[0]}), Error);
  EXPECT_THROW(session.step(std::vector<Tensor>{batch[0], mlp_batch(3, 1)[1]}), Error);
  EXPECT_THROW(session.output("no such output"), Error);
  EXPECT_GT(session.memory().total(), 0u) << "a signature that was refused leaves nothing behind";
  EXPECT_EQ(session.attempted_steps(), 0);
  EXPECT_NO_THROW(session.step(batch));
  EXPECT_THROW(Session(mlp_model(), {}), Error) << "a model without a training step";
}

TEST(Session, OutputsOutliveTheInputs) {
  // An output that is an input of the step is copied: the caller may free the batch.
  Model model = parse_model(R"(<ir_version: 10, opset_import: ["" : 23]>
g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1.0, 2.0, 3.0, 4.0}> { y = MatMul (x, w) })",
                            "g.onnxtxt");
  CompileOptions options = options_for("sgd");
  options.train.loss = "mse";
  CompileResult compiled = compile_model(model, options);
  Graph& graph = compiled.model.training.front().graph;
  graph.add_output(graph.main(), graph.find("x"));
  Session session(std::move(compiled.model), {});
  const Tensor want = uniform({3, 2}, 4);
  session.step(std::vector<Tensor>{want.deep_copy(), uniform({3, 2}, 5)});
  EXPECT_TRUE(identical(session.output("x"), want));
}

/// Two lookups of 3 in a table of 5 rows, their mean, 2 classes; as PyTorch's exporter writes
/// Embedding, with a mask for row 0 or without.
Model embedding_model(bool masked) {
  const std::string rows = masked ? R"(
zero = Constant <value: tensor = int64 {0}> ()
is_padding = Equal (ids, zero)
counts = Not (is_padding)
last = Constant <value: tensor = int64[1] {2}> ()
column = Unsqueeze (counts, last)
mask = Cast <to = 1> (column)
rows = Mul (read, mask))"
                                  : "rows = Identity (read)";
  return parse_model(
      "<ir_version: 10, opset_import: [\"\" : 23]>\n"
      "net (int64[N,3] ids) => (float[N,2] logits) <float[5,2] table = {0, 0, 0.5, -0.25, 1, 2, "
      "-1, 0.75, 0.25, 0.5}, float[2,2] w = {1, 0.5, -0.5, 1}> {\n"
      "read = Gather (table, ids)\n" +
          rows +
          "\naxis = Constant <value: tensor = int64[1] {1}> ()\n"
          "mean = ReduceMean <keepdims = 0> (rows, axis)\nlogits = MatMul (mean, w)\n}",
      "embedding");
}

/// docs/exporting.md: ONNX has no padding_idx, and a mask in the model does the same.
TEST(Session, APaddingRowIsTrainedUnlessTheModelMasksIt) {
  const std::vector<Tensor> batch = {Tensor::of<int64_t>({2, 3}, {0, 1, 2, 3, 4, 0}),
                                     Tensor::of<int64_t>({2}, {0, 1})};
  for (const DType precision : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool masked : {false, true}) {
      SCOPED_TRACE(std::string(short_name(precision)) + (masked ? ", masked" : ""));
      Session session = reference_session(embedding_model(masked), options_for("adamw", precision));
      const Tensor before = state(session, "table").deep_copy();
      for (int step = 0; step < 3; ++step) ASSERT_TRUE(session.step(batch).applied);
      const Tensor after = state(session, "table");
      for (int64_t row = 0; row < 5; ++row) {
        const bool moved = after.at_as_double(2 * row) != before.at_as_double(2 * row) ||
                           after.at_as_double(2 * row + 1) != before.at_as_double(2 * row + 1);
        EXPECT_EQ(moved, row > 0 || !masked) << "row " << row;
      }
    }
  }
}

}  // namespace
}  // namespace halfnote::test
