// Calls of RNN, GRU and LSTM that between them set every attribute and leave out every optional
// operand: for the tests of gradients and of bodies.
#pragma once

#include <string>
#include <vector>

#include "base/tensor.h"
#include "tests/ops/gradient_harness.h"

namespace halfnote::test {

struct RecurrentCase {
  std::string name;
  std::string op;
  Attributes attributes = {};
  int64_t steps = 4, batch = 3, inputs = 2, hidden = 3;
  std::vector<int64_t> lengths = {};  // empty: no sequence_lens
  bool has_bias = true, has_states = true, has_peepholes = false;
};

std::vector<RecurrentCase> recurrent_cases();
/// The operands of ONNX's op; undefined where the case leaves one out. `bias` is the type of B and
/// P (undefined: `dtype`).
std::vector<Tensor> recurrent_inputs(const RecurrentCase& test, DType dtype,
                                     DType bias = DType::kUndefined);

}  // namespace halfnote::test
