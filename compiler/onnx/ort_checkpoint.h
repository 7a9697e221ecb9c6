// The parameters of an ONNX Runtime training artifact: its `checkpoint` file, a flatbuffer (file
// identifier ODTC) with the tensors that training_model.onnx takes as inputs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/tensor.h"

namespace halfnote {

struct OrtParameter {
  std::string name;
  Tensor tensor;
  bool trained = false;  // requires a gradient; else frozen
};

struct OrtCheckpoint {
  std::vector<OrtParameter> parameters;
  /// Updates made before; the moments that go with them are not read.
  int64_t step = 0;
};

/// Reads a checkpoint. The file may come from anywhere: every offset and size in it is checked.
/// Throws Error: kIo for an unreadable file, kModel for one that is damaged or no checkpoint,
/// kUnsupported for a nominal one (names without data) or one with its data in a second file.
OrtCheckpoint read_ort_checkpoint(const std::filesystem::path& path);

}  // namespace halfnote
