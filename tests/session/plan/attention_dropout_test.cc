// A dropout on the probabilities of attention, trained through: the fused nodes train as the matrix
// of probabilities would, go on after a resume, give the same bits on any number of threads, and
// are not there in the evaluation.
#include <gmock/gmock.h>

#include <cstdlib>

#include "compiler/ir/text.h"
#include "tests/environment.h"
#include "tests/session/support.h"

namespace halfnote::test {
namespace {

/// (N, 67, 8) → two heads of 4 → 3 classes. 67 divides by no block.
Model attention_model(const std::string& ratio) {
  return parse_model(R"(<ir_version: 10, opset_import: ["" : 23]>
attention (float[N,67,8] x) => (float[N,3] logits)
  <float ratio = {)" + ratio +
                         R"(}, bool training = {1}, float root = {2.0},
   int64[4] apart = {0, 67, 2, 4}, int64[3] together = {0, 67, 8}, int64[1] axis = {1}> {
  wq = RandomNormal <shape = [8, 8], seed = 1.0, scale = 0.7> ()
  wk = RandomNormal <shape = [8, 8], seed = 2.0, scale = 0.7> ()
  wv = RandomNormal <shape = [8, 8], seed = 3.0, scale = 0.7> ()
  wc = RandomNormal <shape = [8, 3], seed = 4.0, scale = 0.7> ()
  q0 = MatMul (x, wq)
  k0 = MatMul (x, wk)
  v0 = MatMul (x, wv)
  q1 = Reshape (q0, apart)
  k1 = Reshape (k0, apart)
  v1 = Reshape (v0, apart)
  q = Transpose <perm = [0, 2, 1, 3]> (q1)
  k = Transpose <perm = [0, 2, 3, 1]> (k1)
  v = Transpose <perm = [0, 2, 1, 3]> (v1)
  s = MatMul (q, k)
  d = Div (s, root)
  p = Softmax <axis = -1> (d)
  pd, mask = Dropout (p, ratio, training)
  y0 = MatMul (pd, v)
  y1 = Transpose <perm = [0, 2, 1, 3]> (y0)
  y2 = Reshape (y1, together)
  y = Add (x, y2)
  m = ReduceMean <keepdims = 0> (y, axis)
  logits = MatMul (m, wc)
})",
                     "attention.onnxtxt");
}

std::vector<Tensor> attention_batch(uint64_t seed) {
  return {uniform({4, 67, 8}, seed), Tensor::of<int64_t>({4}, {0, 2, 1, 2})};
}

Session session_of(const std::string& ratio, DType precision = DType::kF32, int threads = 1) {
  const CompileOptions options = options_for("sgd", precision);
  SessionOptions how;
  how.threads = threads;
  return Session(compile_model(attention_model(ratio), options).model, how);
}

std::vector<double> losses(Session& session, uint64_t first, int steps = 4) {
  std::vector<double> all;
  for (int i = 0; i < steps; ++i)
    all.push_back(session.step(attention_batch(first + static_cast<uint64_t>(i))).loss);
  return all;
}

size_t count(const Session& session, const std::string& op) {
  size_t found = 0;
  for (const ProgramStep& step : session.program("step")->steps) found += step.op == op ? 1 : 0;
  return found;
}

TEST(AttentionDropout, TrainsAsTheUnfusedNodesDo) {
  for (const DType precision : {DType::kF32, DType::kF16, DType::kBF16}) {
    SCOPED_TRACE(short_name(precision));
    std::vector<double> got, want, without;
    {
      const Variable choice("HALFNOTE_ATTENTION", "always");
      Session fused = session_of("0.5", precision);
      got = losses(fused, 1);
      EXPECT_EQ(count(fused, "ai.halfnote.Attention"), 1u);
      EXPECT_EQ(count(fused, "ai.halfnote.AttentionGrad"), 1u);
      EXPECT_EQ(count(fused, "ai.halfnote.Dropout"), 0u);
      Session plain = session_of("0.0", precision);
      without = losses(plain, 1);
    }
    const Variable choice("HALFNOTE_ATTENTION", "never");
    Session apart = session_of("0.5", precision);
    want = losses(apart, 1);
    EXPECT_EQ(count(apart, "ai.halfnote.Attention"), 0u);
    // Beside casts, in 16 bits, a dropout is a part of their chain.
    const bool alone = precision == DType::kF32;
    EXPECT_EQ(count(apart, "ai.halfnote.Dropout"), alone ? 2u : 0u);
    // Losses near 1 behind four steps: some roundings of the type. Another mask is far from that.
    const double spacing = precision == DType::kF32 ? 1e-5 : precision == DType::kF16 ? 2e-3 : 1e-2;
    double distance = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], spacing) << "step " << i;
      distance += std::abs(want[i] - without[i]);
    }
    EXPECT_GT(distance, 4 * spacing) << "the dropout does too little for this test to say anything";
  }
}

TEST(AttentionDropout, HasTheSameBitsOnAnyNumberOfThreads) {
  const Variable choice("HALFNOTE_ATTENTION", "always");
  Session one = session_of("0.1"), three = session_of("0.1", DType::kF32, 3);
  losses(one, 1);
  losses(three, 1);
  EXPECT_EQ(count(one, "ai.halfnote.Attention"), 1u);
  expect_same(states_of(one), states_of(three));
}

TEST(AttentionDropout, GoesOnAfterAResume) {
  const Variable choice("HALFNOTE_ATTENTION", "always");
  Session whole = session_of("0.1"), first = session_of("0.1"), resumed = session_of("0.1");
  losses(whole, 1, 5);
  losses(first, 1, 2);
  for (const StateEntry& entry : first.state().entries())
    resumed.state().set(entry, first.state().get(entry));
  losses(resumed, 3, 3);
  expect_same(states_of(resumed), states_of(whole));
}

TEST(AttentionDropout, IsNotThereInTheEvaluation) {
  const Variable choice("HALFNOTE_ATTENTION", "always");
  Session dropping = session_of("0.5"), plain = session_of("0.0");
  const std::vector<Tensor> batch = attention_batch(9);
  const std::vector<Tensor> results = dropping.evaluate(batch);
  expect_same(results, dropping.evaluate(batch));
  expect_same(results, plain.evaluate(batch));
}

}  // namespace
}  // namespace halfnote::test
