// Models whose training_info was written by others (tests/fixtures/training_info, recorded with
// onnx.reference): initialization and two consecutive steps, states after each; and what is
// refused.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "compiler/ir/text.h"
#include "compiler/onnx/check.h"
#include "compiler/onnx/import.h"
#include "runtime/train/checkpoint/safetensors.h"
#include "support.h"

namespace halfnote::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path fixture(const std::string& name) {
  return fs::path(HALFNOTE_SOURCE_DIR) / "tests/fixtures/training_info" / name;
}

Session session_of(Model model, int64_t seed = 0) {
  SessionOptions options;
  options.threads = 1;
  return Session(adopt_training_info(std::move(model), seed), options);
}

/// f32 on both sides: a few dozen roundings at numbers of size 1, sums in another order. Adam
/// divides by the root of a sum of squares, which doubles what went before.
constexpr double kTolerance = 64 * 0x1p-24;

void expect_near(const Tensor& got, const Tensor& want) {
  ASSERT_EQ(got.dtype(), want.dtype());
  ASSERT_EQ(got.shape(), want.shape());
  for (int64_t i = 0; i < want.size(); ++i) {
    const double x = want.at_as_double(i);
    EXPECT_NEAR(got.at_as_double(i), x, kTolerance * std::max(1.0, std::fabs(x))) << "at " << i;
  }
}

class TrainingInfo : public ::testing::TestWithParam<const char*> {};

/// Compares all states of the session with those recorded under `prefix`.
void expect_states(const Session& session, const SafetensorsFile& file, const std::string& prefix) {
  size_t compared = 0;
  for (const SafetensorsFile::Entry& entry : file.entries()) {
    if (!entry.name.starts_with(prefix)) continue;
    SCOPED_TRACE(entry.name);
    expect_near(state(session, entry.name.substr(prefix.size())), file.tensor(entry));
    ++compared;
  }
  EXPECT_EQ(compared, session.state().entries().size());
}

TEST_P(TrainingInfo, TwoStepsAreTheRecordedOnes) {
  constexpr int64_t kBatch = 4;
  const SafetensorsFile file(fixture(GetParam() + std::string(".safetensors")));
  const auto tensor = [&](const char* key) { return file.tensor(*file.find(key)); };
  Session session = session_of(import_model(fixture(GetParam() + std::string(".onnx"))));
  expect_states(session, file, "first.");
  std::map<std::string, Tensor> samples = {{"x", tensor("x")}, {"t", tensor("t")}};
  const Tensor losses = tensor("loss");
  for (int64_t i = 0; i < losses.size(); ++i) {
    std::vector<Tensor> batch;
    for (const auto& [name, type] : session.inputs()) batch.push_back(samples.at(name));
    const StepResult result = session.step(rows(batch, i * kBatch, kBatch));
    EXPECT_TRUE(result.applied);
    EXPECT_NEAR(result.loss, losses.at_as_double(i), kTolerance) << "step " << i;
    expect_states(session, file, std::to_string(i) + ".");
  }
  const Model trained = session.trained_model();
  EXPECT_NO_THROW(check_model(trained));
  for (ValueId id : trained.graph.initializers()) {
    const Value& value = trained.graph.value(id);
    const StateEntry* entry = session.state().find(value.name);
    if (entry == nullptr) continue;
    EXPECT_TRUE(identical(value.tensor, session.state().get(*entry))) << value.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, TrainingInfo,
                         ::testing::Values("linear_sgd", "linear_adam", "mlp", "mlp_gradient"));

/// `initialization` draws w; `step` moves it.
Model drawing_model(const std::string& step) {
  Model model = parse_model(R"(<ir_version: 10, opset_import: ["" : 23]>
g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {0, 0, 0, 0}> { y = MatMul (x, w) }
)",
                            "drawing.onnxtxt");
  model.graph.value(model.graph.find("w")).trainable = true;
  TrainingStep made;
  made.graph = parse_model(R"(<ir_version: 10, opset_import: ["" : 23]>
algorithm (float[N,2] x) => (loss, w_new) <float[2,2] w = {0, 0, 0, 0}> {
)" + step + "}",
                           "drawing.onnxtxt")
                   .graph;
  const ValueId w = made.graph.find("w");
  made.graph.value(w).trainable = true;
  made.graph.add_state(w, made.graph.find("w_new"), StateKind::kWeight);
  made.initialization = parse_model(R"(<ir_version: 10, opset_import: ["" : 23]>
first () => (w_first) { w_first = RandomNormal <shape = [2, 2]> () }
)",
                                    "drawing.onnxtxt")
                            .graph;
  made.initialization_binding = {{"w", "w_first"}};
  model.training.push_back(std::move(made));
  return model;
}

constexpr const char* kSumOfSquares =
    "y = MatMul (x, w)\n loss = ReduceSumSquare <keepdims = 0> (y)\n w_new = Neg (w)\n";

TEST(TrainingInfoInitialization, DrawsTheSameForTheSameSeed) {
  const Tensor first = state(session_of(drawing_model(kSumOfSquares)), "w");
  EXPECT_TRUE(identical(state(session_of(drawing_model(kSumOfSquares)), "w"), first));
  EXPECT_FALSE(identical(state(session_of(drawing_model(kSumOfSquares), 1), "w"), first));
  EXPECT_NE(first.at_as_double(0), first.at_as_double(1));
}

TEST(TrainingInfoInitialization, MustFit) {
  Model model = drawing_model(kSumOfSquares);
  Graph& first = model.training[0].initialization;
  first.node(first.nodes().front()).attributes.set("shape", std::vector<int64_t>{3, 2});
  first.value(first.outputs()[0]).type = ValueType::tensor(DType::kF32);
  try {
    session_of(std::move(model));
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModel);
    EXPECT_THAT(error.what(), HasSubstr("the initialization of \"w\" does not fit"));
  }
}

std::string refusal_of(Model model) {
  try {
    adopt_training_info(std::move(model), 0);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return error.what();
  }
  return "not refused";
}

TEST(TrainingInfoRefusals, SayWhyAndTheWayOut) {
  EXPECT_THAT(refusal_of(drawing_model("loss = MatMul (x, w)\n w_new = Neg (w)\n")),
              HasSubstr("make the loss an output of the algorithm"));
  EXPECT_THAT(refusal_of(drawing_model("y = MatMul (x, w)\n n = RandomNormalLike (y)\n"
                                       " loss = ReduceSum <keepdims = 0> (n)\n w_new = Neg (w)\n")),
              HasSubstr("draws random numbers"));
  Model twice = drawing_model(kSumOfSquares);
  twice.training.push_back(twice.training.front());
  EXPECT_THAT(refusal_of(std::move(twice)), HasSubstr("join them to one algorithm"));
}

TEST(TrainingInfoRefusals, CompileSendsToRun) {
  try {
    compile_model(drawing_model(kSumOfSquares), {});
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("`halfnote run` trains it as it is"));
  }
}

}  // namespace
}  // namespace halfnote::test
