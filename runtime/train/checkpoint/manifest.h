// manifest.json of a checkpoint: what it holds and a hash of each part.
//
//   format             "halfnote-checkpoint"
//   version            1
//   halfnote           the version that wrote it
//   step               the applied step
//   sequence           the number of this save in its run folder, which orders checkpoints by age
//   state              file, bytes, header_xxh3_128 (of length and JSON of the safetensors file)
//   tensors            name, dtype, shape, xxh3_128 of each, sorted by name
//   extra              what the session adds: counters, data position, hash of the artifact
//   xxh3_128           always last, on its own line: the hash of all bytes before its comma
//
// The header's hash and the tensors' hashes cover every byte of the state file, the last line every
// byte of the manifest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"

namespace halfnote {

inline constexpr std::string_view kManifestFormat = "halfnote-checkpoint";
inline constexpr int64_t kManifestVersion = 1;
inline constexpr size_t kManifestLimit = size_t{64} << 20;

struct Manifest {
  struct Entry {
    std::string name;
    DType dtype = DType::kUndefined;
    Shape shape;
    std::string hash;
  };
  int64_t step = 0;
  int64_t sequence = 0;
  uint64_t state_bytes = 0;
  std::string header_hash;
  std::vector<Entry> tensors;
  std::string extra = "{}";  // a JSON object
};

/// Does a text name the format, whatever else it holds?
bool names_manifest_format(std::string_view text);

/// The text of the file. Throws Error(kCheckpoint) if `extra` is no JSON object or the text is over
/// the limit.
std::string write_manifest(const Manifest& manifest);

/// Checks the hash before anything else. Throws Error(kCheckpoint) for a damaged, unknown or newer
/// manifest.
Manifest parse_manifest(std::string_view text, const std::string& path);
/// The same without the tensors and `extra`, which are most of the work: what orders checkpoints.
/// The hash covers all of it.
Manifest parse_manifest_head(std::string_view text, const std::string& path);

}  // namespace halfnote
