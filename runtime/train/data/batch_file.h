// One batch of a session from a file, as programs that step on a fixed batch need it.
#pragma once

#include <string>
#include <vector>

#include "runtime/train/session.h"

namespace halfnote {

/// The arrays of an .npz that are called like the inputs of the training step, in their order and
/// converted to their types; shapes are the file's. Throws Error(kData) for one that is missing.
std::vector<Tensor> read_batch(const Session& session, const std::string& file);

}  // namespace halfnote
