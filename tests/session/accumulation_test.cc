// Gradient accumulation: N micro-batches are one big batch; a window that is not finite commits
// nothing, and the next one starts from zero.
#include <cmath>

#include "passes/train/step.h"
#include "support.h"

namespace halfnote::test {
namespace {

constexpr int64_t kMicroBatches = 4;

CompileOptions accumulating(const std::string& optimizer, DType precision = DType::kF32) {
  CompileOptions options = options_for(optimizer, precision);
  options.train.accumulation = kMicroBatches;
  return options;
}

/// Weights, moments, running statistics and the applied-step counter: what a step commits.
std::vector<Tensor> committed(const Session& session) {
  std::vector<Tensor> result;
  for (const StateEntry& entry : session.state().entries()) {
    const bool commits = entry.kind == StateKind::kWeight || entry.kind == StateKind::kMoment ||
                         entry.kind == StateKind::kStatistic || entry.kind == StateKind::kCounter;
    // The pending copies are of the kind of what they stand for in `accumulate`.
    if (commits && !entry.name.starts_with("pending/"))
      result.push_back(session.state().get(entry));
  }
  return result;
}

TEST(Accumulation, FourMicroBatchesAreOneBigBatch) {
  for (const char* optimizer : {"sgd", "momentum", "adamw"}) {
    CompileOptions one = options_for(optimizer);
    one.train.optimizer.clip_norm = 0.5f;
    CompileOptions four = accumulating(optimizer);
    four.train.optimizer.clip_norm = 0.5f;
    // Adam divides by the root of the second moment: an epsilon above the rounding keeps it smooth.
    one.train.optimizer.epsilon = four.train.optimizer.epsilon = 1e-3f;
    Session big = reference_session(mlp_model(), one);
    Session small = reference_session(mlp_model(), four);
    EXPECT_EQ(small.accumulation(), kMicroBatches);
    for (uint64_t i = 0; i < 3; ++i) {
      const std::vector<Tensor> batch = mlp_batch(16, 40 + i);
      const StepResult whole = big.step(batch);
      double loss = 0;
      for (int64_t m = 0; m < kMicroBatches; ++m) {
        const StepResult part = small.step(rows(batch, 4 * m, 4));
        loss += part.loss / kMicroBatches;
        EXPECT_EQ(part.updated, m == kMicroBatches - 1);
        EXPECT_EQ(part.applied && part.updated, m == kMicroBatches - 1);
        EXPECT_EQ(small.pending(), (m + 1) % kMicroBatches);
      }
      // A mean of 16 numbers in another order: 16 roundings of numbers up to the loss.
      EXPECT_NEAR(loss, whole.loss, 16 * 0x1p-24 * (1 + whole.loss));
    }
    EXPECT_EQ(small.applied_steps(), 3);
    for (const StateEntry& entry : big.state().entries()) {
      if (entry.kind != StateKind::kWeight) continue;
      const Tensor a = big.state().get(entry), b = state(small, entry.name);
      // A gradient sums 16 products per weight, here up to 1 in size, and goes through three steps:
      // 3 · (16 + 8) roundings of 2^-24, times at most 1/epsilon·lr = 10 in Adam's quotient.
      for (int64_t k = 0; k < a.size(); ++k)
        EXPECT_NEAR(a.at_as_double(k), b.at_as_double(k), 720 * 0x1p-24) << entry.name;
    }
  }
}

TEST(Accumulation, PendingStatisticsAreCommittedWithTheWindow) {
  Session session = reference_session(cnn_model(), accumulating("adamw", DType::kF16));
  const Tensor first = state(session, "bn1_mean");
  for (int64_t m = 0; m + 1 < kMicroBatches; ++m) {
    EXPECT_FALSE(session.step(cnn_batch(4, static_cast<uint64_t>(60 + m))).updated);
    EXPECT_TRUE(identical(state(session, "bn1_mean"), first)) << "committed by apply alone";
    EXPECT_FALSE(identical(state(session, "pending/bn1_mean"), first)) << "moves every time";
  }
  EXPECT_TRUE(session.step(cnn_batch(4, 63)).applied);
  for (const char* name : {"bn1_mean", "bn1_var", "bn2_mean", "bn2_var"}) {
    EXPECT_TRUE(identical(state(session, name), state(session, "pending/" + std::string(name))));
  }
  EXPECT_FALSE(identical(state(session, "bn1_mean"), first));
}

TEST(Accumulation, ASkippedWindowCommitsNothing) {
  for (const DType precision : {DType::kF16, DType::kBF16}) {
    Session session = reference_session(cnn_model(), accumulating("adamw", precision));
    Session twin = reference_session(cnn_model(), accumulating("adamw", precision));
    const auto window = [](Session& s, uint64_t seed, bool bad) {
      StepResult last;
      for (int64_t m = 0; m < kMicroBatches; ++m) {
        std::vector<Tensor> batch = cnn_batch(4, seed + static_cast<uint64_t>(m));
        if (bad && m == 1) batch[0] = Tensor::full(DType::kF32, {4, 3, 8, 8}, INFINITY);
        last = s.step(batch);
      }
      return last;
    };
    EXPECT_TRUE(window(session, 100, false).applied);
    EXPECT_TRUE(window(twin, 100, false).applied);
    const std::vector<Tensor> before = committed(session);
    const StepResult skipped = window(session, 200, true);
    EXPECT_TRUE(skipped.updated);
    EXPECT_FALSE(skipped.finite);
    EXPECT_FALSE(skipped.applied);
    expect_same(before, committed(session));
    EXPECT_EQ(session.applied_steps(), 1);
    EXPECT_EQ(session.attempted_steps(), 2 * kMicroBatches);
    if (precision == DType::kF16) {
      EXPECT_EQ(skipped.loss_scale, 32768);
    }
    for (const StateEntry& entry : session.state().entries()) {
      const Tensor now = session.state().get(entry);
      if (entry.kind == StateKind::kAccumulator) {
        EXPECT_TRUE(identical(now, Tensor(entry.dtype, entry.shape))) << entry.name << " is reset";
      }
      if (entry.name.starts_with("pending/")) {
        EXPECT_TRUE(identical(now, state(session, entry.name.substr(8)))) << "falls back";
      }
    }
    // Nothing of the bad window is left: with the counters of a run without it, it goes on alike.
    for (const StateEntry& entry : session.state().entries()) {
      if (entry.name == "attempted_step" || entry.kind == StateKind::kScaler)
        session.state().set(entry, state(twin, entry.name));
    }
    EXPECT_TRUE(window(session, 300, false).applied);
    EXPECT_TRUE(window(twin, 300, false).applied);
    expect_same(states_of(session), states_of(twin));
  }
}

TEST(Accumulation, ASkippedSingleStepCommitsNothing) {
  for (const DType precision : {DType::kF16, DType::kBF16}) {
    Session session = reference_session(cnn_model(), options_for("momentum", precision));
    EXPECT_TRUE(session.step(cnn_batch(4, 1)).applied);
    const std::vector<Tensor> before = committed(session);
    std::vector<Tensor> bad = cnn_batch(4, 2);
    bad[0] = Tensor::full(DType::kF32, {4, 3, 8, 8}, NAN);
    const StepResult skipped = session.step(bad);
    EXPECT_FALSE(skipped.applied);
    expect_same(before, committed(session));
    EXPECT_EQ(session.attempted_steps(), 2);
    EXPECT_TRUE(session.step(cnn_batch(4, 3)).applied);
  }
}

}  // namespace
}  // namespace halfnote::test
