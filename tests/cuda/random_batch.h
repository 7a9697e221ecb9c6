// What a session is trained on where only its bits matter.
#pragma once

#include <functional>
#include <random>
#include <vector>

#include "runtime/train/session.h"

namespace halfnote::test {

/// A batch for all inputs: floats in [0, 1), and integers as `label` says, below 7 without it.
inline std::vector<Tensor> random_batch(
    const Session& session, int64_t samples, uint32_t seed,
    const std::function<int64_t(std::mt19937&)>& label = [](std::mt19937& engine) {
      return static_cast<int64_t>(engine() % 7);
    }) {
  std::vector<Tensor> inputs;
  std::mt19937 engine(seed);
  for (const auto& [name, type] : session.inputs()) {
    Shape shape;
    for (const Dim& dim : *type.shape) shape.push_back(dim.known() ? dim.value : samples);
    Tensor tensor(DType::kF64, shape);
    for (double& x : tensor.mutable_data<double>())
      x = is_float(type.dtype) ? engine() * 0x1p-32 : static_cast<double>(label(engine));
    inputs.push_back(tensor.cast_to(type.dtype));
  }
  return inputs;
}

}  // namespace halfnote::test
