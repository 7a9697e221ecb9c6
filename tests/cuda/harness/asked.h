// What the tests of cuBLASLt's and cuDNN's requests share: a convolution that is legal, and a step
// that asks for its products.
#pragma once

#include <filesystem>
#include <vector>

#include "kernels/cuda/libraries/dnn_request.h"
#include "runtime/train/session.h"

namespace halfnote::test {

/// Four images of 8 channels to 16, two groups, 3 by 3 with stride 2 and a pad.
libraries::ConvProblem legal_convolution();

/// The training step of a fixture (tests/fixtures/models) on the emulated device; it does not run.
class CapturedStep {
 public:
  CapturedStep(const std::filesystem::path& folder, DType precision);
  /// Plans and captures it; open dims are 4.
  void capture();

 private:
  Session session_;
};

}  // namespace halfnote::test
