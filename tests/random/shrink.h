// Makes a problem smaller as long as it shows the same.
#pragma once

#include <functional>
#include <vector>

#include "tests/random/problem.h"

namespace halfnote::random {

/// The smallest problem found for which `shows` holds: nodes are taken out one after the other, a
/// result becoming an operand of its node or a constant, terms of sums go, settings become plain,
/// extents become smaller.
Problem shrink(const Problem& problem, const std::function<bool(const Problem&)>& shows);

/// Problems in which one extent is smaller everywhere: in inputs, weights and constants, in numbers
/// that are that extent, in the types of bodies. The smallest first. Many do not fit together any
/// more (a product of extents stands in a constant): inference or a run says so.
std::vector<Problem> with_smaller_sizes(const Problem& problem);

}  // namespace halfnote::random
