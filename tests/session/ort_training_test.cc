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

fs::path ort_fixture(const std::string& name) {
  return fs::path(HALFNOTE_SOURCE_DIR) / "tests/fixtures/ort_training" / name;
}

struct Expected {
  Tensor x, y, loss;
  float lr = 0;
  std::vector<NamedTensor> finals;  // frozen parameters after the last step
};

Expected expected_of(const std::string& name) {
  Expected expected;
  const SafetensorsFile file(ort_fixture(name) / "expected.safetensors");
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
  return Session(compile_file(ort_fixture(name), options).model, run);
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

/// A folder with the files of a fixture, to be changed.
fs::path copy_of(const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / ("ort_" + name);
  fs::remove_all(folder);
  fs::copy(ort_fixture(name), folder);
  return folder;
}

std::string read_all(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_all(const fs::path& file, const std::string& bytes) {
  std::ofstream(file, std::ios::binary) << bytes;
}

void expect_refused(const fs::path& path, const CompileOptions& options, ErrorCode code,
                    const std::string& part) {
  try {
    compile_file(path, options);
    FAIL() << "not refused: " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

/// No damage reaches memory: each is an error, or leaves a file that reads.
TEST(OrtCheckpoint, DamagedFilesAreErrors) {
  const fs::path file = fs::path(::testing::TempDir()) / "checkpoint";
  const std::string whole = read_all(ort_fixture("mlp_adamw") / "checkpoint");
  int refused = 0;
  const auto read = [&](const std::string& bytes) {
    write_all(file, bytes);
    try {
      read_ort_checkpoint(file);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::kModel || error.code() == ErrorCode::kUnsupported)
          << error.what();
      ++refused;
    }
  };
  for (size_t size = 0; size < whole.size(); size += 71) read(whole.substr(0, size));
  EXPECT_GT(refused, 30) << "truncated";
  for (size_t at = 0; at < whole.size(); at += 23) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 0xff);
    read(bytes);
  }
  EXPECT_GT(refused, 40) << "flipped";
}

/// A file of 200 kB whose thousand names are all but the same bytes: read one by one, they would
/// take 200 MB, and those of a megabyte gigabytes.
TEST(OrtCheckpoint, NamesThatShareBytesAreRefused) {
  constexpr uint32_t kTables = 1000, kTail = 200'000;
  std::string bytes;
  const auto u16 = [&](uint16_t value) { bytes.append(reinterpret_cast<char*>(&value), 2); };
  const auto u32 = [&](uint32_t value) { bytes.append(reinterpret_cast<char*>(&value), 4); };
  const auto here = [&] { return static_cast<uint32_t>(bytes.size()); };
  u32(16);
  bytes += "ODTC";
  for (const uint16_t slot : {8, 0, 0, 4}) u16(slot);  // 8: the root's form; field 6 is the state
  u32(8), u32(12);                                     // 16: the root
  for (const uint16_t slot : {6, 0, 4, 0}) u16(slot);  // 24: field 4 is the trained parameters
  u32(8), u32(32);                                     // 32: the state
  for (const uint16_t slot : {14, 0, 4, 0, 8, 12, 0, 0}) u16(slot);  // 40: name, dims, type
  u32(1), u32(0), u32(0);                                            // 56: no elements
  u32(kTables);                                                      // 68
  const uint32_t tables = here() + 4 * kTables, names = tables + 16 * kTables;
  const uint32_t no_dims = names + 4 * kTables + kTail;  // offsets lead forward
  for (uint32_t i = 0; i < kTables; ++i) u32(tables + 16 * i - here());
  for (uint32_t i = 0; i < kTables; ++i) {
    u32(here() - 40), u32(names + 4 * i - here()), u32(no_dims - here()), u32(1);
  }
  for (uint32_t i = 0; i < kTables; ++i) u32(kTail - 4 * i);
  bytes.append(kTail, 'n');
  u32(1), u32(0), u32(0);  // one dim: 0
  const fs::path file = fs::path(::testing::TempDir()) / "checkpoint_names";
  write_all(file, bytes);
  try {
    read_ort_checkpoint(file);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kModel);
    EXPECT_THAT(error.what(), HasSubstr("share bytes"));
  }
}

TEST(OrtCheckpoint, HoldsTrainedAndFrozenParameters) {
  const OrtCheckpoint checkpoint =
      read_ort_checkpoint(ort_fixture("cnn_batch_norm") / "checkpoint");
  int trained = 0, frozen = 0;
  for (const OrtParameter& parameter : checkpoint.parameters) {
    ++(parameter.trained ? trained : frozen);
  }
  EXPECT_EQ(trained, 5);
  EXPECT_EQ(frozen, 2);
}

TEST(OrtArtifacts, WhatIsMissingOrContradictoryIsRefused) {
  const fs::path folder = copy_of("mlp_adamw");
  CompileOptions options = options_with(1e-2f);
  options.train.loss = "mse";
  expect_refused(folder, options, ErrorCode::kUsage, "has its loss and its gradients");
  options.train.loss.clear();
  fs::remove(folder / "checkpoint");
  expect_refused(folder, options, ErrorCode::kIo, "checkpoint that is missing");
  fs::copy(ort_fixture("cnn_adamw") / "checkpoint", folder / "checkpoint");
  expect_refused(folder, options, ErrorCode::kModel, "no value of a parameter");
  fs::remove(folder / "training_model.onnx");
  expect_refused(folder, options, ErrorCode::kIo, "the model is a folder");
}

TEST(OrtArtifacts, TheOptimizerIsTheArtifactsUnlessNamed) {
  const fs::path folder = copy_of("mlp_adamw_decay");
  const auto optimizer = [&](const CompileOptions& options) {
    const Model model = compile_file(folder, options).model;
    const Graph& graph = find_step(const_cast<Model&>(model), kStepName)->graph;
    for (NodeId node : graph.nodes()) {
      if (graph.node(node).op == "SGD") return std::string("sgd");
      if (graph.node(node).op != "AdamW") continue;
      const Attributes& a = graph.node(node).attributes;
      return "adamw " + std::to_string(a.get_int("adam_mode", 0)) + " " +
             std::to_string(a.get_float("weight_decay", -1));
    }
    return std::string("none");
  };
  CompileOptions options = options_with(1e-2f);
  EXPECT_EQ(optimizer(options), "adamw 1 0.100000");
  options.train.optimizer.weight_decay = 0.5f;
  EXPECT_EQ(optimizer(options), "adamw 1 0.500000");
  options.train.optimizer.kind = "sgd";
  options.train.optimizer.chosen = true;
  EXPECT_EQ(optimizer(options), "sgd");
}

TEST(OrtArtifacts, NothingOfTheirDomainsIsLeft) {
  const Model model = compile_file(ort_fixture("transformer_adamw"), options_with(1e-2f)).model;
  for (const auto& [domain, version] : model.opsets) {
    EXPECT_TRUE(domain.empty() || domain == kHalfnoteDomain) << domain;
  }
}

TEST(OrtArtifacts, MicroBatchesAreSummed) {
  const Expected expected = expected_of("mlp_sgd_bce");
  CompileOptions options = options_with(expected.lr);
  options.train.accumulation = 2;
  Session halves = session_of("mlp_sgd_bce", options);
  Session whole = session_of("mlp_sgd_bce", options_with(expected.lr));
  for (int64_t i = 0; i < 4; ++i) {
    const std::vector<Tensor> batch = rows({expected.x, expected.y}, 8 * i, 8);
    whole.step(batch);
    halves.step(rows(batch, 0, 4));
    halves.step(rows(batch, 4, 4));
  }
  const auto weight = [](const Session& session) {
    return session.state().get(*session.state().find("fc1.weight"));
  };
  const Tensor a = weight(whole), b = weight(halves);
  for (int64_t k = 0; k < a.size(); ++k) {
    EXPECT_NEAR(a.at_as_double(k), b.at_as_double(k), 1e-6);  // sums in another order
  }
}

}  // namespace
}  // namespace halfnote::test
