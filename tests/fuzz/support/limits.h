// Limits that a model can reach within the memory of a fuzz target.
#pragma once

#include "compiler/onnx/import.h"

namespace halfnote::fuzz {

inline ImportOptions import_options() {
  ImportOptions options;
  options.limits.copied_bytes = uint64_t{64} << 20;
  options.limits.sparse_elements = int64_t{1} << 20;
  return options;
}

}  // namespace halfnote::fuzz
