// Gives the cases of the body tests to a judge outside: with HALFNOTE_BODY_DIR set, every checked
// call is also written there as an ONNX model, which tests/judges/bodies.py runs in onnxruntime.
#pragma once

#include <vector>

#include "tests/ops/body_harness.h"

namespace halfnote::test {

/// Writes `NNNN_OP.onnx` with outputs `got_i` (the call) and `want_i` (what the kernel gave), all
/// operands inside, 16-bit results cast to f32 (numpy has no bfloat16). At most two cases a
/// specialisation, and none in f64, for which onnxruntime lacks kernels. Does nothing without the
/// environment variable.
void record_body(const BodyCase& call, const std::vector<Tensor>& kernel);

}  // namespace halfnote::test
