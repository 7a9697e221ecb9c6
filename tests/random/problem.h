// A random training problem: a model with its loss, settings and one batch.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/ir/model.h"
#include "passes/options.h"

namespace halfnote::random {

struct Problem {
  uint64_t seed = 0;
  Model model;
  TrainOptions train;          // loss, optimizer, what is trainable
  std::vector<Tensor> inputs;  // in the order of the model's inputs
};

/// The same for the same seed, on every machine: 3 to 40 nodes of all families, sizes 0, 1 and odd
/// ones among them, broadcasting, shared and tied weights, nodes with several results. On its batch
/// every value is finite and at most kLargest; weights are named w0, w1, …, constants c0, ….
Problem random_problem(uint64_t seed);

inline constexpr double kLargest = 32;

/// The tensors for the inputs of a training step of this problem, in its order: those of the
/// problem by name, and targets between 0 and 1 for what attaching a loss added.
std::vector<Tensor> inputs_of(const Problem& problem, const Graph& step);

}  // namespace halfnote::random
