// Writing models as ONNX files: the inference graph, and for a training model one `training_info`
// entry a step. The bytes depend on the model alone, and reading a written file gives the same
// model, byte for byte when written again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/file.h"
#include "compiler/ir/model.h"

namespace halfnote {

enum class ExternalTensors : uint8_t {
  kWhenNeeded,  // only when the file would exceed `max_file_bytes`
  kAlways,
  kNever,
};

struct ExportOptions {
  ExternalTensors external = ExternalTensors::kWhenNeeded;
  /// Initializers of fewer bytes stay in the model.
  uint64_t external_threshold = 1024;
  /// Largest model file, without external data; protobuf reads no more than this.
  uint64_t max_file_bytes = (uint64_t{1} << 31) - 1;
  /// Let ONNX's checker judge the model and every training step first (check.h).
  bool check = true;
};

/// The model as one block of bytes, without external data. Throws Error(kModel) when that exceeds 2
/// GiB.
std::vector<std::byte> export_model_bytes(const Model& model);

/// Writes `path`, and `path` + `.data` beside it for external tensors. Both appear whole or not at
/// all; the bytes of initializers go to disk from where they are, without a copy in memory. Throws
/// Error(kModel) for a model that the checker refuses and Error(kIo), and leaves no file behind.
void export_model(const Model& model, const std::filesystem::path& path,
                  const ExportOptions& options = {});
/// The same as a part of `files`: the model appears when they are committed.
void export_model(const Model& model, const std::filesystem::path& path, FileSet& files,
                  const ExportOptions& options = {});

}  // namespace halfnote
