// Small random models for the tests of passes: the same for the same seed, on every machine.
#pragma once

#include <cstdint>

#include "compiler/ir/model.h"

namespace halfnote::test {

/// Up to a dozen nodes of elementwise ops, products, reshapes, transposes, reductions and the shape
/// arithmetic of exporters, with broadcasts, constants, shared weights, dead ends, repetitions and
/// one to three outputs. All types are known.
Model random_model(uint64_t seed);

}  // namespace halfnote::test
