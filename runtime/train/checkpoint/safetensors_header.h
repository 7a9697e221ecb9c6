// The JSON header of a safetensors file, parsed as a stream: a header of 100 MB that is no header
// is refused at its first wrong token, before memory is spent on it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"

namespace halfnote {

struct SafetensorsHeader {
  struct Entry {
    std::string name;
    DType dtype = DType::kUndefined;
    Shape shape;
    uint64_t begin = 0, end = 0;  // from the end of the header
  };
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
};

/// Throws Error(kCheckpoint) for anything but one object of entries with exactly dtype, shape and
/// data_offsets, and at most one `__metadata__` object of strings. Offsets are not yet looked at.
SafetensorsHeader parse_safetensors_header(std::string_view json, const std::string& path);

/// The format's name of a type; empty for a type that it lacks.
std::string_view safetensors_dtype(DType dtype);

}  // namespace halfnote
