// Edge cases of loss scaling on compiled models, one a test; presets and their traces are in
// scale_trace_test.cc, what a skipped step must not touch in tests/passes/loss_scaling_test.cc.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "compiler/ir/text.h"
#include "passes/precision/presets.h"
#include "passes/train/step.h"
#include "support.h"

namespace halfnote::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

CompileOptions f16_options(const std::string& optimizer, float init = 1024) {
  CompileOptions options = options_for(optimizer, DType::kF16);
  options.train.optimizer.lr = 0.01f;
  options.policy.scaler = scaler_preset("pytorch");
  options.policy.scaler.init = init;
  return options;
}

std::vector<Tensor> poisoned(double number) {
  return {Tensor::full(DType::kF32, {4, 6}, number), mlp_batch(4, 1)[1]};
}

/// Everything that only an applied step may move.
std::vector<Tensor> guarded(const Session& session) {
  std::vector<Tensor> found;
  for (const StateEntry& entry : session.state().entries()) {
    if (entry.kind == StateKind::kRandom || entry.kind == StateKind::kScaler) continue;
    found.push_back(session.state().get(entry));
  }
  return found;
}

Model model_from(const std::string& body) {
  return parse_model("<ir_version: 10, opset_import: [\"\" : 23]>\n" + body, "edge.onnxtxt");
}

/// The L2 norm of what separates two tensors.
double distance(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) {
    const double d = a.at_as_double(i) - b.at_as_double(i);
    sum += d * d;
  }
  return std::sqrt(sum);
}

TEST(ScaleEdges, OverflowInStepZeroLeavesTheFirstStepTheFirst) {
  Session plain = reference_session(mlp_model(), f16_options("adam"));
  Session late = reference_session(mlp_model(), f16_options("adam"));
  EXPECT_FALSE(late.step(poisoned(kInf)).applied);
  plain.step(mlp_batch(4, 1));
  late.step(mlp_batch(4, 1));
  // Bias correction counts applied steps; the scale is a power of two either way.
  expect_same(guarded(plain), guarded(late));
  EXPECT_EQ(late.applied_steps(), 1);
}

TEST(ScaleEdges, NanInTheForwardPassLowersTheScaleInVain) {
  CompileOptions options = f16_options("sgd", 8);
  options.policy.scaler.min = 1;
  Session session = reference_session(mlp_model(), options);
  const std::vector<Tensor> before = guarded(session);
  for (const double want : {4, 2, 1, 1}) {
    const StepResult result = session.step(poisoned(std::nan("")));
    EXPECT_TRUE(std::isnan(result.loss)) << "the loss says what happened";
    EXPECT_EQ(result.loss_scale, want);
  }
  expect_same(before, guarded(session));
  EXPECT_TRUE(session.step(mlp_batch(4, 1)).applied);
}

TEST(ScaleEdges, InfinityThatNoWeightOwnsIsNoOverflow) {
  const Model model = model_from(R"(
main (float[N,2] x) => (float[N,2] y, float[N,2] aside) <
   float[2,2] w = {0.5, -0.25, 0.25, 0.5}, float[2,2] frozen = {1e30, 1e30, 1e30, 1e30},
   float big = {1e30}
> {
   y = MatMul (x, w)
   z = Mul (x, big)
   q = Mul (z, big)
   aside = MatMul (q, frozen)
}
)");
  CompileOptions options = f16_options("sgd");
  options.train.trainable = {"w"};
  Session session = reference_session(model, options);
  const StepResult result =
      session.step(std::vector<Tensor>{uniform({4, 2}, 1), Tensor::of<int64_t>({4}, {0, 1, 0, 1})});
  EXPECT_TRUE(result.applied);
  EXPECT_EQ(result.loss_scale, 1024);
  bool infinite = false;
  const Tensor aside = session.output("aside");
  for (int64_t i = 0; i < aside.size(); ++i) infinite |= !std::isfinite(aside.at_as_double(i));
  EXPECT_TRUE(infinite) << "the case shows nothing";
}

TEST(ScaleEdges, OneBadGradientSkipsAllGroups) {
  // The gradient of h is S·dy·1000 and overflows f16, so that of w is bad; that of v, hᵀ·S·dy, is
  // finite.
  const Model model = model_from(R"(
main (float[N,2] x) => (float[N,2] y) <
   float[2,2] w = {1e-3, 2e-3, 3e-3, -1e-3}, float[2,2] v = {1000, -1000, -1000, 1000}
> {
   h = MatMul (x, w)
   y = MatMul (h, v)
}
)");
  const std::vector<Tensor> batch = {uniform({4, 2}, 1), Tensor::of<int64_t>({4}, {0, 1, 1, 0})};
  CompileOptions options = f16_options("momentum", 4096);
  options.train.optimizer.groups = {{"v", 0.5f, std::nullopt}, {"w", std::nullopt, 0.5f}};
  Session session = reference_session(model, options);
  const std::vector<Tensor> before = guarded(session);
  const StepResult bad = session.step(batch);
  EXPECT_TRUE(std::isfinite(bad.loss));
  EXPECT_FALSE(bad.applied);
  expect_same(before, guarded(session));
  options.policy.scaler.init = 16;
  Session fits = reference_session(model, options);
  EXPECT_TRUE(fits.step(batch).applied);
}

TEST(ScaleEdges, NoGradientAtAllIsAnError) {
  CompileOptions options = f16_options("sgd");
  options.train.frozen = {".*"};
  EXPECT_THROW(compile_model(mlp_model(), options), Error);
}

TEST(ScaleEdges, AnOverflowedNormClipsNothing) {
  CompileOptions options = f16_options("adamw");
  options.train.optimizer.clip_norm = 0.5f;
  options.train.optimizer.weight_decay = 0.1f;
  Session session = reference_session(mlp_model(), options);
  session.step(mlp_batch(4, 1));
  const std::vector<Tensor> before = guarded(session);
  const StepResult bad = session.step(poisoned(kInf));
  ASSERT_TRUE(bad.grad_norm.has_value());
  EXPECT_FALSE(std::isfinite(*bad.grad_norm));
  expect_same(before, guarded(session));
}

TEST(ScaleEdges, ANormBeyondSixteenBitsOfFiniteGradients) {
  // 64 gradients of some 3e4 each: every one fits f16, their norm does not.
  const Model model = model_from(R"(
main (float[4,8] x) => (float[4,8] y) <float[8,8] w = {)" +
                                 [] {
                                   std::string zeros = "0";
                                   for (int i = 1; i < 64; ++i) zeros += ", 0";
                                   return zeros;
                                 }() +
                                 R"(}> {
   y = MatMul (x, w)
}
)");
  CompileOptions options = f16_options("sgd", 1);
  options.train.loss = "mse";
  options.train.optimizer.lr = 1;
  options.train.optimizer.clip_norm = 2;
  Session session = reference_session(model, options);
  const StepResult result = session.step(std::vector<Tensor>{
      Tensor::full(DType::kF32, {4, 8}, 512), Tensor::full(DType::kF32, {4, 8}, 256)});
  EXPECT_TRUE(result.applied);
  // d = 2·(0 − 256)/32 = −16 each; the gradient is 4·512·16 = 32768, 64 times.
  EXPECT_NEAR(*result.grad_norm, 32768.0 * 8, 1);
  EXPECT_NEAR(distance(state(session, "w"), Tensor::full(DType::kF32, {8, 8}, 0)), 2, 1e-5);
}

TEST(ScaleEdges, AScaleThatIsNoPowerOfTwoCostsARounding) {
  CompileOptions exact = f16_options("sgd"), odd = f16_options("sgd");
  exact.policy.scaler = scaler_preset("static");
  exact.policy.scaler.init = 1024;
  odd.policy.scaler = scaler_preset("static");
  odd.policy.scaler.init = 1000;
  Session a = reference_session(mlp_model(), exact), b = reference_session(mlp_model(), odd);
  a.step(mlp_batch(4, 1));
  b.step(mlp_batch(4, 1));
  // Gradients are rounded to f16 at another place: half a spacing each of some five roundings,
  // times lr.
  const double moved = distance(state(a, "w1"), state(reference_session(mlp_model(), exact), "w1"));
  EXPECT_GT(moved, 0);
  EXPECT_LT(distance(state(a, "w1"), state(b, "w1")), 5 * 0x1p-11 * moved);
}

TEST(ScaleEdges, ARunGoesOnInTheMiddleOfTheInterval) {
  for (const char* preset : {"pytorch", "mxnet", "deepspeed", "apex_hysteresis"}) {
    SCOPED_TRACE(preset);
    CompileOptions options = f16_options("adam");
    options.policy.scaler = scaler_preset(preset);
    options.policy.scaler.init = 1024;
    options.policy.scaler.interval = 4;
    Session whole = reference_session(mlp_model(), options);
    const std::string_view events = "FFIFFFFFIIFFFFFFF";
    const auto feed = [](Session& session, char event) {
      return session.step(event == 'F' ? mlp_batch(4, 1) : poisoned(kInf)).loss_scale;
    };
    for (const char event : events.substr(0, 9)) feed(whole, event);
    Session resumed = reference_session(mlp_model(), options);
    for (const StateEntry& entry : whole.state().entries()) {
      resumed.state().set(*resumed.state().find(entry.name), whole.state().get(entry));
    }
    for (const char event : events.substr(9)) EXPECT_EQ(feed(whole, event), feed(resumed, event));
    expect_same(states_of(whole), states_of(resumed));
  }
}

TEST(ScaleEdges, DecayAndMomentumRestInASkippedStep) {
  for (const char* optimizer :
       {"momentum", "adamw", "rmsprop", "adagrad", "lamb", "lion", "adafactor"}) {
    SCOPED_TRACE(optimizer);
    CompileOptions options = f16_options(optimizer);
    options.train.optimizer.weight_decay = 0.1f;
    Session session = reference_session(mlp_model(), options);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(session.step(mlp_batch(4, 1)).applied);
    const std::vector<Tensor> before = guarded(session);
    EXPECT_FALSE(session.step(poisoned(kInf)).applied);
    expect_same(before, guarded(session));
    EXPECT_TRUE(session.step(mlp_batch(4, 1)).applied);
  }
}

TEST(ScaleEdges, F32WeightsAreUnscaledToo) {
  CompileOptions mixed = f16_options("sgd"), plain = options_for("sgd");
  mixed.train.optimizer.lr = plain.train.optimizer.lr = 1;
  mixed.policy.fp32_ops = {"Gemm"};
  const Model model = model_from(R"(
main (float[N,4] x) => (float[N,2] y) <
   float[4,4] w = {0.5, -0.25, 0.25, 0.5, 0.125, 0.5, -0.5, 0.25, 0.5, 0.25, -0.25, 0.5, 1, 0.5,
      0.25, -0.125},
   float[4,2] v = {0.5, -0.25, 0.25, 0.5, -0.5, 0.25, 0.125, 0.5}
> {
   h = MatMul (x, w)
   r = Tanh (h)
   y = Gemm (r, v)
}
)");
  const std::vector<Tensor> batch = {uniform({4, 4}, 1), Tensor::of<int64_t>({4}, {0, 1, 1, 0})};
  Session a = reference_session(model, mixed), b = reference_session(model, plain);
  const StepResult loss = a.step(batch);
  EXPECT_NEAR(loss.loss, b.step(batch).loss, 0x1p-8) << "the loss that is printed has no scale";
  // An update a thousand times too large could not be missed: a handful of f16 roundings is meant.
  for (const char* weight : {"w", "v"}) {
    EXPECT_LT(distance(state(a, weight), state(b, weight)), 0x1p-8) << weight;
  }
}

TEST(ScaleEdges, TheScaleIsNoParameter) {
  const Model model = compile_model(mlp_model(), f16_options("sgd")).model;
  const Graph& step = model.training.front().graph;
  EXPECT_FALSE(step.find("grad/loss_scale").valid());
  const auto index = step.state_of(step.find(kLossScale));
  ASSERT_TRUE(index.has_value());
  EXPECT_EQ(step.states()[*index].kind, StateKind::kScaler);
  EXPECT_FALSE(step.value(step.find(kLossScale)).trainable);
}

TEST(ScaleEdges, AGradientPenaltyIsScaledOnce) {
  // d = dy/dx of y = tanh(x·w) is w·(1 − y²); the loss is mean(d²). The scale is in the gradient of
  // the loss only, never in d.
  const Model model = parse_model(
      "<ir_version: 10, opset_import: [\"\" : 23, \"ai.onnx.preview.training\" : 1]>\n"
      R"(main (float[4,1] x) => (float loss) <float[1,1] w = {0.75}> {
   h = MatMul (x, w)
   y = Tanh (h)
   s = ReduceSum <keepdims: int = 0> (y)
   d = ai.onnx.preview.training.Gradient <xs: strings = ["x"], zs: strings = ["w"],
                                          y: string = "s"> (x, w)
   d2 = Mul (d, d)
   loss = ReduceMean <keepdims: int = 0> (d2)
}
)",
      "edge.onnxtxt");
  const Tensor x = uniform({4, 1}, 1);
  const double w = 0.75;
  double loss = 0, gradient = 0;
  for (int64_t i = 0; i < x.size(); ++i) {
    const double y = std::tanh(x.at_as_double(i) * w), slope = 1 - y * y, d = w * slope;
    loss += d * d / 4;
    gradient += 2 * d * (slope - 2 * w * y * slope * x.at_as_double(i)) / 4;
  }
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(short_name(dtype));
    CompileOptions options = f16_options("sgd");
    options.policy.dtype = dtype;
    options.train.loss.clear();
    options.train.loss_outputs = {"loss"};
    options.train.optimizer.lr = 1;
    Session session = reference_session(model, options);
    // Some ten roundings on the way of each number.
    const double eps = dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kF16 ? 0x1p-11 : 0x1p-8;
    EXPECT_NEAR(session.step(std::vector<Tensor>{x}).loss, loss, 10 * eps);
    EXPECT_NEAR(w - state(session, "w").at_as_double(0), gradient, 10 * eps);
  }
}

TEST(ScaleEdges, AScaleThatF16CannotHoldIsF32) {
  Session session = reference_session(mlp_model(), f16_options("sgd", 65536));
  EXPECT_TRUE(session.step(mlp_batch(4, 1)).applied) << "2^16 is above the 65504 of f16";
  CompileOptions huge = f16_options("sgd");
  huge.policy.scaler = scaler_preset("megatron");
  Session megatron = reference_session(mlp_model(), huge);
  int steps = 0;
  StepResult result;
  do {
    result = megatron.step(mlp_batch(4, 1));
    ++steps;
  } while (!result.applied && steps < 40);
  EXPECT_TRUE(result.applied);
  EXPECT_GT(steps, 8) << "2^32 does not fit at once";
  EXPECT_GT(result.loss_scale, 65536);
}

}  // namespace
}  // namespace halfnote::test
