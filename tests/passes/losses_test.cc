// The losses of --loss: values and gradients against PyTorch (tests/fixtures/make_torch_cases.py),
// gradients against central differences in f64 in and beside the awkward places, and f32 where the
// plain formulas overflow.
#include "passes/train/losses.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support.h"

namespace halfnote::test {
namespace {

using nlohmann::json;

std::string dims_text(const Shape& shape) {
  std::string text;
  for (const int64_t dim : shape) text += (text.empty() ? "" : ",") + std::to_string(dim);
  return text;
}

/// y = x + w with w trainable: the gradient of w is that of the output.
std::string net(const Shape& shape, const char* type) {
  std::string zeros;
  for (int64_t i = 0; i < element_count(shape); ++i) zeros += i == 0 ? "0" : ", 0";
  const std::string full = std::string(type) + "[" + dims_text(shape) + "]";
  return "main (" + full + " x) => (" + full + " y) <\n   " + full + " w = {" + zeros +
         "}  # trainable\n> {\n   y = Add (x, w)\n}\n";
}

struct LossRun {
  double loss = 0;
  Tensor gradient;
};

/// The loss of this output and target, and its gradient.
LossRun run_loss(const TrainOptions& train, const Tensor& output, const Tensor& target) {
  CompileOptions options;
  options.train = train;
  options.train.optimizer.kind = "none";
  Model model = model_of(net(output.shape(), output.dtype() == DType::kF64 ? "double" : "float"));
  run_until(model, options, "differentiate");
  const Results results =
      execute(model, {}, {{"x", output}, {"labels", target}, {"target", target}});
  const Graph& step = model.training.front().graph;
  const auto named = [&](ValueId value) { return results.at("step/" + step.value(value).name); };
  return {named(step.outputs().front()).at_as_double(0), results.at("step/grad/w")};
}

Tensor from_json(DType dtype, const Shape& shape, const json& data) {
  Tensor tensor(DType::kF64, shape);
  auto to = tensor.mutable_data<double>();
  for (size_t i = 0; i < to.size(); ++i) to[i] = data[i].get<double>();
  return tensor.cast_to(dtype);
}

TrainOptions train_of(const json& test) {
  TrainOptions train;
  train.loss = test.at("loss");
  train.huber_delta = test.at("settings").value("huber_delta", 1.0f);
  train.label_smoothing = test.at("settings").value("label_smoothing", 0.0f);
  train.ignore_index = test.at("settings").value("ignore_index", int64_t{-100});
  return train;
}

bool reads_labels(const std::string& loss) { return loss == "cross_entropy" || loss == "nll"; }

Tensor target_of(const json& test, DType dtype) {
  Shape shape = test.at("shape").get<Shape>();
  const bool labels = reads_labels(test.at("loss"));
  if (labels) shape.erase(shape.begin() + 1);
  return from_json(labels ? DType::kI64 : dtype, shape, test.at("target"));
}

class Losses : public testing::TestWithParam<DType> {};

TEST_P(Losses, AgreeWithPyTorch) {
  std::ifstream stream(std::string(HALFNOTE_SOURCE_DIR) + "/tests/fixtures/torch/losses.json");
  const json cases = json::parse(stream);
  ASSERT_GE(cases.size(), 15u);
  // Sums of up to a dozen numbers below 4, each with a few roundings.
  const double tolerance = GetParam() == DType::kF64 ? 1e-14 : 16 * 0x1p-24;
  for (const json& test : cases) {
    SCOPED_TRACE(test.at("name").get<std::string>());
    const Shape shape = test.at("shape").get<Shape>();
    const Tensor output = from_json(GetParam(), shape, test.at("output"));
    const LossRun got = run_loss(train_of(test), output, target_of(test, GetParam()));
    EXPECT_NEAR(got.loss, test.at("want").get<double>(), 4 * tolerance);
    // Of log-probabilities PyTorch gives the gradient through its own log_softmax, which takes the
    // mean away.
    if (test.at("loss") == "nll") continue;
    for (int64_t i = 0; i < output.size(); ++i) {
      EXPECT_NEAR(got.gradient.at_as_double(i),
                  test.at("gradient")[static_cast<size_t>(i)].get<double>(), tolerance);
    }
  }
}

/// (N, C, d) -> (N, d, C), or back.
Tensor transposed(const Tensor& tensor) {
  const Shape& from = tensor.shape();
  if (from.size() < 3) return tensor;
  Tensor result(DType::kF64, {from[0], from[2], from[1]});
  auto out = result.mutable_data<double>();
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const int64_t d = i % from[2], c = i / from[2] % from[1], n = i / from[2] / from[1];
    out[static_cast<size_t>((n * from[2] + d) * from[1] + c)] = tensor.at_as_double(i);
  }
  return result.cast_to(tensor.dtype());
}

TEST_P(Losses, TakeTheClassesFromTheLastAxis) {
  std::ifstream stream(std::string(HALFNOTE_SOURCE_DIR) + "/tests/fixtures/torch/losses.json");
  const double tolerance = GetParam() == DType::kF64 ? 1e-14 : 16 * 0x1p-24;
  int moved = 0;
  for (const json& test : json::parse(stream)) {
    if (!reads_labels(test.at("loss"))) continue;
    SCOPED_TRACE(test.at("name").get<std::string>());
    TrainOptions train = train_of(test);
    const Tensor output = from_json(GetParam(), test.at("shape").get<Shape>(), test.at("output"));
    const Tensor labels = target_of(test, GetParam());
    const LossRun want = run_loss(train, output, labels);
    train.class_axis = -1;
    const LossRun got = run_loss(train, transposed(output), labels);
    EXPECT_NEAR(got.loss, want.loss, 4 * tolerance);
    const Tensor gradient = transposed(got.gradient);
    for (int64_t i = 0; i < output.size(); ++i) {
      EXPECT_NEAR(gradient.at_as_double(i), want.gradient.at_as_double(i), tolerance);
    }
    moved += output.shape().size() == 3 ? 1 : 0;
  }
  EXPECT_GE(moved, 3);
}

TEST(Losses, RefuseAnAxisThatCountsNoClasses) {
  TrainOptions train;
  train.loss = "cross_entropy";
  const Tensor scores(DType::kF32, {2, 3, 4, 5}), labels(DType::kI64, {2, 4, 5});
  for (const int64_t axis : {0, 2, 4, -2, -4, -5}) {
    train.class_axis = axis;
    const auto run = [&] { run_loss(train, scores, labels); };
    EXPECT_THAT(error_of(run, ErrorCode::kUsage), testing::HasSubstr("no axis that can count"))
        << axis;
  }
  train.loss = "mse";
  train.class_axis = -1;
  const auto run = [&] { run_loss(train, scores, scores); };
  EXPECT_THAT(error_of(run, ErrorCode::kUsage), testing::HasSubstr("cross_entropy or nll"));
}

INSTANTIATE_TEST_SUITE_P(Types, Losses, testing::Values(DType::kF32, DType::kF64),
                         [](const auto& test) { return std::string(short_name(test.param)); });

Tensor f64(const Shape& shape, const std::vector<double>& values) {
  return Tensor::of<double>(shape, std::span<const double>(values));
}

/// Every element of the gradient within 1e-8 of the central difference.
void expect_gradient(const TrainOptions& train, const Tensor& output, const Tensor& target) {
  SCOPED_TRACE(train.loss);
  const LossRun at = run_loss(train, output, target);
  constexpr double kDelta = 1e-5;
  for (int64_t i = 0; i < output.size(); ++i) {
    const auto moved = [&](double by) {
      Tensor other = output.deep_copy();
      other.mutable_data<double>()[static_cast<size_t>(i)] += by;
      return run_loss(train, other, target).loss;
    };
    const double difference = (moved(kDelta) - moved(-kDelta)) / (2 * kDelta);
    EXPECT_NEAR(at.gradient.at_as_double(i), difference, 1e-8) << "element " << i;
  }
}

TEST(LossGradients, AreCentralDifferences) {
  const Tensor y = f64({2, 3}, {0.5, -1.25, 2, -0.5, 0.75, 1.5});
  const Tensor t = f64({2, 3}, {0.25, 0.5, 0.25, 0, 0.125, 0.875});
  const Tensor labels = Tensor::of<int64_t>({2}, {2, 0});
  TrainOptions train;
  for (const char* loss : {"mse", "l1", "huber", "bce_with_logits", "kl"}) {
    train.loss = loss;
    expect_gradient(train, y, t);
  }
  for (const float smoothing : {0.0f, 0.25f}) {
    for (const char* loss : {"cross_entropy", "nll"}) {
      train.loss = loss;
      train.label_smoothing = smoothing;
      expect_gradient(train, y, labels);
    }
  }
}

TEST(LossGradients, OfBceAreRightAtZero) {
  // A head that starts at zero gives exactly these logits.
  TrainOptions train;
  train.loss = "bce_with_logits";
  const LossRun run = run_loss(train, f64({1, 3}, {0, 0, 0}), f64({1, 3}, {0, 0.25, 1}));
  EXPECT_DOUBLE_EQ(run.loss, std::log(2.0));
  const double want[] = {0.5 / 3, 0.25 / 3, -0.5 / 3};
  for (int64_t i = 0; i < 3; ++i) EXPECT_DOUBLE_EQ(run.gradient.at_as_double(i), want[i]);
}

TEST(LossGradients, OfHuberAreRightAtDelta) {
  TrainOptions train;
  train.loss = "huber";
  train.huber_delta = 0.5f;
  const LossRun run = run_loss(train, f64({4}, {0.5, -0.5, 0, 4}), f64({4}, {0, 0, 0, 0}));
  EXPECT_DOUBLE_EQ(run.loss, (0.125 + 0.125 + 0 + 0.5 * (4 - 0.25)) / 4);
  const double want[] = {0.125, -0.125, 0, 0.125};
  for (int64_t i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(run.gradient.at_as_double(i), want[i]);
}

TEST(LossValues, StayFiniteForLargeLogits) {
  TrainOptions train;
  train.loss = "bce_with_logits";
  const Tensor y = Tensor::of<float>({1, 4}, {200.0f, -200.0f, 200.0f, -200.0f});
  const Tensor t = Tensor::of<float>({1, 4}, {1.0f, 0.0f, 0.0f, 1.0f});
  const LossRun run = run_loss(train, y, t);
  EXPECT_FLOAT_EQ(static_cast<float>(run.loss), 100.0f);
  EXPECT_EQ(run.gradient.at_as_double(0), 0) << "certain and right";
  EXPECT_FLOAT_EQ(static_cast<float>(run.gradient.at_as_double(2)), 0.25f);
}

TEST(LossValues, KlCountsNothingWhereTheTargetIsZero) {
  TrainOptions train;
  train.loss = "kl";
  const double low = std::log(0.5);
  const LossRun run = run_loss(train, f64({1, 3}, {low, low, -700}), f64({1, 3}, {0.5, 0.5, 0}));
  EXPECT_NEAR(run.loss, 0, 1e-15);
  EXPECT_EQ(run.gradient.at_as_double(2), 0);
}

TEST(LossValues, SixteenBitModelsHaveTheirLossInF32) {
  // 300² does not fit f16.
  CompileOptions options;
  options.train.loss = "mse";
  options.train.optimizer.kind = "none";
  Model model = model_of(net({2}, "float16"));
  run_until(model, options, "attach-loss");
  const Results results = execute(
      model, {},
      {{"x", Tensor::full(DType::kF16, {2}, 300)}, {"target", Tensor::full(DType::kF16, {2}, 0)}});
  const Graph& step = model.training.front().graph;
  const Value& loss = step.value(step.outputs().front());
  EXPECT_EQ(loss.type.dtype, DType::kF32);
  EXPECT_EQ(results.at("step/" + loss.name).at_as_double(0), 90000);
}

/// What is warned of where the loss is attached.
std::string warnings_of(Model model, const std::string& loss) {
  CompileOptions options;
  options.train.loss = loss;
  options.train.optimizer.kind = "none";
  std::string text;
  for (const Remark& remark : run_until(model, options, "attach-loss").remarks) {
    if (remark.level == Remark::Level::kWarning) text += remark.where + ": " + remark.text + "\n";
  }
  return text;
}

/// What is warned of where a loss of log-probabilities is attached to `y`.
std::string log_warnings(const std::string& nodes, const std::string& loss = "nll") {
  return warnings_of(model_of("main (float[4,3] x) => (float[4,3] y) <\n"
                              "   float[3,3] m = {1, 0, 0, 0, 1, 0, 0, 0, 1},\n"
                              "   float[3] w = {1, 2, 3}  # trainable\n"
                              "> {\n   a = Mul (x, w)\n" +
                              nodes + "}\n"),
                     loss);
}

TEST(LossInputs, NoRunHasStringsOrBatchesWithoutSamples) {
  const auto warned = [](const std::string& input) {
    return warnings_of(model_of("main (" + input +
                                ", float[2,3] x) => (float[2,3] y) <\n   float[3] w = {1, 2, 3}  "
                                "# trainable\n> {\n   y = Mul (x, w)\n   z = Identity (i)\n}\n"),
                       "mse");
  };
  EXPECT_EQ(warned("float[N,2] i"), "");
  EXPECT_EQ(warned("string[N] i"), "i: is an input of strings: no data of a run becomes that\n");
  EXPECT_EQ(warned("float[0,2] i"),
            "i: is an input without samples, [0,2]: no run trains on that; export the model with a "
            "symbolic first dim\n");
  EXPECT_EQ(warned("float[N,0] i"), "");
}

TEST(LossInputs, ProbabilitiesAreNoLogProbabilities) {
  const std::string warning =
      "y: nll reads it as log-probabilities, but it is the result of a Softmax (head); take --loss "
      "cross_entropy, or let the model end in a LogSoftmax\n";
  EXPECT_EQ(log_warnings("   [head] y = Softmax <axis: int = 1> (a)\n"), warning);
  EXPECT_EQ(log_warnings("   [head] p = Softmax <axis: int = 1> (a)\n   y = Identity (p)\n"),
            warning);
  EXPECT_EQ(log_warnings("   y = LogSoftmax <axis: int = 1> (a)\n"), "");
  EXPECT_EQ(log_warnings("   p = Softmax <axis: int = 1> (a)\n   y = Log (p)\n"), "");
}

TEST(LossInputs, ScoresAreNoLogProbabilities) {
  const std::string warning =
      "y: nll reads it as log-probabilities, but it is the result of a MatMul (head); take --loss "
      "cross_entropy, or let the model end in a LogSoftmax\n";
  EXPECT_EQ(log_warnings("   [head] y = MatMul (a, m)\n"), warning);
  EXPECT_EQ(log_warnings("   [head] s = MatMul (a, m)\n   y = Add (s, w)\n"), warning);
  EXPECT_EQ(log_warnings("   [head] s = MatMul (a, m)\n   r = Add (w, s)\n   y = Identity (r)\n"),
            warning);
  EXPECT_EQ(log_warnings("   s = MatMul (a, m)\n   y = Sub (s, w)\n"), "") << "may be logarithms";
  EXPECT_EQ(log_warnings("   s = MatMul (a, m)\n   r = ReduceLogSumExp (s)\n"
                         "   n = Neg (r)\n   y = Add (s, n)\n"),
            "")
      << "are logarithms";
  EXPECT_EQ(log_warnings("   s = MatMul (a, m)\n   y = LogSoftmax <axis: int = 1> (s)\n"), "");
  EXPECT_THAT(log_warnings("   [head] y = MatMul (a, m)\n", "kl"),
              testing::EndsWith("of a MatMul (head); let the model end in a LogSoftmax\n"));
}

TEST(LossSums, WeighEachLoss) {
  CompileOptions options;
  options.train.loss_outputs = {"a", "b*0.25", "c*-2"};
  options.train.optimizer.kind = "none";
  Model model = model_of(R"(main (float[2] x) => (float[2] y, float a, float[1] b, float c) <
   float[2] w = {1, 2}  # trainable
> {
   y = Mul (x, w)
   a = ReduceSum <keepdims: int = 0> (y)
   b = ReduceMax <keepdims: int = 1> (y)
   c = ReduceMean <keepdims: int = 0> (y)
}
)");
  run_until(model, options, "differentiate");
  const Results results = execute(model, {}, {{"x", Tensor::of<float>({2}, {4.0f, 8.0f})}});
  EXPECT_EQ(results.at("step/loss").at_as_double(0), 20 + 0.25 * 16 - 2 * 10);
  // d/dw: x·(1 − 1) from the sum and the mean, and a quarter of the maximum's.
  EXPECT_EQ(results.at("step/grad/w").at_as_double(0), 0);
  EXPECT_EQ(results.at("step/grad/w").at_as_double(1), 2);
}

}  // namespace
}  // namespace halfnote::test
