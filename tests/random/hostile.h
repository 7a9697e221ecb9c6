// Nodes as no compiler writes them but a file may hold them: a node of a random step with one
// operand, type or attribute changed, on every kernel that takes it, in buffers with nothing behind
// them.
#pragma once

#include <cstdint>

#include "tests/random/judge.h"
#include "tests/random/problem.h"

namespace halfnote::random {

/// Changes every node of the problem's steps in f32 and bf16, as compiled and as made ready for the
/// device, and runs what inference and kernels accept. Only an Error may come out: a kernel that
/// leaves its buffers, or takes more than 10 seconds, ends the program with 1 and the node in
/// words. What `counts` says is how many were run and refused.
void attack(const Problem& problem, uint64_t seed, Counts& counts);

}  // namespace halfnote::random
