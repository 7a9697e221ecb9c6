// Makes a problem smaller as long as it shows the same.
#pragma once

#include <functional>

#include "tests/random/problem.h"

namespace halfnote::random {

/// The smallest problem found for which `shows` holds: nodes are taken out one after the other, a
/// result becoming an operand of its node or a constant, terms of sums go, settings become plain.
Problem shrink(const Problem& problem, const std::function<bool(const Problem&)>& shows);

}  // namespace halfnote::random
