// What a kernel or a check says of a bad label or index, said of the data that it came from.
#pragma once

#include <cstdint>
#include <optional>

#include "base/error.h"
#include "runtime/train/data/batcher.h"

namespace halfnote {

/// Throws the error about a label or an index with the file, field and sample instead of the place
/// in the batch; returns for another error, and where no field, or more than one, can have held
/// it. `shuffled_by`: the seed, where the epochs are shuffled.
void name_sample(const Error& error, const InputMap& data, const Batch& batch,
                 std::optional<uint64_t> shuffled_by = std::nullopt);

}  // namespace halfnote
