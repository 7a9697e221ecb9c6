// The texts of the table, compiled against the emulation: halfnote-write-chains writes the file.
#pragma once

#include <cstddef>
#include <iterator>

#include "kernels/cuda/libraries/chains.h"

namespace halfnote::cuda_emulated {

extern const CompiledChain kCompiledChains[];
extern const size_t kCompiledChainCount;

}  // namespace halfnote::cuda_emulated
