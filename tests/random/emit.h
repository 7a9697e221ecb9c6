// Problems as files, for another runtime to judge.
#pragma once

#include <filesystem>

#include "tests/random/problem.h"

namespace halfnote::random {

/// Writes SEED-PRECISION.onnx, the emitted step in fp32 and in emulated bf16, and SEED-PRECISION
/// .json with its inputs, the loss and gradients that f64 gives, and how far each may be off
/// (judge.h). What overflows or is not finite is left out.
void emit(const Problem& problem, const std::filesystem::path& folder);

}  // namespace halfnote::random
