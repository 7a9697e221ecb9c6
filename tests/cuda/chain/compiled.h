// Texts compiled against the emulation: those of the table, which halfnote-write-chains writes into
// a file, and those of the steps of the models, which halfnote-collect-chains does.
#pragma once

#include <cstddef>
#include <iterator>
#include <string_view>

#include "kernels/cuda/libraries/chains.h"

namespace halfnote::cuda_emulated {

extern const CompiledChain kCompiledChains[];
extern const size_t kCompiledChainCount;

/// A chain of a model: what a call of it must look like.
struct ModelChain {
  std::string_view name, first;  // a step that has it
  std::string_view program;
  std::string_view inputs;  // `f32:0 bf16:2`: types, and how they are read (chain::Access)
  size_t outputs = 0;
  bool even = true;
};
extern const CompiledChain kModelKernels[];
extern const ModelChain kModelChains[];
extern const size_t kModelChainCount;  // of both

}  // namespace halfnote::cuda_emulated
