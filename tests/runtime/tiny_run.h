// A small classifier with everything that has state (weights, moments, running statistics, dropout,
// loss scale, accumulation), and runs of it that can be stopped anywhere.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runtime/train/trainer.h"

namespace halfnote::test {

/// Which number of rows the model takes: symbolic, or fixed.
enum class BatchDim { kSymbolic, kFixed4 };

struct TinyOptions {
  DType precision = DType::kF32;
  int64_t accumulation = 1;
  float lr = 0.05f;
  float first_scale = 65536.0f;
  float least_scale = 1.0f;
  std::string on_floor = "diagnose";
  float clip_norm = 0.0f;
  std::string loss = "cross_entropy";
  float label_smoothing = 0;
  BatchDim batch = BatchDim::kSymbolic;
};

/// Gemm, BatchNormalization, Relu, Dropout, Gemm: 6 features to 3 classes, AdamW.
Model tiny_artifact(const TinyOptions& options);

/// `samples` of 6 features and a label, the same on every machine.
Dataset tiny_data(int64_t samples);

/// The inputs of the artifact's training step.
std::vector<ModelInput> inputs_of(const Session& session);

struct TinyRun {
  TrainResult result;
  std::vector<NamedTensor> states;
  std::vector<std::string> losses;  // the step and loss of each line of metrics.jsonl
};

/// Trains in `folder` until the end of `options`, or to `stop_after` steps (negative: to the end).
/// Batch 4 of 22 samples: an epoch is 5 steps and leaves 2 samples out.
TinyRun tiny_run(const Model& artifact, const std::filesystem::path& folder, TrainerOptions options,
                 int64_t stop_after = -1);

/// Shows nothing, on a clock that stands still.
Progress silent_progress();

/// Same names, types, shapes and bytes.
void expect_same_states(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b);

}  // namespace halfnote::test
