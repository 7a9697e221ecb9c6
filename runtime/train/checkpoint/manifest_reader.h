// The JSON of a manifest, read as a stream: that of a model with 24,000 weights has 100,000 entries
// and 18 MB, and a tree of them would take seconds to build and to leave.
#pragma once

#include <string>
#include <string_view>

#include "runtime/train/checkpoint/manifest.h"

namespace halfnote {

enum class ManifestPart : uint8_t {
  kWhole,
  kHead,  // what stands before the tensors
};

/// Reads the text of a manifest, whose hash is right. Throws Error(kCheckpoint) for what is no
/// JSON, nests too deep, has a key twice in an object, is of another version or lacks something. Of
/// a head, `tensors` and `extra` say nothing.
Manifest read_manifest_json(std::string_view text, ManifestPart part, const std::string& path);

}  // namespace halfnote
