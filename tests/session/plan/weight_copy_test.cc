// The 16-bit copies of weights that updates write, and gradients that updates scale themselves: a
// step has the bits of the same step run node by node, where casts and products are nodes, for
// every optimizer; and the copies follow their weights whoever writes them.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "compiler/ir/query.h"
#include "passes/train/step.h"
#include "tests/session/support.h"

namespace halfnote::test {
namespace {

constexpr const char* kOptimizers[] = {"sgd",     "momentum", "adam", "adamw",    "adagrad",
                                       "rmsprop", "lion",     "lamb", "adafactor"};

/// Every copy is its weight, rounded.
void expect_copies_follow(const Session& session) {
  ASSERT_FALSE(session.state().copies().empty());
  for (const StateEntry& copy : session.state().copies()) {
    const Tensor weight = state(session, copy.copy_of);
    EXPECT_TRUE(identical(session.state().get(copy), weight.cast_to(copy.dtype))) << copy.name;
  }
}

size_t count_steps(const Session& session, std::string_view program, std::string_view op) {
  const auto& steps = session.program(program)->steps;
  return static_cast<size_t>(
      std::ranges::count_if(steps, [&](const ProgramStep& step) { return step.op == op; }));
}

/// (N, 256) -> 256 -> 256 -> 3: gradients that are large enough to lie in copies.
Model wide_model() {
  Model model;
  model.opsets = {{"", 23}};
  Graph& graph = model.graph;
  graph.name = "wide";
  const Dim batch = Dim::named("N");
  ValueId value = graph.add_input(graph.main(), "x",
                                  ValueType::tensor(DType::kF32, SymbolicShape{batch, Dim(256)}));
  const int64_t widths[] = {256, 256, 256, 256, 256, 3};
  for (size_t layer = 0; layer < 5; ++layer) {
    const std::string name = "w" + std::to_string(layer);
    Tensor weight = uniform({widths[layer], widths[layer + 1]}, 90 + layer);
    for (float& element : weight.mutable_data<float>()) element *= 0.125f;
    const ValueId w = graph.add_initializer(name, weight);
    NodeSpec product{"MatMul", {value, w}};
    value = graph.output(graph.create(product, 1, graph.end()));
    if (layer == 4) break;
    NodeSpec relu{"Relu", {value}};
    value = graph.output(graph.create(relu, 1, graph.end()));
  }
  graph.add_output(graph.main(), value);
  return model;
}

std::vector<Tensor> wide_batch(uint64_t seed) {
  std::vector<Tensor> batch = mlp_batch(4, seed);
  batch[0] = uniform({4, 256}, seed);
  return batch;
}

std::vector<Tensor> bad_batch() {
  std::vector<Tensor> batch = mlp_batch(8, 9);
  batch[0] = Tensor::full(DType::kF32, {8, 6}, INFINITY);
  return batch;
}

class WeightCopies : public testing::TestWithParam<const char*> {};

TEST_P(WeightCopies, AStepHasTheBitsOfItsNodes) {
  for (const DType precision : {DType::kBF16, DType::kF16}) {
    for (const float clip : {0.0f, 0.05f}) {
      for (const int threads : {1, 3}) {
        SCOPED_TRACE(std::string(short_name(precision)) + ", clip " + std::to_string(clip));
        CompileOptions options = options_for(GetParam(), precision);
        options.train.optimizer.clip_norm = clip;
        options.train.optimizer.weight_decay = 0.125f;
        Session session = reference_session(mlp_model(), options, threads);
        SlowStep slow(find_step(const_cast<Model&>(session.model()), kStepName)->graph);
        for (uint64_t i = 0; i < 4; ++i) {
          const std::vector<Tensor> batch = i == 2 ? bad_batch() : mlp_batch(8, 20 + i);
          EXPECT_EQ(session.step(batch).applied, i != 2);
          slow.run(batch);
          for (const StateEntry& entry : session.state().entries()) {
            EXPECT_TRUE(identical(session.state().get(entry), slow.state(entry.name)))
                << entry.name << " after step " << i;
          }
          expect_copies_follow(session);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, WeightCopies, testing::ValuesIn(kOptimizers),
                         [](const auto& test) { return std::string(test.param); });

TEST(WeightCopies, NoCastOfAWeightAndNoProductOfAGradientIsLeft) {
  CompileOptions options = options_for("adamw", DType::kF16);
  options.train.optimizer.clip_norm = 0.5f;
  Session session = reference_session(mlp_model(), options);
  session.step(mlp_batch(8, 1));
  EXPECT_EQ(session.state().copies().size(), 4u);
  // What is cast is the input and gradients of the loss, what is multiplied numbers.
  for (const ProgramStep& step : session.program(kStepName)->steps) {
    for (const BufferRef& input : step.inputs) {
      const bool casts_state = step.op == "Cast" && input.space == BufferRef::Space::kState;
      EXPECT_FALSE(casts_state) << step.node;
    }
  }
  EXPECT_EQ(count_steps(session, kStepName, "ai.halfnote.AllFinite"), 0u) << "the norm says it";
  EXPECT_EQ(count_steps(session, kStepName, "ai.halfnote.GlobalNorm"), 1u);
}

/// Results that lie in the store and are no states.
size_t borrowed(const Session& session) {
  size_t count = 0;
  for (const ProgramStep& step : session.program(kStepName)->steps) {
    for (const BufferRef& output : step.outputs) {
      if (output.space != BufferRef::Space::kState) continue;
      count += std::ranges::none_of(session.state().entries(), [&](const StateEntry& entry) {
        return entry.offset == output.offset;
      });
    }
  }
  // Each copy is written there too, by its update.
  return count - session.state().copies().size();
}

TEST(WeightCopies, GradientsLieInCopiesThatNobodyReadsAnyMore) {
  const CompileOptions options = options_for("adamw", DType::kBF16);
  Session session = reference_session(wide_model(), options);
  SlowStep slow(find_step(const_cast<Model&>(session.model()), kStepName)->graph);
  for (uint64_t i = 0; i < 4; ++i) {
    std::vector<Tensor> batch = wide_batch(30 + i);
    if (i == 1) batch[0] = Tensor::full(DType::kF32, {4, 256}, INFINITY);
    EXPECT_EQ(session.step(batch).applied, i != 1);
    slow.run(batch);
    for (const StateEntry& entry : session.state().entries())
      EXPECT_TRUE(identical(session.state().get(entry), slow.state(entry.name))) << entry.name;
    expect_copies_follow(session);
  }
  EXPECT_GT(borrowed(session), 0u);
}

TEST(WeightCopies, AStepThatEndsWithAnErrorLeavesNoSpoiltCopy) {
  const CompileOptions options = options_for("adamw", DType::kBF16);
  Session session = reference_session(wide_model(), options);
  Session twin = reference_session(wide_model(), options);
  std::vector<Tensor> batch = wide_batch(1);
  session.step(batch);
  twin.step(batch);
  batch[1] = Tensor::full(DType::kI64, {4}, 99);  // no such class
  EXPECT_THROW(session.step(batch), Error);
  const std::vector<Tensor> next = wide_batch(2);
  EXPECT_EQ(session.evaluate(next)[0].at_as_double(0), twin.evaluate(next)[0].at_as_double(0));
}

TEST(WeightCopies, FullPrecisionHasNone) {
  const Session session = reference_session(mlp_model(), options_for("adamw"));
  EXPECT_TRUE(session.state().copies().empty());
}

TEST(WeightCopies, FollowThroughAccumulationAndASkippedWindow) {
  for (const DType precision : {DType::kBF16, DType::kF16}) {
    CompileOptions options = options_for("adamw", precision);
    options.train.accumulation = 2;
    Session session = reference_session(mlp_model(), options);
    for (uint64_t window = 0; window < 4; ++window) {
      for (uint64_t m = 0; m < 2; ++m) {
        const bool bad = window == 2 && m == 0;
        const StepResult result = session.step(bad ? bad_batch() : mlp_batch(8, 2 * window + m));
        if (m == 1) {
          EXPECT_EQ(result.applied, window != 2);
        }
        expect_copies_follow(session);
      }
    }
    EXPECT_EQ(session.applied_steps(), 3);
  }
}

TEST(WeightCopies, AWeightThatIsSetFromOutsideIsRoundedBeforeTheNextStep) {
  const CompileOptions options = options_for("momentum", DType::kBF16);
  Session first = reference_session(mlp_model(), options);
  Session second = reference_session(mlp_model(), options);
  first.step(mlp_batch(8, 1));
  second.step(mlp_batch(8, 2));
  for (const StateEntry& entry : first.state().entries())
    second.state().set(entry, first.state().get(entry));
  EXPECT_EQ(first.evaluate(mlp_batch(8, 3))[0].at_as_double(0),
            second.evaluate(mlp_batch(8, 3))[0].at_as_double(0));
  EXPECT_EQ(first.step(mlp_batch(8, 4)).loss, second.step(mlp_batch(8, 4)).loss);
  expect_same(states_of(first), states_of(second));
  expect_copies_follow(second);
}

TEST(WeightCopies, ADiagnosisFindsTheWeightThatIsTooLargeAndLeavesItsCopy) {
  Session session = reference_session(mlp_model(), options_for("sgd", DType::kF16));
  session.step(mlp_batch(8, 1));
  const StateEntry& weight = *session.state().find("w1");
  session.state().set(weight, Tensor::full(DType::kF32, weight.shape, 1e6));
  const auto found = session.diagnose(mlp_batch(8, 2));
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->value, "w1");
  EXPECT_EQ(found->rounded_to, DType::kF16);
  expect_copies_follow(session);
}

TEST(WeightCopies, TheCheckpointHasOnlyTheStates) {
  const Session session = reference_session(mlp_model(), options_for("adamw", DType::kBF16));
  for (const StateEntry& entry : session.state().entries())
    EXPECT_TRUE(entry.copy_of.empty()) << entry.name;
  for (const StateEntry& copy : session.state().copies()) {
    EXPECT_FALSE(copy.copy_of.empty());
    EXPECT_EQ(session.state().find(copy.name), &copy);
  }
}

}  // namespace
}  // namespace halfnote::test
