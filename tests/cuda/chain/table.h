// Pointwise programs, and operands for them, whose generated kernels are tested: every op that a
// program may hold, in every type, with every way to read an input.
//
// halfnote-write-chains writes their texts into one file, which the test compiles against the
// emulation; NVRTC compiles the same texts for GPUs.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/attribute.h"
#include "kernels/cuda/elementwise/chain/plan.h"
#include "kernels/kernel.h"

namespace halfnote::test {

struct ChainCase {
  std::string title;
  Attributes attributes;  // the program
  std::vector<std::pair<DType, Shape>> inputs;
  std::vector<DType> outputs;
  Shape shape;
  int summed_dims = 0;  // an output is a sum over so many first dims, or last ones if negative
  std::optional<size_t> sum;  // which output; else the last
  bool all_ops = false;       // large: a step for each op of a kind

  KernelCall call() const;
};

std::vector<ChainCase> chain_cases();

/// The texts of the cases, each once, in their order.
struct ChainText {
  const ChainCase* first = nullptr;
  chain::Source source;
};
std::vector<ChainText> chain_texts(const std::vector<ChainCase>& cases);

}  // namespace halfnote::test
