// Reading single values: a serialized TensorProto, SequenceProto or OptionalProto, as ONNX's test
// data sets hold them (`input_0.pb`, `output_0.pb`).
#pragma once

#include <filesystem>

#include "base/datum.h"

namespace halfnote {

/// Reads the value of a file; the format does not name itself, so `type` says what it is (an
/// unknown type stands for a tensor). Throws Error(kIo) for an unreadable file, Error(kModel) for
/// one that does not hold such a value, Error(kUnsupported) for maps and sparse tensors.
Datum read_data_file(const std::filesystem::path& path, const ValueType& type);

}  // namespace halfnote
