// What the tests of the session share: tiny models as ONNX text, data, compile options, and a slow
// interpreter of a training step to hold the planned one against.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "passes/compile.h"
#include "runtime/train/session.h"

namespace halfnote::test {

/// (N, 6) -> 16 -> 3, with Relu.
Model mlp_model();
/// (N, 3, 8, 8): two rounds of Conv, BatchNormalization in training form and Relu with as many
/// channels each, pooling, Dropout in training form, Gemm to 3 classes.
Model cnn_model();

/// Uniform in [-1, 1), the same numbers on every machine.
Tensor uniform(Shape shape, uint64_t seed);
/// x and labels for either model; the labels follow from x, so that there is something to learn.
std::vector<Tensor> mlp_batch(int64_t n, uint64_t seed);
std::vector<Tensor> cnn_batch(int64_t n, uint64_t seed);
/// Rows [from, from + count) of each tensor.
std::vector<Tensor> rows(const std::vector<Tensor>& batch, int64_t from, int64_t count);

/// Options for cross-entropy with this optimizer and precision.
CompileOptions options_for(const std::string& optimizer, DType precision = DType::kF32);
Session reference_session(const Model& model, const CompileOptions& options, int threads = 1);

/// All states, in the order of the store.
std::vector<Tensor> states_of(const Session& session);
/// The state of this name; a failure of the test where there is none.
Tensor state(const Session& session, const std::string& name);
void expect_same(const std::vector<Tensor>& a, const std::vector<Tensor>& b);

/// Runs a training step node by node, states kept by hand.
class SlowStep {
 public:
  explicit SlowStep(Graph graph);
  /// The outputs of the step, in order; the states move on.
  std::vector<Tensor> run(const std::vector<Tensor>& inputs);
  /// The present value of a state.
  const Tensor& state(const std::string& name) const;

 private:
  Graph graph_;
  size_t outputs_ = 0;
};

}  // namespace halfnote::test
