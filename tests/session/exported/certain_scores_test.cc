// Losses that a model spells out as logarithms of probabilities train on where f32 rounds these to
// 0 or 1 (find-logs).
#include <cmath>

#include "compiler/ir/text.h"
#include "tests/session/support.h"

namespace halfnote::test {
namespace {

/// binary_cross_entropy_with_logits by PyTorch's older exporter.
constexpr const char* kBinary = R"(<ir_version: 10, opset_import: ["" : 17]>
g (float[4,1] x, float[4,1] t) => (float loss) <float[1,1] w = {1}> {
  one = Constant <value_floats: floats = [1.0]> ()
  z = MatMul (x, w)
  s = Sigmoid (z)
  p = Log (s)
  c = Sub (one, s)
  u = Sub (one, t)
  q = Log (c)
  a = Mul (t, p)
  b = Mul (u, q)
  d = Add (a, b)
  n = Neg (d)
  loss = ReduceMean <keepdims: int = 0> (n)
})";

/// The mean of −t·log(softmax(z)).
constexpr const char* kSoft = R"(<ir_version: 10, opset_import: ["" : 17]>
g (float[4,1] x, float[4,2] t) => (float loss) <float[1,2] w = {1, -1}> {
  z = MatMul (x, w)
  s = Softmax <axis: int = 1> (z)
  p = Log (s)
  a = Mul (t, p)
  n = Neg (a)
  loss = ReduceMean <keepdims: int = 0> (n)
})";

Session session_of(const char* text, bool finds) {
  CompileOptions options = options_for("sgd");
  options.train.loss.clear();
  options.train.loss_outputs = {"loss"};
  options.train.optimizer.lr = 1.0f;
  if (!finds) options.skip_passes = {"find-logs"};
  return reference_session(parse_model(text, "certain.onnxtxt"), options);
}

Tensor column(std::initializer_list<float> values, int64_t width) {
  Tensor tensor(DType::kF32, {4, width});
  std::ranges::copy(values, tensor.mutable_data<float>().begin());
  return tensor;
}

TEST(CertainScores, BinaryLossStaysFinite) {
  Session session = session_of(kBinary, true);
  const Tensor x = column({200, -200, 300, 2}, 1), t = column({0, 0, 1, 1}, 1);
  // −log(1 − σ(200)) = 200, 0, 0, log(1 + e⁻²); the gradient (σ(z) − t)·x.
  const double last = std::log1p(std::exp(-2.0));
  EXPECT_NEAR(session.step({x, t}).loss, (200 + last) / 4, 1e-4);
  const double slope = (200.0 - 2 * (1 - 1 / (1 + std::exp(-2.0)))) / 4;
  EXPECT_NEAR(state(session, "w").at_as_double(0), 1 - slope, 1e-4);
}

TEST(CertainScores, SoftmaxStaysFinite) {
  Session session = session_of(kSoft, true);
  const Tensor x = column({100, -100, 1, 1}, 1), t = column({0, 1, 0, 1, 1, 0, 0, 1}, 2);
  const double near = std::log1p(std::exp(-2.0));
  EXPECT_NEAR(session.step({x, t}).loss, (200 + 0 + near + 2 + near) / 8, 1e-4);
  EXPECT_TRUE(std::isfinite(state(session, "w").at_as_double(0)));
}

TEST(CertainScores, NearZeroTheSpellingMakesNoDifference) {
  const Tensor x = column({0.5, -1, 2, -3}, 1), t = column({0, 1, 0.25, 1}, 1);
  Session one = session_of(kBinary, true), apart = session_of(kBinary, false);
  EXPECT_NEAR(one.step({x, t}).loss, apart.step({x, t}).loss, 1e-6);
  EXPECT_NEAR(state(one, "w").at_as_double(0), state(apart, "w").at_as_double(0), 1e-6);
}

}  // namespace
}  // namespace halfnote::test
