// ONNX Runtime's training artifacts (tests/fixtures/ort_training, written and trained by
// onnxruntime-training 1.19.2): its loss curve over 50 steps, its optimizers' own modes, its
// running statistics, and what is refused.
#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "compiler/ir/query.h"
#include "compiler/onnx/ort_checkpoint.h"
#include "passes/train/step.h"
#include "runtime/train/checkpoint/safetensors.h"
#include "support.h"

namespace halfnote::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

fs::path fixture(const std::string& name) {
  return fs::path(HALFNOTE_SOURCE_DIR) / "tests/fixtures/ort_training" / name;
}

struct Expected {
  Tensor x, y, loss;
  float lr = 0;
  std::vector<NamedTensor> finals;  // frozen parameters after the last step
};

Expected expected_of(const std::string& name) {
  Expected expected;
  const SafetensorsFile file(fixture(name) / "expected.safetensors");
  const auto tensor = [&](const char* key) { return file.tensor(*file.find(key)); };
  expected.x = tensor("x");
  expected.y = tensor("y");
  expected.loss = tensor("loss");
  expected.lr = static_cast<float>(tensor("lr").at_as_double(0));
  for (const SafetensorsFile::Entry& entry : file.entries()) {
    if (!entry.name.starts_with("final.")) continue;
    expected.finals.push_back({entry.name.substr(6), file.tensor(entry)});
  }
  return expected;
}

CompileOptions options_with(float lr, DType precision = DType::kF32) {
  CompileOptions options;
  options.policy.dtype = precision;
  options.train.optimizer.lr = lr;
  return options;
}

constexpr int64_t kBatch = 8, kSamples = 64;

/// Trains as the fixture was, batches in order, and gives the losses.
std::vector<double> curve(Session& session, const Expected& expected) {
  std::vector<double> losses;
  for (int64_t i = 0; i < expected.loss.size(); ++i) {
    const int64_t from = i * kBatch % kSamples;
    losses.push_back(session.step(rows({expected.x, expected.y}, from, kBatch)).loss);
  }
  return losses;
}

Session session_of(const std::string& name, const CompileOptions& options) {
  SessionOptions run;
  run.threads = 1;
  return Session(compile_file(fixture(name), options).model, run);
}

class OrtArtifact : public ::testing::TestWithParam<const char*> {};

/// f32 on both sides, sums in another order: 50 steps stay well below the bar of 1e-4.
TEST_P(OrtArtifact, LossCurveIsTheRecordedOne) {
  const Expected expected = expected_of(GetParam());
  Session session = session_of(GetParam(), options_with(expected.lr));
  const std::vector<double> losses = curve(session, expected);
  double worst = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const double want = expected.loss.at_as_double(static_cast<int64_t>(i));
    worst = std::max(worst, std::fabs(losses[i] - want) / std::fabs(want));
  }
  EXPECT_EQ(losses.size(), 50u);
  EXPECT_LE(worst, 1e-4);
  for (const NamedTensor& want : expected.finals) {
    const Tensor got = session.state().get(*session.state().find(want.name));
    for (int64_t k = 0; k < got.size(); ++k) {
      EXPECT_NEAR(got.at_as_double(k), want.tensor.at_as_double(k), 1e-4) << want.name;
    }
  }
}

/// Precision and loss scaling apply as to any training step.
TEST_P(OrtArtifact, TrainsIn16Bit) {
  const Expected expected = expected_of(GetParam());
  for (const DType precision : {DType::kBF16, DType::kF16}) {
    Session session = session_of(GetParam(), options_with(expected.lr, precision));
    const std::vector<double> losses = curve(session, expected);
    const double last = expected.loss.at_as_double(expected.loss.size() - 1);
    EXPECT_NEAR(losses.front(), expected.loss.at_as_double(0), 0.05);
    EXPECT_NEAR(losses.back(), last, 0.1) << GetParam();
    EXPECT_EQ(session.applied_steps(), 50);
  }
}

INSTANTIATE_TEST_SUITE_P(All, OrtArtifact,
                         ::testing::Values("mlp_adamw", "mlp_adamw_decay", "mlp_adamw_torch",
                                           "mlp_sgd_bce", "mlp_l1_clip", "cnn_adamw",
                                           "cnn_batch_norm", "transformer_adamw"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace halfnote::test
