// Reading ONNX models, binary and text, into the IR. The file may come from anywhere: every size,
// name and link in it is checked, see limits.h. Tensors share the mapped file, so nothing big is
// copied; the file may be replaced while the model lives, but not be changed in place.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "compiler/ir/limits.h"
#include "compiler/ir/model.h"

namespace halfnote {

struct ImportOptions {
  ImportLimits limits;
  /// Folders besides the model's own that links to external data may lead to.
  std::vector<std::filesystem::path> allowed_folders;
  /// Told of what is odd but legal: hard-linked external data, checksums that are not verified.
  std::function<void(const std::string&)> warn;
};

/// Reads `.onnx` (binary), and `.onnxtxt` or `.txt` (text). The graph is as the file has it, op-set
/// versions too, but for the order of nodes (made topological), initializers that are inputs as
/// well (no longer inputs), and the spelling of Constant nodes. Throws Error: kIo for an unreadable
/// file, kModel for an invalid one, kUnsupported for features that halfnote lacks; the message
/// names the file, the node, what was expected and what was there.
Model import_model(const std::filesystem::path& path, const ImportOptions& options = {});

/// The same for a serialized ModelProto in memory, which is copied; without external data.
Model import_model_bytes(std::span<const std::byte> bytes, const std::string& source_name,
                         const ImportOptions& options = {});

}  // namespace halfnote
